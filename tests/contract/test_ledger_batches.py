"""The ledger's contract: what a batch id stands for, until when, and which writer may append under it."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import sqlalchemy as sa

from replication.core.coverage import Ranges
from replication.core.definition.schema import TableSpec
from replication.core.succession import Succession
from replication.errors import BatchConflictError
from replication.ledger.base import BatchPart, FileKind, LandedPart, Ledger
from tests.contract.ledger_stores import EAST, FRAME, HEADER, NORTH, WEST, Route, claims, stream, table, wal

FLIGHTS, WEATHER = table(), table("ops.weather", 2)


def part(number: int, parts: int, content: bytes) -> BatchPart:
    return BatchPart("default", number, parts, content * 32, wal(), number, HEADER + FRAME * (number + 1))


def test_a_batch_id_remembers_its_parts_and_refuses_other_content(ledger: Ledger) -> None:
    ledger.tables.create(FLIGHTS)
    parts = [part(0, 2, b"a"), part(1, 2, b"b")]
    ledger.batches.put(FLIGHTS.uuid, "load-7", parts[:1], 10)
    ledger.batches.put(FLIGHTS.uuid, "load-7", parts, 11)
    assert ledger.batches.parts(FLIGHTS.uuid, "load-7") == parts
    assert ledger.batches.parts(WEATHER.uuid, "load-7") == []
    with pytest.raises(BatchConflictError, match="part 1 of batch 'load-7'"):
        ledger.batches.put(FLIGHTS.uuid, "load-7", [part(1, 2, b"c")], 12)


def test_batch_ids_of_landed_frames_hold_here_too_unless_the_frames_may_be_lost_writes(ledger: Ledger) -> None:
    ledger.tables.create(FLIGHTS)
    route, of_route = Route(ledger), stream(FLIGHTS, wal())

    count = -1

    def land(number: int, batch_id: str, content: bytes, epoch: int = 1) -> list[BatchPart]:
        nonlocal count
        count += 1
        landed = replace(part(number, 2, content), end=0)
        group = route.group(claims(of_route, count, count + 1, 0))
        found = (LandedPart(FLIGHTS.uuid, batch_id, landed, epoch, 10),)
        ledger.registration.register([replace(group, parts=found)])
        return ledger.batches.parts(FLIGHTS.uuid, batch_id)

    (kept,) = land(0, "load", b"a")
    assert kept.position(WEST, FLIGHTS.uuid).ends == {} and kept.position(WEST, FLIGHTS.uuid).sequences == {of_route: 0}
    assert land(0, "load", b"b") == [kept] and [each.batch_id for each in ledger.batches.conflicts()] == ["load"]
    beyond = land(1, "beyond", b"d")
    assert len(beyond) == 1
    cut = {of_route: Ranges.of((0, 1))}  # the first frame; the others are lost writes
    ledger.successions.record(Succession(EAST, WEST, 2, 7, is_planned=False, cut=cut))
    assert ledger.batches.parts(FLIGHTS.uuid, "beyond") == [], "it may be repeated"
    assert land(1, "load", b"c") == [kept], "a part that came after another cluster took over"
    assert len(land(1, "load", b"c", epoch=2)) == 2
    ledger.successions.record(Succession(EAST, WEST, 2, 7, is_planned=False, cut={of_route: Ranges.of((0, 2))}))
    assert len(ledger.batches.parts(FLIGHTS.uuid, "load")) == 2, "what came under a newer epoch stays"


@pytest.mark.parametrize("planned", [True, False])
def test_a_batch_id_of_a_frame_that_counts_holds_though_it_lands_after_another_cluster_took_over(
    ledger: Ledger, planned: bool
) -> None:
    ledger.tables.create(FLIGHTS)
    of_route, landed = stream(FLIGHTS, wal()), replace(part(0, 1, b"a"), end=0)
    cut = {} if planned else {of_route: Ranges.of((0, 1))}
    ledger.successions.record(Succession(EAST, NORTH, 2, 7, is_planned=planned, cut=cut))
    group = Route(ledger).group(claims(of_route, 0, 1, 0))
    ledger.registration.register([replace(group, parts=(LandedPart(FLIGHTS.uuid, "load", landed, 1, 10),))])
    assert ledger.batches.parts(FLIGHTS.uuid, "load") == [landed]


def test_a_batch_id_holds_that_was_committed_by_the_time_to_which_the_successor_has_everything(ledger: Ledger) -> None:
    ledger.tables.create(FLIGHTS)
    of_route, route = stream(FLIGHTS, wal()), Route(ledger)
    for n, (batch_id, commit) in enumerate((("early", 10), ("late", 11))):
        parts = (LandedPart(FLIGHTS.uuid, batch_id, replace(part(0, 1, b"a"), sequence=n, end=0), 1, commit),)
        group = route.group(claims(of_route, n, n + 1, 0, commit=commit))
        ledger.registration.register([replace(group, parts=parts)])
    complete = {FLIGHTS.uuid: 10}
    ledger.successions.record(Succession(EAST, NORTH, 2, 7, is_planned=False, complete_upto=complete))
    assert [bool(ledger.batches.parts(FLIGHTS.uuid, batch_id)) for batch_id in ("early", "late")] == [True, False]


def test_parts_that_were_written_twice_are_remembered_where_they_came_first(ledger: Ledger) -> None:
    ledger.tables.create(FLIGHTS)
    first, again, other = part(0, 1, b"a"), part(0, 1, b"a"), part(0, 1, b"b")
    ledger.batches.put(FLIGHTS.uuid, "load", [first, replace(again, sequence=7)], 10)
    assert ledger.batches.parts(FLIGHTS.uuid, "load") == [first]
    with pytest.raises(BatchConflictError):
        ledger.batches.put(FLIGHTS.uuid, "both", [first, other, part(1, 2, b"b")], 10)
    assert ledger.batches.parts(FLIGHTS.uuid, "both") == [first]


def test_the_batch_ids_of_many_frames_are_stored_in_as_many_statements_as_those_of_a_few(ledger: Ledger) -> None:
    """A message of small frames has thousands, and the ledger is locked while they are stored."""
    for spec in (FLIGHTS, WEATHER):
        ledger.tables.create(spec)
    route, at = Route(ledger), 0

    def land(*ids: tuple[TableSpec, str, bytes]) -> int:
        nonlocal at
        group = route.group(claims(stream(FLIGHTS, wal()), at, at + 1, 0))
        at += 1
        parts = (
            LandedPart(spec.uuid, batch_id, BatchPart("default", 0, 1, content * 32, wal(), n, 0), 1, 10 + n)
            for n, (spec, batch_id, content) in enumerate(ids)
        )
        count = 0

        def note(*_: object) -> None:
            nonlocal count
            count += 1

        sa.event.listen(sa.engine.Engine, "before_cursor_execute", note)
        try:
            ledger.registration.register([replace(group, parts=tuple(parts))])
        finally:
            sa.event.remove(sa.engine.Engine, "before_cursor_execute", note)
        return count

    few = [land((FLIGHTS, f"few{n}", b"a"), (WEATHER, f"few{n}", b"a")) for n in range(2)][
        -1
    ]  # tables are known by then
    many = [(spec, f"many{n}", b"a") for n in range(200) for spec in (FLIGHTS, WEATHER)]
    assert land(*many) == few
    assert all(len(ledger.batches.parts(spec.uuid, batch_id)) == 1 for spec, batch_id, _ in many)
    land((FLIGHTS, "many0", b"b"), (FLIGHTS, "both", b"a"), (FLIGHTS, "both", b"b"))
    assert [each.batch_id for each in ledger.batches.conflicts()] == ["many0", "both"]


def test_batch_ids_expire_after_history(ledger: Ledger) -> None:
    ledger.tables.create(FLIGHTS)
    ledger.batches.put(FLIGHTS.uuid, "old", [part(0, 1, b"a")], 10)
    ledger.batches.put(FLIGHTS.uuid, "new", [part(0, 1, b"a")], 11 + FLIGHTS.history_s * 1_000_000)
    assert ledger.batches.parts(FLIGHTS.uuid, "old") == []
    assert ledger.batches.parts(FLIGHTS.uuid, "new") != []


def test_a_batch_id_is_not_forgotten_because_a_clusters_clock_is_ahead(ledger: Ledger) -> None:
    ledger.tables.create(FLIGHTS)
    ledger.batches.put(FLIGHTS.uuid, "ours", [part(0, 1, b"a")], now := time.time_ns() // 1000)
    ahead = LandedPart(FLIGHTS.uuid, "theirs", part(0, 1, b"b"), 1, now + FLIGHTS.history_s * 2_000_000)
    group = Route(ledger).group(claims(stream(FLIGHTS, wal()), 0, 1, 0))
    ledger.registration.register([replace(group, parts=(ahead,))])
    assert [len(ledger.batches.parts(FLIGHTS.uuid, each)) for each in ("ours", "theirs")] == [1, 1]


def test_a_batch_id_is_one_writers_until_the_batch_is_complete(ledger: Ledger) -> None:
    ledger.tables.create(FLIGHTS)
    for writer in ("one", "two"):
        ledger.time.register_writer(writer, "h0", 1, "boot", 1)
    assert [ledger.batches.hold(FLIGHTS.uuid, "load", writer, "h0") for writer in ("one", "two", "one")] == ["one"] * 3
    assert ledger.batches.hold(WEATHER.uuid, "load", "two", "h0") == "two", "ids are the table's own"
    ledger.batches.put(FLIGHTS.uuid, "load", [part(0, 2, b"a")], 1)
    assert ledger.batches.hold(FLIGHTS.uuid, "load", "two", "h0") == "one"
    ledger.batches.put(FLIGHTS.uuid, "load", [part(1, 2, b"a")], 1)
    assert ledger.batches.hold(FLIGHTS.uuid, "load", "two", "h0") == ""


def test_a_batch_id_passes_to_the_next_once_its_writer_is_gone_and_its_bytes_are_registered(ledger: Ledger) -> None:
    ledger.tables.create(FLIGHTS)
    made = ledger.files.allocate("h0", FileKind.WAL, "/data/wal/", "boot", "one").file
    for writer in ("one", "two"):
        ledger.time.register_writer(writer, "h0", 1, "boot", 1)
    assert ledger.batches.hold(FLIGHTS.uuid, "load", "one", "h1") == "one"
    ledger.time.remove_writer("one")
    assert ledger.batches.hold(FLIGHTS.uuid, "load", "two", "h1") == "one", "its WAL is open"
    ledger.files.close(made, HEADER + FRAME)
    assert ledger.batches.hold(FLIGHTS.uuid, "load", "two", "h1") == "one", "its last frame may be of the batch"
    ledger.registration.register_own(made, HEADER, HEADER + FRAME, [])
    assert ledger.batches.hold(FLIGHTS.uuid, "load", "two", "h1") == "two"


def test_a_dead_writers_batch_id_passes_on_at_once_on_its_own_host(ledger: Ledger) -> None:
    ledger.tables.create(FLIGHTS)
    made = ledger.files.allocate("h0", FileKind.WAL, "/data/wal/", "boot", "one").file
    for writer in ("one", "two"):
        ledger.time.register_writer(writer, "h0", 1, "boot", 1)
    assert ledger.batches.hold(FLIGHTS.uuid, "load", "one", "h0") == "one"
    ledger.time.remove_writer("one")
    assert ledger.batches.hold(FLIGHTS.uuid, "load", "two", "h0") == "one", "its WAL is open"
    ledger.files.close(made, HEADER + FRAME)
    assert ledger.batches.hold(FLIGHTS.uuid, "load", "two", "h0") == "two", "who asks can read what is not registered"
