"""The Spark cluster of the demo."""

from __future__ import annotations

import io
from email.message import Message
from pathlib import Path
from typing import NoReturn
from urllib.error import HTTPError

import pytest

from shell.processes.spark_cluster import SparkCluster


def test_an_answer_of_a_master_that_has_no_page_yet_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = HTTPError("http://127.0.0.1/json/", 404, "Not Found", Message(), answer := io.BytesIO())

    def missing(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr("urllib.request.urlopen", missing)
    assert SparkCluster(tmp_path).state() == {}
    assert answer.closed
