"""Listings of servers: of their root, too, and with other calls between two names."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from replication.core.copying.names import ROOT
from replication.datasets.stores.base import EntryKind
from replication.datasets.stores.local import LocalStore
from replication.datasets.stores.open import open_store
from tests.copying import job, read_tree, write_tree
from tests.file_servers import ftp_server, sftp_server

pytestmark = [pytest.mark.filterwarnings("ignore::ResourceWarning"), pytest.mark.timeout(120)]
Server = Callable[[Path], AbstractContextManager[str]]
SERVERS = [ftp_server, sftp_server]
FILES = {"a": b"1", "b/c": b"2", "b/d/e": b"3"}


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("end", ["", "/"])
def test_all_of_a_server_is_copied_from_and_to_its_root(server: Server, end: str, tmp_path: Path) -> None:
    write_tree(tmp_path / "served", FILES)
    with server(tmp_path / "served") as url, open_store(url + end) as store:
        there = store.status(ROOT)
        assert there is not None and there.kind is EntryKind.FOLDER
        job(store, LocalStore(str(tmp_path / "dst"))).run()
        assert read_tree(tmp_path / "dst") == FILES
        write_tree(tmp_path / "src", {"new": b"4"})
        assert job(LocalStore(str(tmp_path / "src")), store, delete=True).run().failures == {}
    assert read_tree(tmp_path / "served") == {"new": b"4"}


@pytest.mark.parametrize("server", SERVERS)
def test_folders_that_only_the_target_has_are_listed_while_the_one_above_is(server: Server, tmp_path: Path) -> None:
    write_tree(tmp_path / "served/dst", FILES)
    write_tree(tmp_path / "src", {"a": b"1", "new": b"4"})
    with server(tmp_path / "served") as url, open_store(f"{url}/dst") as store:
        assert job(LocalStore(str(tmp_path / "src")), store, delete=True).run().failures == {}
    assert read_tree(tmp_path / "served/dst") == {"a": b"1", "new": b"4"}


@pytest.mark.parametrize("server", SERVERS)
def test_contents_are_compared_while_their_folder_is_listed(server: Server, tmp_path: Path) -> None:
    write_tree(tmp_path / "served/src", FILES)
    write_tree(tmp_path / "dst", FILES | {"a": b"0"})
    with server(tmp_path / "served") as url, open_store(f"{url}/src") as store:
        counts = job(store, LocalStore(str(tmp_path / "dst")), compare_content=True).run()
    assert (counts.failures, counts.files_published) == ({}, 1)
    assert read_tree(tmp_path / "dst") == FILES
