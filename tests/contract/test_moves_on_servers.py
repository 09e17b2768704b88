"""Moves on servers whose renames fail or replace nothing: the good file stays, or is replaced."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from replication.core.copying.names import RelativePath
from replication.datasets.stores.base import Store
from replication.datasets.stores.open import open_store
from tests.file_servers import Renames, ftp_server, sftp_server

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
SERVERS = [ftp_server, sftp_server]
Server = Callable[[Path, Renames], AbstractContextManager[str]]
NEW, OLD = RelativePath("staging/new"), RelativePath("a/old")


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> Iterator[Path]:
    for path, content in ((NEW, "new"), (OLD, "old")):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(content)
    yield tmp_path


def all_refused(origin: str, destination: str) -> None:
    raise PermissionError(1, "no renames")


def none_replaced(origin: str, destination: str) -> None:
    if os.path.exists(destination):
        raise FileExistsError(17, "it exists")
    os.rename(origin, destination)


def new_refused(origin: str, destination: str) -> None:
    if origin.endswith("/new"):
        raise PermissionError(1, "not this one")
    none_replaced(origin, destination)


def moved(store: Store) -> None:
    with store:
        store.move(NEW, OLD)


@pytest.mark.parametrize("renames", [all_refused, new_refused])
@pytest.mark.parametrize("server", SERVERS)
def test_a_file_stays_if_no_rename_replaces_it(server: Server, renames: Renames, files: Path) -> None:
    with server(files, renames) as url, pytest.raises(OSError):
        moved(open_store(url))
    assert ((files / OLD).read_text(), (files / NEW).read_text()) == ("old", "new")
    assert [path.name for path in (files / "staging").iterdir()] == ["new"]


@pytest.mark.parametrize("server", SERVERS)
def test_a_server_that_replaces_nothing_gets_the_new_file_and_keeps_no_other(server: Server, files: Path) -> None:
    with server(files, none_replaced) as url:
        moved(open_store(url))
    assert (files / OLD).read_text() == "new"
    assert list((files / "staging").iterdir()) == []
