"""The ledger's contract: closed time, the notices that carry it, and replicated time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from replication.core.coverage import Ranges
from replication.core.ids import NIL_UUID, FileId, StreamId
from replication.core.routes.carried import InboundRoute
from replication.core.routes.freshness import ClosedNotice, Replicated, replicated_time
from replication.errors import NoSpaceError
from replication.ledger.base import FileKind, Grown, Ledger, Quarantined
from replication.ledger.sql.parts import registration, time
from replication.ledger.sql.queries import freshness
from replication.ledger.sql.queries import notices as queries
from replication.ledger.sql.queries.freshness import NOTICES_MAX
from replication.ledger.sql.schema import tables as schema
from tests.contract.ledger_stores import (
    EAST,
    FLIGHTS,
    FRAME,
    HEADER,
    NORTH,
    WEATHER,
    WEST,
    Route,
    applied,
    claims,
    own_wal,
    stream,
    wal,
    write,
)
from tests.noted import note_closed
from tests.sites import table

S = stream(FLIGHTS, wal())


def check_by_table(ledger: Ledger) -> None:
    """That all tables at once are told what each alone is."""
    alone = {spec.uuid: ledger.time.replicated(spec.uuid) for spec in ledger.tables.all()}
    assert ledger.time.replicated_by_table() == alone != {}


def test_closed_time_is_the_lowest_watermark_and_never_falls(ledger: Ledger) -> None:
    raise_closed = ledger.time.raise_closed
    assert ledger.time.closed() == 0 and raise_closed("h0", {}, 100) == 100
    assert ledger.time.register_writer("w1", "h0", 1, "boot", 1) == 100
    assert raise_closed("h0", {}, 500) == 100  # until the writer promises more
    assert raise_closed("h0", {"w1": 300}, 500) == 300
    ledger.time.register_writer("w2", "h1", 2, "boot", 1)
    assert raise_closed("h0", {"w1": 400, "w2": 999}, 500) == 300  # h1 speaks for its own writers
    assert raise_closed("h1", {"w2": 350}, 500) == 350
    assert raise_closed("h1", {"w2": 200}, 500) == 350
    assert [(w.writer, w.host, w.floor) for w in ledger.time.writers()] == [("w1", "h0", 400), ("w2", "h1", 350)]
    ledger.time.remove_writer("w2")
    assert raise_closed("h0", {}, 500) == 400
    ledger.time.remove_writer("w1")
    assert raise_closed("h0", {}, 500) == 500 == ledger.time.closed()


def test_closed_time_waits_for_the_frames_of_a_writer_that_has_gone(sending: Ledger) -> None:
    sending.time.register_writer("brief", "h1", 1, "boot", 1)
    left = sending.files.allocate("h1", FileKind.WAL, "/data/wal", "boot", "brief").file
    sending.files.close(left, HEADER + FRAME)
    sending.time.remove_writer("brief")
    assert sending.time.raise_closed("h0", {}, 500) == 0
    write(sending, left, 0, 1)
    assert sending.time.raise_closed("h0", {}, 500) == 500


def test_what_grew_is_found_by_commit_time_and_by_the_length_seen(sending: Ledger) -> None:
    one, two = own_wal(sending, 3), own_wal(sending, 6)
    Route(sending).land(claims(S, 0, 9, 0))
    of = {file: stream(FLIGHTS, file) for file in (one, two)}
    assert sending.time.grown(0, {}) == {
        one: Grown(HEADER + 3 * FRAME, {of[one]: 2}),
        two: Grown(HEADER + 6 * FRAME, {of[two]: 5}),
    }
    newest = sending.files.get(two)
    assert newest is not None
    assert sending.time.grown(2, {two: newest.length}) == {two: Grown(HEADER + 6 * FRAME, {})}
    assert sending.time.grown(5, {}) == {}
    write(sending, two, 6, 8)
    applied(sending, FLIGHTS, {two: HEADER + 8 * FRAME})  # joins the rows of claims
    assert sending.time.grown(5, {two: newest.length}) == {two: Grown(HEADER + 8 * FRAME, {of[two]: 7})}


def test_streams_of_retired_files_are_known_by_how_new_they_may_be(sending: Ledger) -> None:
    for frames in (3, 6):
        file = own_wal(sending, frames)
        sending.files.close(file, HEADER + frames * FRAME)
        applied(sending, FLIGHTS, {file: HEADER + frames * FRAME}, commit=frames)
        sending.files.retire(file, 0)
    assert sending.time.grown(0, {}) == {}
    assert [sorted(sending.time.grown_and_retired(after).values()) for after in (0, 2, 5)] == [[2, 5], [5], []]


def test_rows_that_were_written_under_an_earlier_commit_time_are_found_too(sending: Ledger) -> None:
    known = own_wal(sending, 3)
    assert sending.time.raise_closed("h0", {}, 500) == 500
    late = sending.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "w").file
    of = stream(FLIGHTS, late)
    sending.registration.register_own(late, HEADER, HEADER + 2 * FRAME, claims(of, 0, 2, HEADER, commit=7))
    assert sending.time.grown(500, {known: HEADER + 3 * FRAME}) == {late: Grown(HEADER + 2 * FRAME, {of: 1})}
    assert sending.time.raise_closed("h0", {}, 600) == 600
    assert sending.time.grown(600, {}) == {}


def test_own_replicated_time_follows_the_own_replay(sending: Ledger) -> None:
    file = own_wal(sending, 3)
    assert sending.time.replicated() == {WEST: Replicated(0, "no closed frame of west has come yet")}
    note_closed(sending, WEST, ClosedNotice(10, ((stream(FLIGHTS, file), 1),)))
    note_closed(sending, WEST, ClosedNotice(20, ((stream(FLIGHTS, file), 2),)))
    assert "landed but not applied: sequences [0, 2)" in sending.time.replicated()[WEST].held_by
    assert sending.time.replicated(WEATHER.uuid) == {WEST: Replicated(20)}
    check_by_table(sending)
    applied(sending, FLIGHTS, {file: HEADER + 2 * FRAME})
    assert sending.time.replicated(FLIGHTS.uuid)[WEST].t == 0  # one registration is applied whole or not at all
    applied(sending, FLIGHTS, {file: HEADER + 3 * FRAME}, 2)
    assert sending.time.replicated() == {WEST: Replicated(20)}


def test_replicated_time_needs_what_open_routes_require_and_no_more(sending: Ledger) -> None:
    route = Route(sending)
    unsent = stream(WEATHER, wal(), "first")
    sending.landing.declare_routes(
        [InboundRoute(EAST, FLIGHTS.uuid, "default", 3, {wal(): 2}, {wal(): Ranges.of((4, 5))})]
    )
    sending.landing.declare_routes([InboundRoute(EAST, FLIGHTS.uuid, "default", 2)])  # older: changes nothing
    note_closed(sending, EAST, ClosedNotice(10, ((S, 3), (unsent, 8))))
    note_closed(sending, EAST, ClosedNotice(20, ((S, 6),)))
    assert "not arrived: sequences [2, 4) of WAL east/h0/000000000000" in sending.time.replicated()[EAST].held_by
    route.land(claims(S, 2, 4, 0))
    assert "landed but not applied" in sending.time.replicated(FLIGHTS.uuid)[EAST].held_by
    applied(sending, FLIGHTS, {route.file: route.at})
    found = sending.time.replicated(FLIGHTS.uuid)[EAST]
    assert found.t == 10 and "[5, 7)" in found.held_by
    check_by_table(sending)
    assert sending.time.replicated(WEATHER.uuid).keys() == {WEST}  # east feeds flights only
    every = sending.time.replicated(WEATHER.uuid, every_origin=True)
    assert every.keys() == {WEST, EAST} and every[EAST] == Replicated(20)
    sending.landing.close_route(EAST, FLIGHTS.uuid, "default", 3)
    assert sending.time.replicated()[EAST] == Replicated(20)
    sending.landing.declare_routes([InboundRoute(EAST, FLIGHTS.uuid, "default", 4, {wal(): 6})])
    assert "[6, 7)" in sending.time.replicated()[EAST].held_by


@pytest.mark.parametrize("number", [1, 7, 8, 9])
def test_replicated_time_counts_the_frames_of_few_wals_and_of_many(sending: Ledger, number: int) -> None:
    route, streams = Route(sending), [stream(FLIGHTS, wal(n)) for n in range(number)]
    sending.landing.declare_routes([InboundRoute(EAST, FLIGHTS.uuid, "default", 1)])
    note_closed(sending, EAST, ClosedNotice(10, tuple((of, 0) for of in streams)))
    for of in streams:
        assert sending.time.replicated(FLIGHTS.uuid)[EAST].t == 0
        route.land(claims(of, 0, 1, 0))
    applied(sending, FLIGHTS, {route.file: route.at})
    assert sending.time.replicated(FLIGHTS.uuid)[EAST] == Replicated(10)
    check_by_table(sending)


def test_a_quarantined_frame_holds_the_replicated_time_of_its_own_table(sending: Ledger) -> None:
    route = Route(sending)
    other = stream(WEATHER, wal(), "first")
    for spec, of in ((FLIGHTS, S), (WEATHER, other)):
        sending.landing.declare_routes([InboundRoute(EAST, spec.uuid, of.group, 1)])
    route.land(claims(S, 0, 1, 0), claims(other, 0, 1, 0))
    sending.replay.quarantine(Quarantined(route.file, HEADER, HEADER + FRAME, FLIGHTS.uuid, "bad", "/q/1", 1), (S, 0))
    for spec in (FLIGHTS, WEATHER):
        applied(sending, spec, {route.file: route.at})
    note_closed(sending, EAST, ClosedNotice(10, ((S, 0), (other, 0))))
    assert sending.time.replicated(FLIGHTS.uuid)[EAST].t == 0
    assert sending.time.replicated(WEATHER.uuid)[EAST].t == 10
    check_by_table(sending)
    sending.landing.close_route(EAST, FLIGHTS.uuid, "default", 1)  # its frame still waits
    assert EAST in sending.time.replicated(FLIGHTS.uuid)
    check_by_table(sending)
    assert sending.landing.applied_prefix([wal()]) == {wal(): route.at}  # it counts as applied for retiring


def test_notices_are_thinned_without_losing_what_they_require(sending: Ledger) -> None:
    route = Route(sending)
    sending.landing.declare_routes([InboundRoute(EAST, FLIGHTS.uuid, "default", 1)])
    total = 2 * NOTICES_MAX
    for n in range(total):
        note_closed(sending, EAST, ClosedNotice(n + 1, ((S, n),)))
    assert sending.time.replicated()[EAST].t == 0
    half = total // 2
    route.land(claims(S, 0, half, 0))
    applied(sending, FLIGHTS, {route.file: route.at})
    reached = sending.time.replicated()[EAST].t
    assert 0 < reached <= half
    check_by_table(sending)
    route.land(claims(S, half, total, 0))
    applied(sending, FLIGHTS, {route.file: route.at}, 2)
    assert sending.time.replicated()[EAST] == Replicated(total)


def test_replicated_time_that_is_held_stays_where_it_is_for_every_table(sending: Ledger) -> None:
    route, other = Route(sending), stream(WEATHER, wal(), "first")
    for spec, of in ((FLIGHTS, S), (WEATHER, other)):
        sending.landing.declare_routes([InboundRoute(EAST, spec.uuid, of.group, 1)])
    route.land(claims(S, 0, 3, 0), claims(other, 0, 8, 0))
    for spec in (FLIGHTS, WEATHER):
        applied(sending, spec, {route.file: route.at})
    for n in range(NOTICES_MAX + NOTICES_MAX // 4 + 2):  # flights lack all from 3 on, weather all from 8 on
        note_closed(sending, EAST, ClosedNotice(n + 1, ((S, n), (other, n))))
    assert sending.time.replicated(FLIGHTS.uuid)[EAST].t == sending.time.replicated()[EAST].t == 3
    assert sending.time.replicated(WEATHER.uuid)[EAST].t == 8


def test_thinning_notices_takes_no_pass_over_all_of_them_for_each_table(
    sending: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [table(f"many.t{number}") for number in range(40)]
    for spec in tables:
        sending.tables.create(spec)
    sending.landing.declare_routes([InboundRoute(EAST, spec.uuid, "default", 1) for spec in tables])
    passed: list[int] = []

    def counting(notices: Sequence[ClosedNotice], *rest: Any) -> Replicated:
        passed.append(len(notices))
        return replicated_time(notices, *rest)

    for n in range(NOTICES_MAX):
        note_closed(sending, EAST, ClosedNotice(n + 1, ((stream(tables[n % 40], wal()), n),)))
    monkeypatch.setattr(freshness, "replicated_time", counting)
    note_closed(sending, EAST, ClosedNotice(NOTICES_MAX + 1, ()))
    assert NOTICES_MAX < sum(passed) < 5 * NOTICES_MAX


def test_the_replicated_time_of_one_table_reads_no_other_table(
    sending: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [table(f"many.t{number}") for number in range(20)]
    for spec in tables:
        sending.tables.create(spec)
    sending.landing.declare_routes([InboundRoute(EAST, tables[0].uuid, "default", 1)])
    note_closed(sending, EAST, ClosedNotice(10, ((stream(tables[0], wal()), 0),)))
    read: list[str] = []

    def reading(text: str) -> UUID:
        read.append(text)
        return UUID(text)

    monkeypatch.setattr(freshness, "UUID", reading)
    assert sending.time.replicated(tables[0].uuid, every_origin=True)[EAST].t == 0
    assert set(read) == {str(tables[0].uuid)}


def test_many_notices_that_come_together_are_thinned_a_few_times_only(
    sending: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a link was cut for a day, a message has thousands; the ledger is locked while they are stored."""
    thinned = []
    thin = queries.thin
    monkeypatch.setattr(queries, "thin", lambda *given: thinned.append(thin(*given)))
    sending.landing.declare_routes([InboundRoute(EAST, FLIGHTS.uuid, "default", 1)])
    route, control, total = Route(sending), Route(sending, wal(1)), 20 * NOTICES_MAX
    notices = tuple((EAST, ClosedNotice(n + 1, ((S, n),))) for n in range(total))
    sending.registration.register([replace(control.group(), notices=notices)])
    assert len(thinned) <= 2
    half = total // 2
    route.land(claims(S, 0, half, 0))
    applied(sending, FLIGHTS, {route.file: route.at})
    assert 0.9 * half < sending.time.replicated()[EAST].t <= half
    route.land(claims(S, half, total, 0))
    applied(sending, FLIGHTS, {route.file: route.at}, 2)
    assert sending.time.replicated()[EAST] == Replicated(total)


