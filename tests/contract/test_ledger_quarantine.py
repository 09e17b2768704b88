"""The ledger's contract: quarantined frames that a person has tried again or discards."""

from __future__ import annotations

import pytest

from replication.core.coverage import Ranges
from replication.core.ids import FileId
from replication.core.routes.carried import InboundRoute
from replication.core.routes.freshness import ClosedNotice, Reach
from replication.errors import ClosedFileError, RequestError
from replication.ledger.base import Claim, FileKind, Ledger, Quarantined
from tests.contract.ledger_stores import EAST, FRAME, HEADER, Route, applied, claims, stream, table, wal
from tests.noted import note_closed

FLIGHTS = table()
S = stream(FLIGHTS, wal())
BAD = HEADER + FRAME


@pytest.fixture
def route(ledger: Ledger) -> Route:
    """Four frames of one registration landed and applied, but for the second, which is quarantined."""
    ledger.tables.create(FLIGHTS)
    made = Route(ledger)
    ledger.landing.declare_routes([InboundRoute(EAST, FLIGHTS.uuid, "default", 1)])
    made.land(claims(S, 0, 4, 0))
    ledger.replay.quarantine(
        Quarantined(made.file, BAD, BAD + FRAME, FLIGHTS.uuid, "unknown schema", "/q/1", 7), (S, 1)
    )
    applied(ledger, FLIGHTS, {made.file: made.at})
    note_closed(ledger, EAST, ClosedNotice(10, ((S, 3),)))
    return made


def copy_of(sequence: int, history: str = "") -> Claim:
    return claims(S, sequence, sequence + 1, HEADER, history)[0]


def landing(ledger: Ledger) -> FileId:
    return ledger.files.allocate("h0", FileKind.LANDING, "/data/landing", "boot", source=wal()).file


def test_a_quarantined_frame_holds_replicated_time_is_named_there_and_counts_as_applied(
    ledger: Ledger, route: Route
) -> None:
    reached = ledger.time.replicated(FLIGHTS.uuid)[EAST]
    assert reached.t == 0 and "quarantined (walship quarantine list)" in reached.held_by
    assert ledger.replay.pending() == []
    assert ledger.landing.applied_prefix([wal()]) == {wal(): route.at}


def test_a_discarded_frame_holds_nothing_and_stays_on_record(ledger: Ledger, route: Route) -> None:
    ledger.replay.discard(route.file, BAD, 99)
    ledger.replay.discard(route.file, BAD, 100)
    assert ledger.time.replicated(FLIGHTS.uuid)[EAST].t == 10
    (frame,) = ledger.replay.quarantined()
    assert (frame.discarded, frame.copy, frame.reason) == (99, "/q/1", "unknown schema")
    with pytest.raises(RequestError, match="no frame at offset 256 of .* is quarantined"):
        ledger.replay.discard(route.file, HEADER, 99)


def test_a_discarded_frame_is_applied_but_not_visible_until_it_is_tried_again(ledger: Ledger, route: Route) -> None:
    held = ledger.time.reached({S: 3})[S]
    assert held.applied and not held.visible and held.held_by.startswith("quarantined (walship quarantine list)")
    ledger.replay.discard(route.file, BAD, 99)
    gone = ledger.time.reached({S: 3})[S]
    assert gone.applied and not gone.visible and gone.held_by.startswith("discarded (walship quarantine list)")
    into = landing(ledger)
    ledger.replay.requeue({(route.file, BAD): copy_of(1)}, into)
    waits = ledger.time.reached({S: 3})[S]
    assert not waits.applied and "landed but not applied: sequences [1, 2)" in waits.held_by
    applied(ledger, FLIGHTS, {into: HEADER + FRAME}, 2)
    assert ledger.time.reached({S: 3})[S] == Reach(True, True, True)


@pytest.mark.parametrize("retired", [False, True], ids=["its file is there", "its file is retired"])
@pytest.mark.parametrize("discarded", [False, True], ids=["held", "discarded before"])
def test_a_frame_that_is_tried_again_is_pending_once_and_alone(
    ledger: Ledger, route: Route, retired: bool, discarded: bool
) -> None:
    if retired:
        ledger.files.close(route.file, route.at)
        ledger.files.retire(route.file, 0)
    if discarded:
        ledger.replay.discard(route.file, BAD, 99)
    into = landing(ledger)
    ledger.replay.requeue({(route.file, BAD): copy_of(1)}, into)
    (pending,) = ledger.replay.pending()
    assert (pending.row.file, pending.begin, pending.end) == (into, HEADER, HEADER + FRAME)
    assert pending.row.closed and not pending.duplicates
    assert ledger.replay.quarantined() == []
    assert "landed but not applied: sequences [1, 2)" in ledger.time.replicated(FLIGHTS.uuid)[EAST].held_by
    applied(ledger, FLIGHTS, {into: HEADER + FRAME}, 2)
    assert ledger.time.replicated(FLIGHTS.uuid)[EAST].t == 10
    assert ledger.landing.coverage() == {S: Ranges.of((0, 4))}
    again = Route(ledger, source=wal(1))
    again.land(claims(S, 0, 4, 0))
    assert ledger.replay.pending() == [], "all of it is known"
    with pytest.raises(RequestError, match="is quarantined"):
        ledger.replay.requeue({(route.file, BAD): copy_of(1)}, landing(ledger))


