"""Where executors read a file: this host's disk, or the receiver of its host."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock
from uuid import UUID

import pytest

from peer.frames import host_watch
from peer.frames.host_watch import HostWatch
from peer.frames.hosts import HostReader, Hosts
from replication.config import load
from replication.coordination.base import Member
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import ClusterId, FileId
from replication.files.store import RemoteStore
from replication.ledger.base import FileKind, FileRow
from tests.origin import OriginWal, new_ledger
from tests.tables_made import keyed
from tests.waiting import wait_until

EAST = ClusterId("east", UUID(int=1))


def file_of(host: str) -> FileRow:
    file = FileId(EAST, host, 1)
    return FileRow(file, FileKind.WAL, host, f"/{host}/1.wal", True, 500, "boot", "w", 256, 1, 0)


@pytest.mark.parametrize(
    ("hosts", "here", "there"),
    [
        (Hosts(), "/h0/1.wal", "/h1/1.wal"),
        (Hosts("h0", EAST), "/h0/1.wal", f"walship://h1/{FileId(EAST, 'h1', 1)}"),
        (
            Hosts("h0", EAST, executors_here=False),
            f"walship://h0/{FileId(EAST, 'h0', 1)}",
            f"walship://h1/{FileId(EAST, 'h1', 1)}",
        ),
    ],
    ids=["one host", "several hosts", "executors elsewhere"],
)
def test_executors_read_files_of_other_hosts_from_their_receivers(hosts: Hosts, here: str, there: str) -> None:
    assert (hosts.place(file_of("h0")), hosts.place(file_of("h1"))) == (here, there)


@pytest.mark.parametrize(("master", "asks"), [("local[4]", False), ("spark://head:7077", True), ("yarn", True)])
def test_executors_of_a_spark_cluster_are_elsewhere(master: str, asks: bool) -> None:
    config = load(None, {"cluster": {"name": "east"}, "replay": {"spark_master": master}})
    assert config.replay_asks_receivers is asks is not config.replay.has_local_executors


def test_an_error_that_nobody_foresaw_does_not_end_the_watch_of_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [[], RuntimeError("nobody foresaw this"), [Member("h1", {"address": "h1:7070"}, 1)]]
    monkeypatch.setattr(host_watch, "_POLL_S", 0.001)
    coordination = Mock(members=Mock(side_effect=found))
    watch = HostWatch(load(None, {"cluster": {"name": "east"}}), EAST, coordination).start()
    wait_until(lambda: watch.hosts().addresses == {"h1": "h1:7070"}, timeout_s=10)
    watch.close()


def test_a_file_that_was_moved_to_the_store_is_read_there(tmp_path: Path) -> None:
    """A failover reads what landed of the lost cluster after the instant it opens with, wherever it lies."""
    with closing(new_ledger(tmp_path)) as ledger:
        wal, spec = OriginWal(ledger, tmp_path / "wal"), keyed("ops.t")
        for n in range(3):
            wal.upsert(spec, [{"k": "a", "v": n}])
    content = wal.path.read_bytes()
    address = RemoteStore(f"file://{tmp_path}/store").put(str(wal.path), "east/h0/1.wal")
    wal.path.unlink()
    hosts = Hosts("h0", EAST)
    place = hosts.place(replace(file_of("h1"), path=address))
    with HostReader(hosts) as reader:
        found = list(reader.frames(place, FILE_HEADER_BYTES, len(content)))
        assert [frame.header.sequence for frame in found] == [0, 1, 2]
        spans = [(frame.begin, frame.end) for frame in found]
        assert [bytes(each) for each in reader.read(place, spans)] == [content[begin:end] for begin, end in spans]
