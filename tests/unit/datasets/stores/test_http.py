"""Names in a server's page of links."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from replication.core.copying.names import RelativePath
from replication.datasets.stores.http import HttpDriver
from replication.errors import UnsafeNameError


def test_of_an_answer_that_is_longer_than_the_server_told_no_more_is_read_than_shows_it() -> None:
    class Endless:
        def read(self, size: int) -> bytes:
            return b"x" * min(size, 7)

        def close(self) -> None:
            pass

    fs = SimpleNamespace(open=lambda path, mode, block_size: Endless())
    opened = HttpDriver(is_secure=False).open_reader(fs, "http://h/d/b", 100)
    assert len(opened.read()) == 101


def test_a_link_whose_name_has_a_separator_is_refused_and_not_taken_for_another_file() -> None:
    links = ["http://h/d/x%2Fb", "http://h/d/b", "http://h/d/a%20b"]

    def info(path: str) -> dict[str, Any]:
        return {"size": 1, "url": path}

    fs = SimpleNamespace(ls=lambda path, detail: links, info=info)
    names = [found["name"] for found in HttpDriver(is_secure=False).entries(fs, "http://h/d")]
    assert names == ["http://h/d/x\0b", "http://h/d/b", "http://h/d/a b"]
    with pytest.raises(UnsafeNameError):
        RelativePath("d").child("x\0b")
