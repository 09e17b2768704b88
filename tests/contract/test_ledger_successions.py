"""The ledger's contract: successions, the cut of a failover, and what an ended origin no longer holds up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replication.core.coverage import Ranges
from replication.core.ids import StreamId
from replication.core.routes.carried import Carried, InboundRoute
from replication.core.routes.freshness import ClosedNotice
from replication.core.succession import Succession
from replication.errors import SuccessionError
from replication.ledger.base import Ledger, Peer, Quarantined
from replication.ledger.sql.parts import successions
from tests.contract.ledger_stores import (
    EAST,
    FRAME,
    HEADER,
    NORTH,
    WEST,
    Route,
    Stores,
    applied,
    claims,
    own_wal,
    stream,
    table,
    wal,
)
from tests.noted import note_closed

FLIGHTS = table()
S = stream(FLIGHTS, wal())
PLANNED = Succession(EAST, WEST, 2, 7, is_planned=True)
HOURS_LATER = 9_000_000_000  # a landed file is kept for an hour past its source's closed time


def landed(ledger: Ledger, frames: int = 3) -> Route:
    """Frames of east's, of which it announced two more."""
    ledger.tables.create(FLIGHTS)
    made = Route(ledger)
    ledger.landing.declare_routes([InboundRoute(EAST, FLIGHTS.uuid, "default", 1)])
    made.land(claims(S, 0, frames, 0))
    applied(ledger, FLIGHTS, {made.file: made.at})
    note_closed(ledger, EAST, ClosedNotice(10, ((S, frames - 1),)))
    note_closed(ledger, EAST, ClosedNotice(20, ((S, frames + 1),)))
    return made


def test_a_succession_is_kept_by_every_process_and_refuses_the_origins_older_epochs(
    stores: Stores, ledger: Ledger
) -> None:
    assert ledger.successions.known().all == ()
    assert ledger.successions.record(PLANNED) == PLANNED
    assert ledger.successions.record(PLANNED) == PLANNED
    assert stores.another().successions.known().all == (PLANNED,)
    assert ledger.landing.keep_epoch(EAST, 1) == 2


def test_a_second_successor_for_one_epoch_is_refused(ledger: Ledger) -> None:
    ledger.successions.record(PLANNED)
    with pytest.raises(SuccessionError):
        ledger.successions.record(Succession(EAST, NORTH, 2, 9, is_planned=True))
    with pytest.raises(SuccessionError):
        ledger.successions.take_over(EAST, WEST, 2, 9).joined(Succession(EAST, NORTH, 2, 9, is_planned=False))
    assert ledger.successions.known().all == (PLANNED,)


def test_a_succession_that_its_origin_cancelled_is_not_accepted_and_one_that_happened_cannot_be_cancelled(
    ledger: Ledger,
) -> None:
    assert ledger.successions.cancel(EAST, 2)
    with pytest.raises(SuccessionError, match="cancelled"):
        ledger.successions.accept(PLANNED)
    assert ledger.successions.known().all == ()
    later = Succession(EAST, WEST, 4, 8, is_planned=True)
    assert ledger.successions.accept(later) == ledger.successions.accept(later) == later
    assert not ledger.successions.cancel(EAST, 4)


def test_the_cut_of_a_failover_is_what_has_landed_and_what_lands_later_is_beyond_it(ledger: Ledger) -> None:
    made = landed(ledger)
    taken = ledger.successions.take_over(EAST, WEST, 2, 9)
    assert dict(taken.cut) == {S: Ranges.of((0, 3))}
    made.land(claims(S, 3, 5, 3 * FRAME))
    assert ledger.successions.take_over(EAST, WEST, 2, 11) == taken


def test_the_cut_of_a_failover_can_be_less_than_what_has_landed(ledger: Ledger) -> None:
    landed(ledger)
    seen = ledger.time.seen()
    other = stream(FLIGHTS, wal(1))
    taken = ledger.successions.take_over(EAST, WEST, 2, 1, 10, {S: Ranges.of((0, 2), (7, 9)), other: Ranges.of((0, 1))})
    assert dict(taken.cut) == {S: Ranges.of((0, 2))}
    # Between what has landed and what is written next rows can be restated, and then lost ones be written again.
    assert ledger.time.seen() == seen + 2
    ledger.successions.take_over(EAST, WEST, 4, seen + 500)
    assert ledger.time.seen() == seen + 500, "what is written next wins over lost writes, though that clock was ahead"


