"""A master over a real ZooKeeper and a real ledger: rules lead to assignments, reports to files that go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from replication.coordination.base import HostRecord, Public
from replication.coordination.paths import Quorum
from replication.coordination.session import Coordination
from replication.coordination.zookeeper import connect, read_public
from replication.core.coverage import Ranges
from replication.core.definition.define import typed_table
from replication.core.ids import ClusterId, StreamId
from replication.core.shipping.chunk import Assignment
from replication.core.shipping.planner import Limits
from replication.errors import StaleTermError
from replication.files.local import LocalFiles
from replication.ledger.base import Claim, FileKind, FileRow, Ledger, Peer, PeerProgress
from replication.ledger.sql.ledger import open_ledger
from replication.master.loop import HostDisk, Master, MasterTimes
from replication.master.retire import retire
from tests.ledgers import ledger_url, make_ledger
from tests.waiting import wait_until

EAST, WEST = ClusterId("east", uuid4()), ClusterId("west", uuid4())
TIMES = MasterTimes(interval_s=0.05, retire_interval_s=0.0, poll_s=0.2)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    url = ledger_url(tmp_path)
    make_ledger(url, EAST)
    opened = open_ledger(url)
    yield opened
    opened.close()


@pytest.fixture
def east(quorum: Quorum, tmp_path: Path) -> Iterator[Coordination]:
    with connect(quorum) as session:
        session.establish(EAST, "0.0.9")
        session.put_host(HostRecord("h0", str(tmp_path), ""))
        yield session


@pytest.fixture
def west(quorum: Quorum) -> Quorum:
    there = Quorum(quorum.servers, f"{quorum.root}-west")
    with connect(there) as session:
        session.establish(WEST, "0.1.0")
        session.publish(Public(WEST, "0.1.0", ("w:1",)))
    return there


@pytest.fixture
def master(ledger: Ledger, quorum: Quorum, east: Coordination, tmp_path: Path) -> Iterator[Master]:
    (tmp_path / "wal").mkdir()
    with connect(quorum) as session:
        made = Master(ledger, session, HostDisk(LocalFiles(), "h0"), read_public, Limits(), TIMES)
        yield made
        made.close()


def replicate_to_west(ledger: Ledger, west: Quorum) -> None:
    columns = pa.schema([("id", pa.int64()), ("delay", pa.int64())])
    table = typed_table("ops.flights", columns, ["id"], uuids=iter(uuid4, None))
    ledger.tables.create(table)
    term = ledger.terms.current()
    ledger.rules.define(Peer("west", str(west), WEST), term)
    ledger.rules.enable("west", table.uuid, [group.name for group in table.groups], "ops.flights", term)


def written(ledger: Ledger, folder: Path, length: int) -> FileRow:
    row = ledger.files.allocate("h0", FileKind.WAL, str(folder), "boot", "w1")
    Path(row.path).write_bytes(b"x" * length)
    Path(row.path).with_suffix(".len").write_bytes(b"x")
    ledger.registration.register_own(row.file, row.length, length, ())
    ledger.files.close(row.file, length)
    return row


def rounds_until(master: Master, condition: Callable[[], bool]) -> None:
    def met() -> bool:
        if not condition():
            master.round()
            return False
        return True

    wait_until(met)


def test_a_rule_becomes_a_tail_and_a_paused_peer_loses_it(
    ledger: Ledger, east: Coordination, west: Quorum, master: Master
) -> None:
    def tails() -> list[str]:
        read = east.assignments().get("h0")
        return [] if read is None else [tail.peer for tail in Assignment.decode(read.content).tails]

    master.round()
    assert tails() == [] and ledger.terms.current() == master.term == 1
    replicate_to_west(ledger, west)
    rounds_until(master, lambda: tails() == ["west"])
    ledger.rules.set_paused("west", True, master.term)
    rounds_until(master, lambda: tails() == [])


def test_a_file_goes_when_the_peer_applied_it_and_not_before(
    ledger: Ledger, west: Quorum, master: Master, tmp_path: Path
) -> None:
    replicate_to_west(ledger, west)
    row = written(ledger, tmp_path / "wal", 400)
    newer = ledger.files.allocate("h0", FileKind.WAL, str(tmp_path / "wal"), "boot", "w1")
    for progress in (None, PeerProgress(row.file, "west", Ranges.of((256, 400)), 300)):
        if progress is not None:
            ledger.files.record([progress])
        for _ in range(3):
            master.round()
        assert Path(row.path).exists() and ledger.files.get(row.file) is not None
    ledger.files.record([PeerProgress(row.file, "west", Ranges.of((256, 400)), 400)])
    rounds_until(master, lambda: not Path(row.path).exists())
    assert [left.file for left in ledger.files.all()] == [newer.file]
    assert not list((tmp_path / "wal").iterdir())


def test_a_master_of_an_older_term_retires_nothing(ledger: Ledger, master: Master, tmp_path: Path) -> None:
    row = written(ledger, tmp_path / "wal", 400)
    old = ledger.terms.raise_to_next()
    ledger.terms.raise_to_next()
    with pytest.raises(StaleTermError):
        retire(ledger, LocalFiles(), row, old, "h0")
    assert Path(row.path).exists() and ledger.files.get(row.file) is not None


def test_past_the_budget_of_a_peer_durable_there_suffices(
    ledger: Ledger, east: Coordination, west: Quorum, quorum: Quorum, tmp_path: Path
) -> None:
    (tmp_path / "wal").mkdir()
    replicate_to_west(ledger, west)
    old, young = (written(ledger, tmp_path / "wal", 400) for _ in range(2))
    with connect(quorum) as session:
        master = Master(ledger, session, HostDisk(LocalFiles(), "h0"), read_public, Limits(), TIMES, 500)
        ledger.files.record([PeerProgress(row.file, "west", Ranges.of((256, 400)), 256) for row in (old, young)])
        rounds_until(master, lambda: not Path(old.path).exists())
        for _ in range(3):
            master.round()
        assert Path(young.path).exists() and ledger.files.get(young.file) is not None
        master.close()


def test_only_when_no_host_replays_do_files_not_wait_for_it(
    ledger: Ledger, east: Coordination, quorum: Quorum, master: Master, tmp_path: Path
) -> None:
    columns = pa.schema([("id", pa.int64())])
    table = typed_table("ops.flights", columns, ["id"], uuids=iter(uuid4, None))
    ledger.tables.create(table)
    row = ledger.files.allocate("h0", FileKind.WAL, str(tmp_path / "wal"), "boot", "w1")
    Path(row.path).write_bytes(b"x" * 400)
    stream = StreamId(row.file, table.uuid, "default")
    claim = Claim(stream, 0, bytes(32), b"h" * 32, row.length, 400, 1)
    ledger.registration.register_own(row.file, row.length, 400, [claim])
    ledger.files.close(row.file, 400)
    east.put_host(HostRecord("h0", str(tmp_path), "", keeps_tables=False))
    east.put_host(HostRecord("h1", str(tmp_path), ""))
    for _ in range(3):
        master.round()
    assert Path(row.path).exists()
    east.put_host(HostRecord("h1", str(tmp_path), "", keeps_tables=False))
    rounds_until(master, lambda: not Path(row.path).exists())


def test_work_that_a_copy_of_zookeeper_has_under_an_old_term_is_assigned_anew(
    ledger: Ledger, east: Coordination, west: Quorum, master: Master
) -> None:
    """Receivers know the files by newer terms, and would refuse whoever starts with what is there."""
    replicate_to_west(ledger, west)

    def read() -> tuple[Assignment, int]:
        found = east.assignments().get("h0")
        return (Assignment(0), -1) if found is None else (Assignment.decode(found.content), found.version)

    def pause(paused: bool) -> None:
        ledger.rules.set_paused("west", paused, ledger.terms.current())
        rounds_until(master, lambda: bool(read()[0].tails) is not paused)

    rounds_until(master, lambda: bool(read()[0].tails))
    copy = read()[0]
    ledger.terms.raise_to_next()
    pause(True)
    pause(False)
    newest = read()
    assert newest[0].same_work(copy) and newest[0].term == master.term > copy.term
    east.set_assignment("h0", copy.encode(), newest[1])
    rounds_until(master, lambda: read()[0] == newest[0])
    version = read()[1]
    for _ in range(3):
        master.round()
    assert read()[1] == version
    pause(True)
    east.set_assignment("h0", copy.encode(), read()[1])
    rounds_until(master, lambda: not read()[0].tails)
