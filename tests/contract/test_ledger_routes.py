"""Routes through several clusters: what they require, what is reached by whatever route, what need not go on."""

from __future__ import annotations

from uuid import UUID

import pytest

from replication.core.coverage import Ranges
from replication.core.ids import StreamId
from replication.core.routes.carried import Carried, InboundRoute, as_seen
from replication.core.routes.freshness import ClosedNotice, Reach, Replicated
from replication.core.routes.required import RequiredFrom
from replication.ledger.base import Claim, Ledger, Quarantined, Readable
from tests.contract.ledger_stores import EAST, FRAME, HEADER, NORTH, Route, applied, claims, stream, table, wal
from tests.noted import note_closed

FLIGHTS = table()
FAR = wal(0, NORTH)
S = StreamId(FAR, FLIGHTS.uuid, "default")


@pytest.fixture(autouse=True)
def flights(ledger: Ledger) -> None:
    ledger.tables.create(FLIGHTS)


def declare(ledger: Ledger, generation: int, carried: tuple[Carried, ...] = (), required_from: int = 0) -> None:
    ledger.landing.declare_routes(
        [
            InboundRoute(
                EAST, FLIGHTS.uuid, "default", generation, {FAR: required_from} if required_from else {}, {}, carried
            )
        ]
    )


THROUGH = Carried(NORTH, (NORTH, EAST))


def test_a_route_is_kept_as_declared_and_declared_anew_while_it_is_open(ledger: Ledger) -> None:
    declare(ledger, 3)
    declare(ledger, 3, (Carried(NORTH, (NORTH, EAST), 55),), required_from=7)
    (route,) = ledger.landing.routes()
    assert (route.source, route.table, route.group, route.generation) == (EAST, FLIGHTS.uuid, "default", 3)
    assert route.carried == (Carried(NORTH, (NORTH, EAST), 55),) and route.required_from == {FAR: 7}
    assert as_seen([route], ledger.landing.last_seen())[0].last_seen > 0
    declare(ledger, 2)
    assert ledger.landing.routes() == [route]
    ledger.landing.close_route(EAST, FLIGHTS.uuid, "default", 3)
    declare(ledger, 3, (THROUGH,))
    assert ledger.landing.routes() == []
    declare(ledger, 4)
    assert [each.generation for each in ledger.landing.routes()] == [4]


def test_only_routes_that_bring_an_origin_require_its_sequences(ledger: Ledger) -> None:
    declare(ledger, 1)
    note_closed(ledger, NORTH, ClosedNotice(10, ((S, 4),)))
    assert ledger.time.replicated()[NORTH] == Replicated(10)
    declare(ledger, 1, (THROUGH,), required_from=3)
    found = ledger.time.replicated()[NORTH]
    assert found.t == 0 and "not arrived: sequences [3, 5)" in found.held_by


def test_nothing_is_required_of_wals_that_had_ended(ledger: Ledger) -> None:
    required = RequiredFrom({wal(1): 2}, [wal(3)])
    ledger.landing.declare_routes([InboundRoute(EAST, FLIGHTS.uuid, "default", 1, required)])
    assert [route.required_from for route in ledger.landing.routes()] == [required]
    ended, listed, later = (stream(FLIGHTS, wal(number)) for number in (2, 1, 3))
    note_closed(ledger, EAST, ClosedNotice(10, ((ended, 4), (listed, 1))))
    assert ledger.time.replicated()[EAST] == Replicated(10)
    reached = ledger.time.reached({ended: 4})[ended]
    assert not reached.durable and "before a route brought it" in reached.held_by
    note_closed(ledger, EAST, ClosedNotice(20, ((later, 0),)))
    assert ledger.time.replicated()[EAST].t == 10


def test_what_is_reached_does_not_depend_on_the_route(ledger: Ledger) -> None:
    nothing = ledger.time.reached({S: 4})[S]
    assert nothing == Reach(False, False, False, nothing.held_by, comes=False) and "no open route" in nothing.held_by
    declare(ledger, 1, (THROUGH,), required_from=2)
    early = ledger.time.reached({S: 1})[S]
    assert not early.durable and early.comes and "before a route brought it" in early.held_by
    assert "not arrived: sequences [2, 5)" in ledger.time.reached({S: 4})[S].held_by
    one, two = Route(ledger), Route(ledger, wal(1))
    one.land(claims(S, 2, 4, 0))
    two.land(claims(S, 3, 5, 0))
    landed = ledger.time.reached({S: 4})[S]
    assert (landed.durable, landed.applied, landed.visible) == (True, False, False)
    ledger.replay.quarantine(
        Quarantined(two.file, HEADER + FRAME, HEADER + 2 * FRAME, FLIGHTS.uuid, "bad", "/q", 1), (S, 4)
    )
    applied(ledger, FLIGHTS, {one.file: one.at, two.file: two.at})
    kept_out = ledger.time.reached({S: 4})[S]
    assert (kept_out.durable, kept_out.applied, kept_out.visible) == (True, True, False)
    assert ledger.time.reached({S: 3})[S] == Reach(True, True, True)
    ledger.tables.drop(FLIGHTS.uuid)
    gone = f"ops.flights was dropped on {ledger.cluster.name}"
    assert ledger.time.reached({S: 3})[S] == Reach(False, False, False, gone, comes=False, dropped=True)


def test_more_tables_than_a_statement_takes_are_asked_about_at_once(ledger: Ledger) -> None:
    declare(ledger, 1)
    own = StreamId(wal(0), FLIGHTS.uuid, "default")
    Route(ledger).land(claims(own, 0, 2, 0))
    unknown = {StreamId(FAR, UUID(int=number), "default"): 0 for number in range(1, 70_000)}
    found = ledger.time.reached({own: 1, **unknown})
    assert found[own].durable and found[own].comes and not any(found[each].comes for each in unknown)


def test_frames_that_are_claimed_elsewhere_are_duplicates_until_their_sender_lost_something(ledger: Ledger) -> None:
    one, two = Route(ledger), Route(ledger, wal(1))
    one.land(claims(S, 0, 2, 0))
    mixed: tuple[Claim, ...] = claims(S, 0, 3, 0)
    two.land(mixed)
    end = HEADER + 3 * FRAME
    assert ledger.landing.duplicates(one.file, HEADER, end) == Ranges()
    assert ledger.landing.duplicates(two.file, HEADER, end) == Ranges.of((HEADER, HEADER + 2 * FRAME))
    assert ledger.landing.duplicates(two.file, HEADER + 2 * FRAME, end) == Ranges()
    ledger.files.close(one.file, one.at)
    term = ledger.terms.raise_to_next()
    again = ledger.salvage.carry_out(one.file, term, Readable(0)).again
    assert again
    later = Route(ledger)
    later.land(claims(S, 0, 3, 0))
    assert ledger.landing.duplicates(later.file, HEADER, end) == Ranges(), "a cluster after this one may lack them"


def test_what_a_source_ever_carried_is_remembered(ledger: Ledger) -> None:
    declare(ledger, 3, (THROUGH,))
    declare(ledger, 3)
    assert ledger.landing.carried_by(EAST) == {NORTH} and ledger.landing.carried_by(NORTH) == frozenset()
