"""The ledger's contract: what tables have applied, what is left for replay, and how far a source may let go."""

from __future__ import annotations

import pytest

from replication.core.coverage import Ranges
from replication.core.definition.schema import TableSpec
from replication.core.ids import NIL_UUID, StreamId
from replication.ledger.base import Landed, Ledger, Quarantined, ReplayCheckpoint
from tests.contract.ledger_stores import FRAME, HEADER, WEST, Route, applied, claims, stream, table, wal

FLIGHTS, WEATHER = table(), table("ops.weather", 2)
S = stream(FLIGHTS, wal())
W = stream(WEATHER, wal())


@pytest.fixture
def route(ledger: Ledger) -> Route:
    ledger.tables.create(FLIGHTS)
    ledger.tables.create(WEATHER)
    return Route(ledger)


def test_applied_prefixes_are_exact_to_a_registration(ledger: Ledger, route: Route) -> None:
    for n in range(5):
        route.land(claims(S, 2 * n, 2 * n + 2, 0))
    end = HEADER + 10 * FRAME
    assert ledger.landing.applied_prefix([wal()]) == {wal(): HEADER}
    for n in range(1, 5):
        upto = HEADER + 2 * n * FRAME
        applied(ledger, FLIGHTS, {route.file: upto}, n, n)
        assert ledger.landing.applied_prefix([wal(), wal(8)]) == {wal(): upto, wal(8): HEADER}
        (pending,) = ledger.replay.pending()
        assert (pending.begin, pending.end) == (upto, end)
    applied(ledger, FLIGHTS, {route.file: end}, 5, 5)
    assert ledger.replay.pending() == [] and ledger.landing.applied_prefix([wal()]) == {wal(): end}


def test_chunks_that_land_in_any_order_leave_the_prefix_at_the_hole(ledger: Ledger, route: Route) -> None:
    late = Landed(route.file, HEADER, HEADER + 100, wal(), HEADER + 300, HEADER + 400, claims(S, 3, 4, HEADER))
    ledger.registration.register([late])
    applied(ledger, FLIGHTS, {route.file: HEADER + 100})
    assert ledger.landing.applied_prefix([wal()]) == {wal(): HEADER}
    skipped = Landed(route.file, HEADER + 100, HEADER + 100, wal(), HEADER, HEADER + 300, ())
    ledger.registration.register([skipped])
    ledger.registration.register([skipped])
    assert ledger.landing.applied_prefix([wal()]) == {wal(): HEADER + 400}
    assert ledger.landing.received(wal()) == Ranges.of((HEADER, HEADER + 400))


def test_a_file_passes_when_all_its_tables_have(ledger: Ledger, route: Route) -> None:
    route.land(claims(S, 0, 2, 0), claims(W, 0, 2, 0))
    route.land(claims(S, 2, 4, 0))
    end = route.at
    applied(ledger, FLIGHTS, {route.file: end})
    (pending,) = ledger.replay.pending()
    assert pending.begin == HEADER + 2 * FRAME and pending.behind == {FLIGHTS.uuid: end}
    applied(ledger, WEATHER, {route.file: HEADER + 4 * FRAME})
    assert ledger.replay.pending() == []
    row = ledger.files.get(route.file)
    assert row is not None and row.applied == end


def test_what_waits_for_a_held_table_alone_is_separate_from_what_others_wait_for(ledger: Ledger, route: Route) -> None:
    def waiting(*held: TableSpec) -> int:
        return ledger.replay.waiting_bytes("h0", [spec.uuid for spec in held])

    route.land(claims(S, 0, 2, 0), claims(W, 0, 2, 0))
    route.land(claims(S, 2, 5, 0))
    assert (waiting(), waiting(FLIGHTS), waiting(FLIGHTS, WEATHER)) == (7 * FRAME, 2 * FRAME, 0)
    applied(ledger, WEATHER, {route.file: route.at})
    assert (waiting(), waiting(FLIGHTS)) == (5 * FRAME, 0)
    assert ledger.replay.waiting_bytes("h1", []) == 0


def test_a_table_has_to_apply_its_own_frames_only(ledger: Ledger, route: Route) -> None:
    route.land(claims(W, 0, 2, 0), claims(S, 0, 2, 0))
    other = Route(ledger, wal(1))
    other.land(claims(stream(WEATHER, wal(1)), 0, 1, 0))
    begin = HEADER + 2 * FRAME
    assert ledger.replay.unapplied(FLIGHTS.uuid) == {route.file: begin}
    assert ledger.replay.unapplied(WEATHER.uuid) == {route.file: HEADER, other.file: HEADER}
    applied(ledger, FLIGHTS, {route.file: route.at})
    route.land(claims(S, 2, 3, 0))
    assert ledger.replay.unapplied(FLIGHTS.uuid) == {route.file: HEADER + 4 * FRAME}
    ledger.tables.drop(FLIGHTS.uuid)
    assert ledger.replay.unapplied(FLIGHTS.uuid) == {}


def test_applied_only_grows_whatever_the_order_of_marks(ledger: Ledger, route: Route) -> None:
    route.land(claims(S, 0, 4, 0))
    applied(ledger, FLIGHTS, {route.file: route.at}, 2, 22)
    applied(ledger, FLIGHTS, {route.file: HEADER + FRAME}, 1, 11)
    assert ledger.replay.pending() == []
    assert ledger.replay.checkpoint(FLIGHTS.uuid) == ReplayCheckpoint(FLIGHTS.uuid, 1, 2, 22, {route.file: route.at})