def test_frames_that_are_tried_again_together_are_pending_in_one_file(ledger: Ledger, route: Route) -> None:
    later = BAD + FRAME
    ledger.replay.quarantine(Quarantined(route.file, later, later + FRAME, FLIGHTS.uuid, "bad too", "/q/2", 8), (S, 2))
    into = landing(ledger)
    first, second = claims(S, 1, 3, HEADER)
    with pytest.raises(RequestError, match="is quarantined"):
        ledger.replay.requeue({(route.file, BAD): first, (route.file, later + FRAME): second}, into)
    assert len(ledger.replay.quarantined()) == 2, "all of them, or none"
    ledger.replay.requeue({(route.file, BAD): first, (route.file, later): second}, into)
    (pending,) = ledger.replay.pending()
    assert (pending.row.file, pending.end) == (into, HEADER + 2 * FRAME) and ledger.replay.quarantined() == []
    applied(ledger, FLIGHTS, {into: pending.end}, 2)
    assert ledger.landing.coverage() == {S: Ranges.of((0, 4))}


def test_a_replay_that_comes_by_again_passes_over_a_frame_that_moved(ledger: Ledger, route: Route) -> None:
    ledger.replay.requeue({(route.file, BAD): copy_of(1)}, landing(ledger))
    ledger.replay.rewind(FLIGHTS.uuid, {route.file: HEADER})
    (old,) = [pending for pending in ledger.replay.pending() if pending.row.file == route.file]
    assert old.duplicates == Ranges.of((BAD, BAD + FRAME))


def test_what_must_not_be_tried_again_is_refused_and_changes_nothing(ledger: Ledger, route: Route) -> None:
    other = Route(ledger, source=wal(1))
    group = other.group(claims(S, 2, 3, 0, "astray"))
    ledger.registration.register([group])
    at = group.begin
    ledger.replay.quarantine(Quarantined(other.file, at, at + FRAME, FLIGHTS.uuid, "divergence", "/q/2", 8), (S, 2))
    with pytest.raises(RequestError, match="another history"):
        ledger.replay.requeue({(other.file, at): copy_of(2, "astray")}, landing(ledger))
    with pytest.raises(RequestError, match="now claimed in another file"):
        ledger.replay.requeue({(route.file, BAD): copy_of(4)}, landing(ledger))
    closed = landing(ledger)
    ledger.files.close(closed, HEADER)
    with pytest.raises(ClosedFileError, match="try again"):
        ledger.replay.requeue({(route.file, BAD): copy_of(1)}, closed)
    assert len(ledger.replay.quarantined()) == 2 and ledger.replay.pending() == []
    assert ledger.landing.coverage() == {S: Ranges.of((0, 4))}


def test_one_of_two_frames_discarded_leaves_the_other_holding(ledger: Ledger, route: Route) -> None:
    later = BAD + FRAME
    ledger.replay.quarantine(Quarantined(route.file, later, later + FRAME, FLIGHTS.uuid, "bad too", "/q/2", 8), (S, 2))
    ledger.replay.discard(route.file, BAD, 99)
    assert ledger.time.replicated(FLIGHTS.uuid)[EAST].t == 0
    ledger.replay.discard(route.file, later, 99)
    assert ledger.time.replicated(FLIGHTS.uuid)[EAST].t == 10


def test_only_the_frame_itself_is_kept_out_of_those_that_came_in_one_message(ledger: Ledger) -> None:
    flights = table(groups=True)
    ledger.tables.create(flights)
    first, second = (stream(flights, wal(), group) for group in ("first", "second"))
    ledger.landing.declare_routes([InboundRoute(EAST, flights.uuid, s.group, 1) for s in (first, second)])
    route = Route(ledger)
    one, other = claims(first, 0, 3, 0), claims(second, 0, 2, 0)
    route.land((one[0], other[0], one[1], other[1], one[2]))
    at = HEADER + 2 * FRAME
    bad = Quarantined(route.file, at, at + FRAME, flights.uuid, "unknown schema", "/q/1", 7)
    ledger.replay.quarantine(bad, (first, 1))
    assert not ledger.time.reached({second: 1})[second].applied
    applied(ledger, flights, {route.file: route.at})
    for _ in range(2):
        assert ledger.time.reached({first: 0})[first] == Reach(True, True, True)
        assert ledger.time.reached({second: 1})[second] == Reach(True, True, True)
        assert not ledger.time.reached({first: 2})[first].visible
        ledger.replay.discard(route.file, at, 99)


def test_a_frame_of_another_history_holds_no_frames_beside_it(ledger: Ledger) -> None:
    flights = table(groups=True)
    ledger.tables.create(flights)
    first, second = (stream(flights, wal(), group) for group in ("first", "second"))
    ledger.landing.declare_routes([InboundRoute(EAST, flights.uuid, s.group, 1) for s in (first, second)])
    route, other = Route(ledger), Route(ledger, source=wal(1))
    route.land(claims(first, 0, 1, 0))
    beside = claims(second, 0, 2, 0)
    (found,) = ledger.registration.register([other.group((beside[0], *claims(first, 0, 1, 0, "astray"), beside[1]))])
    at = found.claim.begin
    bad = Quarantined(other.file, at, at + FRAME, flights.uuid, "divergence", "/q/1", 7)
    ledger.replay.quarantine(bad, (first, 0))
    applied(ledger, flights, {route.file: route.at, other.file: other.at})
    note_closed(ledger, EAST, ClosedNotice(10, ((first, 0), (second, 1))))
    assert ledger.time.replicated(flights.uuid)[EAST].t == 10
