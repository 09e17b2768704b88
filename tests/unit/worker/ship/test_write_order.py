"""Which file begins when: a writer's WALs one after another, others whenever they want."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId
from replication.ledger.base import FileKind, FileRow, PeerProgress
from replication.worker.files.host_files import Source
from replication.worker.ship import write_order
from replication.worker.ship.write_order import Shipped, WriteOrder
from tests.contract.ledger_stores import peer, table
from tests.fakes.ledger import MemoryLedger

HERE, THERE = ClusterId("here", UUID(int=1)), ClusterId("there", UUID(int=2))


def wal(number: int, length: int, writer: str = "w", *, closed: bool = False) -> Source:
    file = FileId(HERE, "h0", number)
    row = FileRow(file, FileKind.WAL, "h0", f"/{number}", closed, length, "boot", writer, 256, 1, 0)
    return Source(row, length, closed)


def landed(number: int, source: int, length: int, slot: str = "h0") -> Source:
    made = wal(number, length, "")
    row = replace(made.row, kind=FileKind.LANDING, source=FileId(THERE, slot, source))
    return Source(row, length, False)


@dataclass
class Peer:
    """What a host has, and how far each file is at the peer."""

    files: list[Source]
    there: dict[FileId, int] = field(default_factory=dict)
    begun: set[FileId] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.order = WriteOrder(lambda: self.files, lambda file, end: self.there.get(file, 256) >= end)

    def may_begin(self, source: Source) -> bool:
        return self.order.may_begin(source, self.begun)


def test_a_wal_waits_for_what_its_writer_wrote_before_it_and_for_no_more() -> None:
    first, second = wal(1, 900), wal(2, 300)
    peer = Peer([first, second])
    assert peer.may_begin(first) and not peer.may_begin(second)
    peer.begun.add(first.file)
    peer.files[0] = wal(1, 5000)
    peer.there[first.file] = 800
    assert not peer.may_begin(second)
    peer.there[first.file] = 900
    assert peer.may_begin(second), "what was written since comes when it comes"


def test_another_writers_wal_and_files_without_order_wait_for_nothing() -> None:
    other = wal(2, 300, "v")
    control = Source(replace(wal(3, 300).row, kind=FileKind.CONTROL, writer=""), 300, False)
    peer = Peer([wal(1, 900), other, control])
    assert peer.may_begin(other) and peer.may_begin(control)


def test_an_older_file_that_gets_its_bytes_late_waits_for_younger_ones_that_are_under_way() -> None:
    imported, wal_of_it = wal(1, 256), wal(2, 700)
    peer = Peer([imported, wal_of_it], begun={wal_of_it.file})
    assert not peer.may_begin(imported), "nothing of it is there yet"
    imported = wal(1, 4000, closed=True)
    assert not peer.may_begin(imported)
    peer.there[wal_of_it.file] = 700
    assert peer.may_begin(imported)


def test_a_file_without_frames_holds_nobody_up() -> None:
    empty, next_one = landed(1, 7, 256), landed(2, 8, 900)
    order = WriteOrder(lambda: [empty, next_one], lambda _file, _end: False)
    assert not order.may_begin(empty, ()) and order.may_begin(next_one, ())


def test_files_of_one_writer_begin_by_number() -> None:
    files = [wal(number, 500, closed=True) for number in (1, 2, 3)]
    peer = Peer(files)
    assert [peer.may_begin(file) for file in files] == [True, False, False]
    peer.there[files[0].file] = 500
    assert [peer.may_begin(file) for file in files] == [True, True, False]


def test_a_relay_keeps_the_order_of_what_each_host_of_its_source_wrote() -> None:
    first, other, second = landed(1, 7, 900), landed(2, 8, 300, "h1"), landed(3, 8, 300)
    peer = Peer([first, other, second])
    assert [peer.may_begin(file) for file in peer.files] == [True, True, False]
    peer.there[first.file] = 900
    assert peer.may_begin(second)


def test_an_empty_file_begins_when_it_is_closed() -> None:
    peer = Peer([])
    assert not peer.may_begin(wal(1, 256)) and peer.may_begin(wal(1, 256, closed=True))


def test_a_long_backlog_of_one_writer_costs_one_question_a_file_and_one_look_a_pass() -> None:
    files = [wal(number, 500, closed=True) for number in range(300)]
    asked: list[FileId] = []
    looks: list[int] = []
    there: set[FileId] = set()

    def is_there(file: FileId, end: int) -> bool:
        asked.append(file)
        return file in there

    def look() -> list[Source]:
        looks.append(len(asked))
        return files

    order = WriteOrder(look, is_there)
    for _ in range(2):
        order.begin_pass()
        assert [file for file in files if order.may_begin(file, ())] == files[:1]
    assert len(asked) == 2 * 299 and len(looks) == 1
    there.update(file.file for file in files[:200])
    order.begin_pass()
    assert [file for file in files if order.may_begin(file, ())] == files[:201]
    assert len(asked) < 3 * 300 + 200


def test_what_is_closed_later_than_a_file_was_first_seen_is_not_waited_for_to_its_end() -> None:
    first, second, third = wal(1, 300), wal(2, 300), wal(3, 300)
    peer = Peer([first, second], begun={first.file}, there={first.file: 300})
    peer.there[first.file] = 299
    assert not peer.may_begin(second)
    peer.files = [wal(1, 5000, closed=True), second, third]
    peer.there[first.file] = 300
    peer.order.begin_pass()
    assert not peer.may_begin(third), "it was first seen when the first had more"
    assert peer.may_begin(second)
    peer.there |= {first.file: 5000, second.file: 300}
    assert peer.may_begin(third)


@pytest.mark.heavy
def test_files_that_are_gone_take_no_memory() -> None:
    peer = Peer([wal(1, 500, closed=True), wal(2, 500, closed=True)])

    def used_after(numbers: range) -> int:
        for number in numbers:
            peer.files = [*peer.files[1:], wal(number, 500, closed=True)]
            peer.there = {peer.files[0].file: 500}
            peer.order.begin_pass()
            assert all(peer.may_begin(file) for file in peer.files)
        gc.collect()
        own = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, write_order.__file__)])
        return sum(each.size for each in own.statistics("filename"))

    tracemalloc.start()
    try:
        few = used_after(range(3, 50))
        assert 0 < used_after(range(50, 1000)) < 1.5 * few
    finally:
        tracemalloc.stop()


def test_how_far_files_are_at_a_peer_is_read_without_a_status_for_each_table() -> None:
    def never(call: str) -> None:
        assert call != "files.statuses", "there is one for each file and rule"

    ledger = MemoryLedger(HERE)
    one, two = table("ops.one", 1), table("ops.two", 2)
    for name, specs in {"north": (one,), "south": (one, two)}.items():
        ledger.rules.define(peer(name, ClusterId(name, UUID(int=7))), 0)
        for spec in specs:
            if ledger.tables.by_uuid(spec.uuid) is None:
                ledger.tables.create(spec)
            ledger.rules.enable(name, spec.uuid, ["default"], spec.name, 0)
    file = ledger.files.allocate("h0", FileKind.WAL, "/wal", "boot", "w").file
    withheld = {one.uuid: Ranges.of((300, 400))}
    for name in ("north", "south"):
        ledger.files.record([PeerProgress(file, name, Ranges.of((256, 300)), withheld=withheld)])
    ledger.fault = never
    north, south = Shipped(ledger, "north"), Shipped(ledger, "south")
    assert north.is_there(file, 300) and north.is_there(replace(file, number=9), 300)
    assert not north.is_there(file, 400), "no other table waits for it"
    assert south.is_there(file, 400) and not south.is_there(file, 500)
    ledger.close()
