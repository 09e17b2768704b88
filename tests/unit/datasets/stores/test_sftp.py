"""Reading of SFTP asks ahead for a bounded part of a file, from where it is read, and opens no pipes."""

from __future__ import annotations

import os
import threading
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from replication.core.copying.names import ROOT, RelativePath
from replication.datasets.stores.base import EntryKind, Store
from replication.datasets.stores.drivers import SftpDriver
from replication.datasets.stores.local import LocalStore
from replication.datasets.stores.open import open_store
from tests.copying import job, read_tree, write_tree
from tests.file_servers import sftp_server

MIB = 1 << 20


class Served(BytesIO):
    """A file of a server, as paramiko has it: ``prefetch`` asks for all from here up to a position."""

    def __init__(self) -> None:
        super().__init__(bytes(200 * MIB))
        self.asked: list[tuple[int, int]] = []

    def prefetch(self, end: int) -> None:
        self.asked.append((self.tell(), end))


@pytest.fixture
def served() -> Served:
    return Served()


def test_a_file_is_asked_for_once_and_in_parts_whatever_size_the_server_tells(served: Served) -> None:
    fs = SimpleNamespace(ftp=SimpleNamespace(open=lambda path, mode: served))
    opened = SftpDriver().open_reader(fs, "/large", 1 << 62)
    at = 0
    while len(data := opened.read(4 * MIB)):
        at += len(data)
    assert at == 200 * MIB
    assert all(end - begin <= 64 * MIB for begin, end in served.asked)
    assert all(one[1] == other[0] for one, other in zip(served.asked, served.asked[1:], strict=False))


def test_a_range_that_is_verified_is_read_without_what_is_before_it(served: Served) -> None:
    fs = SimpleNamespace(ftp=SimpleNamespace(open=lambda path, mode: served))
    assert len(SftpDriver().reread(fs, "/large", 100 * MIB, 4 * MIB)) == 4 * MIB
    assert served.asked == [(100 * MIB, 104 * MIB)]


def test_a_pipe_of_a_server_is_skipped_as_one_of_this_host(tmp_path: Path) -> None:
    write_tree(tmp_path / "served", {"a": b"1"})
    os.mkfifo(tmp_path / "served/pipe")
    with sftp_server(tmp_path / "served") as url, open_store(f"{url}/") as source:
        listed = {entry.path or "a": entry.kind for entry in source.scan(ROOT)}
        found = source.status(RelativePath("pipe"))
        assert (listed["pipe"], found and found.kind) == (EntryKind.OTHER, EntryKind.OTHER), "to open it would wait"
        counts = job(source, LocalStore(str(tmp_path / "dst"))).run()
    assert (counts.failed, counts.skipped) == (0, {"special file": 1})
    assert read_tree(tmp_path / "dst") == {"a": b"1"}


def test_a_server_that_is_silent_fails_the_call_and_another_connection_is_used_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replication.datasets.stores.sftp_session._SILENT_S", 0.5)
    write_tree(tmp_path / "served", {"a": b"1", "b": b"2"})
    awake = threading.Event()

    def rename(origin: str, destination: str) -> None:
        awake.wait(30)

    failed: list[BaseException] = []

    def move(store: Store) -> None:
        try:
            store.move(RelativePath("a"), RelativePath("c"))
        except BaseException as error:
            failed.append(error)
        assert store.status(RelativePath("b")) is not None, "by a new connection"

    with sftp_server(tmp_path / "served", rename) as url, open_store(f"{url}/") as store:
        moving = threading.Thread(target=move, args=(store,), daemon=True)
        moving.start()
        moving.join(10)
        is_done = not moving.is_alive()
        awake.set()
        moving.join(30)
    assert is_done and isinstance(failed[0], TimeoutError) and "silent for 0.5 s" in str(failed[0])