@pytest.mark.parametrize("is_told", [True, False])
def test_all_that_has_landed_counts_of_tables_whose_rows_cannot_be_taken_back(ledger: Ledger, is_told: bool) -> None:
    landed(ledger)
    spec = table("ops.log", 2) if is_told else replace(table("ops.log", 2), key=())
    ledger.tables.create(spec)
    log = stream(spec, wal())
    ledger.landing.declare_routes([InboundRoute(EAST, spec.uuid, "default", 2)])
    Route(ledger, wal(5)).land(claims(log, 0, 2, 0))
    within = {S: Ranges.of((0, 2))}  # nothing had landed of the other one
    taken = ledger.successions.take_over(EAST, WEST, 2, 9, 1, within, {spec.uuid} if is_told else ())
    assert dict(taken.cut) == {**within, log: Ranges.of((0, 2))}


def retired(ledger: Ledger, number: int, commit: int) -> StreamId:
    """A stream of another WAL of east's that landed, was applied, and whose file was deleted."""
    made, of = Route(ledger, wal(number)), stream(FLIGHTS, wal(number))
    made.land(claims(of, 0, 2, 0, commit=commit))
    ledger.files.close(made.file, made.at)
    applied(ledger, FLIGHTS, {made.file: made.at}, commit=number)
    ledger.files.retire(made.file, 0)
    return of


def test_a_cut_lists_no_stream_that_ended_before_everything_had_landed(ledger: Ledger) -> None:
    landed(ledger)
    assert ledger.time.landed(EAST).t == 10
    old, late = (retired(ledger, number, commit) for number, commit in ((7, 10), (8, HOURS_LATER)))
    assert dict(ledger.successions.coverage_after(EAST, 0)) == {S: Ranges.of((0, 3)), late: Ranges.of((0, 2))}
    assert set(ledger.successions.coverage_after(EAST, 9)) == {S, old, late}
    taken = ledger.successions.take_over(EAST, WEST, 2, HOURS_LATER)
    assert dict(taken.cut) == {S: Ranges.of((0, 3)), late: Ranges.of((0, 2))}
    assert dict(taken.complete_upto) == {FLIGHTS.uuid: 10}
    assert taken.counts(old, 5, 10) and not taken.counts(old, 5, 11)
    assert ledger.successions.landed_beyond(taken) == 0


def test_a_cut_lists_no_ended_stream_of_a_dropped_table(ledger: Ledger) -> None:
    landed(ledger)
    old, late = (retired(ledger, number, commit) for number, commit in ((7, 20), (8, HOURS_LATER)))
    ledger.tables.drop(FLIGHTS.uuid)
    assert set(ledger.successions.coverage_after(EAST, 0)) == {S, late}
    taken = ledger.successions.take_over(EAST, WEST, 2, HOURS_LATER)
    assert set(taken.cut) == {S, late} and taken.counts(old, 1, 20)