@pytest.mark.heavy
def test_a_large_notice_that_is_satisfied_is_dropped_soon(sending: Ledger) -> None:
    streams = tuple((StreamId(wal(), NIL_UUID, f"x{n:060}"), n) for n in range(6000))  # of no table here: not required
    note_closed(sending, EAST, ClosedNotice(1, streams))
    for t in range(2, 5):
        note_closed(sending, EAST, ClosedNotice(t, ()))
    assert _largest_notice(sending) < 100


def test_notices_of_another_cluster_list_only_so_many_streams_until_tables_reach_them(
    sending: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (registration, time):
        monkeypatch.setattr(module, "NOTED_STREAMS_MAX", 100)
    sending.landing.declare_routes([InboundRoute(EAST, FLIGHTS.uuid, "default", 1)])
    route = Route(sending)

    def noted(t: int) -> None:
        streams = tuple((StreamId(wal(number), FLIGHTS.uuid, "default"), 0) for number in range(60))
        sending.registration.register([replace(route.group(), notices=((EAST, ClosedNotice(t, streams)),))])

    assert sending.time.may_note(EAST, 60) and not sending.time.may_note(EAST, 101)
    noted(10)
    assert sending.time.may_note(EAST, 40) and not sending.time.may_note(EAST, 41)
    with pytest.raises(NoSpaceError, match="more than 100 streams"):
        noted(20)
    assert sending.time.announced(EAST).t == 10 and sending.time.may_note(NORTH, 100)
    route.land(*(claims(StreamId(wal(number), FLIGHTS.uuid, "default"), 0, 1, 0) for number in range(60)))
    applied(sending, FLIGHTS, {route.file: route.at})
    sending.registration.register([replace(route.group(), notices=((EAST, ClosedNotice(11, ())),))])
    assert sending.time.may_note(EAST, 60), "the first is dropped once it is reached"
    noted(20)
    assert sending.time.replicated()[EAST].t == 20


@pytest.mark.heavy
def test_notices_of_more_wals_than_one_could_list_once_are_joined(sending: Ledger) -> None:
    first = [StreamId(FileId(EAST, "h0", n), FLIGHTS.uuid, "default") for n in range(70_000)]
    note_closed(sending, EAST, ClosedNotice(10, tuple((s, 0) for s in first[:35_000])))
    note_closed(sending, EAST, ClosedNotice(10, tuple((s, 0) for s in first[35_000:])))
    assert _largest_notice(sending) > 70_000


def test_a_stream_of_the_system_table_is_never_required(sending: Ledger) -> None:
    note_closed(sending, EAST, ClosedNotice(10, ((StreamId(wal(), NIL_UUID, ""), 5),)))
    assert sending.time.replicated()[EAST] == Replicated(10)


def _largest_notice(ledger: Ledger) -> int:
    real = getattr(ledger, "_real", ledger)
    with real._store.read() as connection:
        return int(connection.scalar(sa.select(sa.func.max(sa.func.length(schema.notices.c.payload)))))
