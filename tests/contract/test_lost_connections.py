"""Connections that a server ends, that fail, or that another store has closed: the next call has a new one."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from replication.core.copying.names import RelativePath
from replication.datasets.stores.local import LocalStore
from replication.datasets.stores.open import open_store
from replication.datasets.stores.remote import FsspecStore
from tests.copying import job, write_tree
from tests.file_servers import ftp_server, sftp_server

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
Server = Callable[[Path], AbstractContextManager[str]]
FILE = RelativePath("file")


def ended_ftp(fs: Any) -> None:
    fs.ftp.sock.shutdown(socket.SHUT_RDWR)


def told_421(fs: Any) -> None:
    one, other = socket.socketpair()
    one.sendall(b"421 Idle for too long.\r\n")
    fs.ftp.sock.close()
    fs.ftp.sock, fs.ftp.file = other, other.makefile("r", encoding="utf-8")
    fs.ftp.other_end = one


def answered_too_late(fs: Any) -> None:
    fs.ftp.sock.settimeout(0.01)
    with pytest.raises(TimeoutError):
        fs.ftp.voidresp()


def ended_sftp(fs: Any) -> None:
    fs.client.get_transport().close()


def ended_channel(fs: Any) -> None:
    fs.ftp.close()


@pytest.mark.parametrize(
    ("server", "ends"),
    [
        (ftp_server, ended_ftp),
        (ftp_server, told_421),
        (ftp_server, answered_too_late),
        (sftp_server, ended_sftp),
        (sftp_server, ended_channel),
    ],
)
def test_a_connection_that_was_lost_is_made_anew(server: Server, ends: Callable[[Any], None], tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("content")
    with server(tmp_path) as url, open_store(url) as store:
        assert isinstance(store, FsspecStore)
        lost = store._fs
        assert store._fs is lost, "one that is alive is kept"
        ends(lost)
        assert store.status(FILE) is not None
        assert store._fs is not lost and not any(fs is lost for fs in store._made)


@pytest.mark.parametrize("server", [ftp_server, sftp_server])
def test_a_store_closes_no_connection_of_another(server: Server, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("content")
    with server(tmp_path) as url:
        with open_store(url) as first:
            assert first.status(FILE) is not None
            second = open_store(url)
        with second as store:
            assert store.status(FILE) is not None
            assert isinstance(store, FsspecStore) and len(store._made) == 1
            assert store._fs is store._first


@pytest.mark.parametrize("server", [ftp_server, sftp_server])
def test_a_copy_of_many_files_that_are_read_ahead_has_few_connections(server: Server, tmp_path: Path) -> None:
    files = {f"{n:02}": b"%d" % n for n in range(40)}
    write_tree(tmp_path / "src", files)
    with server(tmp_path / "src") as url, open_store(url) as store:
        counts = job(store, LocalStore(str(tmp_path / "dst")), conversions=["gzip"], threads=2).run()
        assert isinstance(store, FsspecStore) and len(store._made) <= 10 and len(store._owners) == len(store._made)
    assert (counts.failures, counts.files_published) == ({}, 40)