def test_of_very_many_streams_beyond_a_cut_some_are_counted(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(successions, "_BEYOND_MAX", 1)
    ledger.tables.create(FLIGHTS)
    for number in (7, 8):
        retired(ledger, number, 10)
    known = ledger.successions.record(Succession(EAST, NORTH, 2, 7, is_planned=False))
    assert ledger.successions.landed_beyond(known) == 2


def test_a_third_cluster_counts_beyond_a_cut_what_is_later_and_not_listed(ledger: Ledger) -> None:
    made = landed(ledger)
    made.land(claims(S, 3, 5, 0, commit=HOURS_LATER))
    retired(ledger, 7, 10)
    late = retired(ledger, 8, HOURS_LATER)
    cut, complete = {S: Ranges.of((0, 3))}, {FLIGHTS.uuid: 10}
    known = Succession(EAST, NORTH, 2, 7, is_planned=False, cut=cut, complete_upto=complete)
    assert ledger.successions.landed_beyond(ledger.successions.record(known)) == 2 + 2
    assert ledger.successions.landed_beyond(replace(known, cut={**cut, late: Ranges.of((0, 2))})) == 2


def test_a_third_cluster_counts_nothing_beyond_a_cut_of_an_open_file_with_nothing_later(ledger: Ledger) -> None:
    """The successor's file is CLOSED, so that its cut does not list the stream."""
    landed(ledger)
    known = Succession(EAST, NORTH, 2, 7, is_planned=False, complete_upto={FLIGHTS.uuid: 10})
    assert ledger.successions.landed_beyond(ledger.successions.record(known)) == 0


def test_a_cut_at_a_time_up_to_which_not_everything_is_here_is_refused(ledger: Ledger) -> None:
    landed(ledger)
    with pytest.raises(SuccessionError, match="not everything that east committed up to 1970.* is here now"):
        ledger.successions.take_over(EAST, WEST, 2, 9, 11, {})
    assert ledger.successions.known().all == ()


def test_what_has_landed_of_an_origin_is_known_before_it_is_applied(ledger: Ledger) -> None:
    made = landed(ledger)
    made.land(claims(S, 3, 5, 3 * FRAME))
    assert ledger.time.landed(EAST).t == 20
    assert ledger.time.replicated(FLIGHTS.uuid)[EAST].t == 10


def test_tombstones_wait_for_a_lost_cluster_where_its_successor_passes_on_what_it_may_return_with(
    ledger: Ledger,
) -> None:
    landed(ledger)

    def waits() -> bool:
        return EAST in ledger.time.replicated(FLIGHTS.uuid, every_origin=True)

    route = InboundRoute(NORTH, FLIGHTS.uuid, "default", 1, carried=(Carried(EAST, (EAST, NORTH)),))
    ledger.landing.declare_routes([route])
    ledger.successions.take_over(EAST, WEST, 2, 9)
    assert not waits(), "this cluster took over, and let go of it"
    ledger.successions.record(Succession(EAST, NORTH, 3, 12, is_planned=False))
    assert waits()
    ledger.landing.declare_routes([replace(route, generation=2, carried=())])
    assert not waits()


def test_an_ended_origin_holds_up_no_replicated_time_once_its_rows_are_applied(ledger: Ledger) -> None:
    landed(ledger)
    assert ledger.time.replicated(FLIGHTS.uuid)[EAST].t == 10  # what it announced later has not come
    ledger.successions.take_over(EAST, WEST, 2, 9)
    assert set(ledger.time.replicated(FLIGHTS.uuid)) == {WEST}
    assert set(ledger.time.replicated_by_table()[FLIGHTS.uuid]) == {WEST}
    assert set(ledger.time.replicated(FLIGHTS.uuid, every_origin=True)) == {WEST}
    ledger.rules.define(Peer("east", "zk:2181/x", EAST), ledger.terms.current())
    lost = ledger.time.replicated(FLIGHTS.uuid, every_origin=True)[EAST]
    assert lost.t == 10, "tombstones wait for what it may return with"
    ledger.successions.record(Succession(WEST, EAST, 3, 12, is_planned=True))
    assert EAST in ledger.time.replicated(FLIGHTS.uuid)  # it originates again


def test_what_an_origin_announced_is_known_after_it_is_gone(ledger: Ledger) -> None:
    landed(ledger)
    assert ledger.time.announced(EAST) == ClosedNotice(20, ((S, 4),))
    assert ledger.time.announced(NORTH).t == 0


def test_a_lost_write_counts_as_applied_holds_nothing_up_and_is_not_visible(stores: Stores, ledger: Ledger) -> None:
    made = landed(ledger)
    lost = Quarantined(made.file, HEADER, HEADER + FRAME, FLIGHTS.uuid, "later", "/q", 7, succession=str(PLANNED))
    ledger.replay.quarantine(lost, (S, 0))
    assert ledger.time.replicated(FLIGHTS.uuid)[EAST].t == 10
    assert [frame.succession for frame in ledger.replay.quarantined()] == [str(PLANNED)]
    reached = ledger.time.reached({S: 2})[S]
    assert reached.applied and not reached.visible
    assert reached.held_by.startswith("lost writes (walship lostwrites list)")
    ledger.replay.discard(made.file, HEADER, 99)
    assert ledger.time.reached({S: 2})[S] == reached
    ledger.replay.release(made.file, HEADER)
    assert ledger.time.reached({S: 2})[S].visible, "merged: its rows were written again"
    assert ledger.replay.quarantined() == []
    for succession, released in ((PLANNED, [replace(lost, discarded=99)]), (replace(PLANNED, epoch=20), [])):
        assert stores.another().replay.released(FLIGHTS.uuid, str(succession)) == released


def test_the_address_of_another_cluster_is_kept(stores: Stores, ledger: Ledger) -> None:
    assert ledger.successions.address(EAST) == ""
    for address in ("a:1/walship/east", "b:1/walship/east", ""):
        ledger.successions.keep_address(EAST, address)
    assert stores.another().successions.address(EAST) == "b:1/walship/east"


@pytest.mark.parametrize("sent", [False, True])
def test_a_lost_cluster_counts_beyond_a_cut_only_tables_that_it_sends(ledger: Ledger, sent: bool) -> None:
    """Of other tables the successor keeps no lost writes that a person could look for there."""
    ledger.tables.create(FLIGHTS)
    own_wal(ledger, 2)
    if sent:
        ledger.rules.define(Peer("north", "zk:2181/x", NORTH), ledger.terms.current())
        ledger.rules.enable("north", FLIGHTS.uuid, ["default"], FLIGHTS.name, ledger.terms.current())
    known = ledger.successions.record(Succession(WEST, NORTH, 2, 7, is_planned=False))
    assert ledger.successions.landed_beyond(known) == (2 if sent else 0)