def test_a_round_without_rows_adds_its_positions_to_the_snapshots(ledger: Ledger, route: Route) -> None:
    other = Route(ledger, source=wal(1))
    route.land(claims(S, 0, 4, 0), claims(W, 0, 1, 0))
    other.land(claims(stream(FLIGHTS, wal(1)), 0, 2, 0))
    applied(ledger, FLIGHTS, {route.file: HEADER + 4 * FRAME}, 1, 11)
    applied(ledger, FLIGHTS, {other.file: other.at}, 1, 0)
    mark = ledger.replay.checkpoint(FLIGHTS.uuid)
    assert mark is not None and mark.snapshot == 11
    assert mark.positions == {route.file: HEADER + 4 * FRAME, other.file: other.at}


def test_duplicates_between_frames_of_another_stream_hide_none_of_those(ledger: Ledger, route: Route) -> None:
    route.land(claims(S, 0, 2, 0))
    other = Route(ledger, source=wal(0, WEST))
    other.land(claims(S, 0, 1, 0), claims(W, 0, 1, 0), claims(S, 1, 2, 0), claims(W, 1, 2, 0))
    (pending,) = [p for p in ledger.replay.pending() if p.row.file == other.file]
    assert pending.duplicates == Ranges.of((HEADER, HEADER + FRAME), (HEADER + 2 * FRAME, HEADER + 3 * FRAME))


def test_system_frames_and_duplicates_need_no_replay(ledger: Ledger, route: Route) -> None:
    closed = StreamId(wal(), NIL_UUID, "")
    route.land(claims(closed, 0, 2, 0))
    route.land(claims(closed, 2, 3, 0))
    assert ledger.replay.pending() == []
    assert ledger.landing.applied_prefix([wal()]) == {wal(): HEADER + 3 * FRAME}
    assert ledger.landing.coverage() == {closed: Ranges.of((0, 3))}
    unknown = stream(table("ops.other", 9), wal())  # a cluster that keeps no such table only passes it on
    route.land(claims(unknown, 0, 1, 0))
    assert ledger.replay.pending() == []


def test_a_dropped_table_holds_no_file(ledger: Ledger, route: Route) -> None:
    route.land(claims(S, 0, 2, 0), claims(W, 0, 2, 0))
    applied(ledger, FLIGHTS, {route.file: route.at})
    ledger.tables.drop(WEATHER.uuid)
    assert ledger.replay.pending() == []
    assert [t.name for t in ledger.tables.all()] == ["ops.flights"]
    assert ledger.tables.by_uuid(WEATHER.uuid) == WEATHER


def test_a_rolled_back_table_gets_its_frames_again_and_only_it(ledger: Ledger, route: Route) -> None:
    route.land(claims(S, 0, 2, 0), claims(W, 0, 2, 0))
    end = route.at
    for spec in (FLIGHTS, WEATHER):
        applied(ledger, spec, {route.file: end})
    assert ledger.replay.pending() == []
    ledger.replay.rewind(FLIGHTS.uuid, {route.file: HEADER + FRAME})
    (pending,) = ledger.replay.pending()
    assert pending.begin == HEADER + FRAME and pending.behind == {WEATHER.uuid: end}
    assert ledger.replay.checkpoint(FLIGHTS.uuid) is None
    applied(ledger, FLIGHTS, {route.file: end})
    assert ledger.replay.pending() == []


def test_quarantined_frames_are_listed_once(ledger: Ledger, route: Route) -> None:
    route.land(claims(S, 0, 2, 0))
    frame = Quarantined(route.file, HEADER, HEADER + FRAME, FLIGHTS.uuid, "no record batch", "/data/q/1", 5)
    ledger.replay.quarantine(frame, (S, 0))
    ledger.replay.quarantine(frame, (S, 0))
    assert ledger.replay.quarantined() == [frame]


def test_folds_and_replay_epochs_are_remembered(ledger: Ledger) -> None:
    assert ledger.replay.folds() == {}
    ledger.replay.set_folded(FLIGHTS.uuid, 10, 7, 11)
    ledger.replay.set_folded(FLIGHTS.uuid, 20, 8, 21)
    assert ledger.replay.folds() == {FLIGHTS.uuid: 20}
    assert [ledger.replay.raise_epoch() for _ in range(3)] == [1, 2, 3]


@pytest.mark.heavy
def test_very_many_unapplied_registrations_are_joined_in_blocks(ledger: Ledger, route: Route) -> None:
    ledger.registration.register([route.group(claims(S, n, n + 1, 0)) for n in range(6000)])
    assert ledger.landing.coverage() == {S: Ranges.of((0, 6000))}
    some = HEADER + 5500 * FRAME
    applied(ledger, FLIGHTS, {route.file: some})
    assert HEADER + (5500 - 64) * FRAME <= ledger.landing.applied_prefix([wal()])[wal()] <= some
    applied(ledger, FLIGHTS, {route.file: route.at}, 2, 2)
    assert ledger.landing.applied_prefix([wal()]) == {wal(): route.at}
