"""The ledger's contract: files written for bootstraps, and what is claimed when one is received."""

from __future__ import annotations

import pytest

from replication.core.coverage import Interval, Ranges, conflict
from replication.core.ids import ClusterId, FileId
from replication.core.routes.bootstrap import Coverage, Purged
from replication.core.routes.carried import InboundRoute
from replication.core.routes.freshness import ClosedNotice
from replication.errors import DivergenceError, MissingFileError, RequestError
from replication.ledger.base import Bootstrap, FileKind, Ledger, Peer, PeerProgress, Phase, Quarantined
from tests.contract.ledger_stores import (
    EAST,
    FLIGHTS,
    FRAME,
    HEADER,
    NORTH,
    WEATHER,
    Route,
    applied,
    claims,
    frame_hash,
    stream,
    wal,
)
from tests.noted import need_bootstrap, note_closed

S = stream(FLIGHTS, wal())
LONG = HEADER + 1000


def interval(begin: int, end: int, history: str = "") -> Interval:
    return Interval(begin, end, frame_hash(S, begin - 1, history), frame_hash(S, end - 1, history))


def coverage(*intervals: Interval) -> Coverage:
    return Coverage.of(FLIGHTS.uuid, "default", {wal(): intervals})


def begin(ledger: Ledger) -> Bootstrap:
    ledger.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", 0, bootstrap=True)
    (wanted,) = ledger.bootstraps.wanted()
    return wanted


def received(ledger: Ledger) -> FileId:
    """A landing file of a bootstrap, in which nothing is registered but bytes."""
    file = ledger.files.allocate("h0", FileKind.BOOTSTRAP, "/data/landing", "boot", source=wal(9)).file
    own = stream(FLIGHTS, wal(9))
    ledger.registration.register_own(file, HEADER, HEADER + 2 * FRAME, claims(own, 0, 2, HEADER))
    return file


def test_a_file_is_written_for_one_peer_and_table_and_held_until_applied_there(sending: Ledger) -> None:
    wanted = begin(sending)
    assert (wanted.peer, wanted.table, wanted.groups, wanted.file, wanted.waits_for) == (
        "north",
        FLIGHTS.uuid,
        ("default",),
        None,
        "",
    )
    sending.rules.enable("north", WEATHER.uuid, ["first"], "ops.weather", 0)
    row = sending.bootstraps.begin_file(wanted, "h0", "/data/wal", "boot")
    assert (row.kind, row.peer, row.closed) == (FileKind.BOOTSTRAP, "north", False)
    sending.bootstraps.finish_file(row.file, LONG)
    (again,) = sending.bootstraps.wanted()
    assert again.file is not None and (again.file.length, again.file.closed) == (LONG, True)
    ((_, rule, status),) = [found for found in sending.files.statuses() if found[0] == row.file]
    assert (rule.table, status.remaining) == (FLIGHTS.uuid, LONG - HEADER)
    assert sending.replay.pending() == [] and not sending.bootstraps.is_applied(row.file)
    with pytest.raises(RequestError, match="north lacks"):
        sending.files.retire(row.file, 0)
    sending.files.record([PeerProgress(row.file, "north", Ranges.of((HEADER, LONG)), LONG)])
    assert sending.bootstraps.is_applied(row.file)
    sending.rules.end_bootstrap("north", FLIGHTS.uuid, again.generation, 0)
    assert sending.bootstraps.wanted() == []
    sending.files.retire(row.file, 0)


def test_a_file_begun_again_replaces_the_one_before(sending: Ledger) -> None:
    wanted = begin(sending)
    old = sending.bootstraps.begin_file(wanted, "h0", "/data/wal", "boot").file
    new = sending.bootstraps.begin_file(wanted, "h0", "/data/wal", "boot").file
    with pytest.raises(MissingFileError):
        sending.bootstraps.finish_file(old, LONG)
    sending.bootstraps.finish_file(new, LONG)
    need_bootstrap(sending, "north", FLIGHTS.uuid)
    with pytest.raises(RequestError, match="begun again"):
        sending.bootstraps.begin_file(wanted, "h0", "/data/wal", "boot")
    assert [row.file for row in sending.files.retirable("h0")] == [new]  # nobody waits for it
    sending.rules.begin_bootstrap("north", FLIGHTS.uuid, 0)
    assert sending.bootstraps.wanted()[0].file is None


def test_a_file_that_was_not_finished_is_let_go_with_the_last_rule_that_waits_for_it(sending: Ledger) -> None:
    wanted = begin(sending)
    sending.rules.enable("north", WEATHER.uuid, ["first", "second"], "ops.weather", 0, bootstrap=True)
    (other,) = [each for each in sending.bootstraps.wanted() if each.table == WEATHER.uuid]
    files = [sending.bootstraps.begin_file(each, "h0", "/data/wal", "boot").file for each in (wanted, other)]
    sending.rules.disable("north", FLIGHTS.uuid, ["default"], 0)
    sending.rules.disable("north", WEATHER.uuid, ["first"], 0)
    assert [row.file for row in sending.files.all()] == files[1:]
    with pytest.raises(MissingFileError):
        sending.bootstraps.finish_file(files[0], LONG)
    sending.bootstraps.finish_file(files[1], LONG)
    sending.rules.delete("north", 0)
    assert [row.file for row in sending.files.retirable("h0")] == files[1:]


def test_a_bootstrap_waits_for_what_was_written_before_it_began(sending: Ledger) -> None:
    route = Route(sending)
    route.land(claims(S, 0, 3, 0))
    assert "own replay" in begin(sending).waits_for
    route.land(claims(S, 3, 4, 0))
    applied(sending, FLIGHTS, {route.file: HEADER + 3 * FRAME})
    assert sending.bootstraps.wanted()[0].waits_for == ""
    assert sending.bootstraps.coverage(FLIGHTS.uuid, ["default"]) == [coverage(interval(0, 3))]
    frame = Quarantined(route.file, HEADER, HEADER + FRAME, FLIGHTS.uuid, "bad", "/copy", 1)
    sending.replay.quarantine(frame, (S, 0))
    assert "quarantined" in sending.bootstraps.wanted()[0].waits_for
    sending.replay.discard(route.file, HEADER, 2)
    assert sending.bootstraps.wanted()[0].waits_for == ""


def test_a_bootstrap_waits_for_a_frame_that_is_tried_again_since_the_peer_is_not_sent_it(sending: Ledger) -> None:
    route = Route(sending)
    route.land(claims(S, 0, 3, 0))
    frame = Quarantined(route.file, HEADER, HEADER + FRAME, FLIGHTS.uuid, "bad", "/copy", 1)
    sending.replay.quarantine(frame, (S, 0))
    applied(sending, FLIGHTS, {route.file: route.at})
    wanted = begin(sending)
    assert "quarantined" in wanted.waits_for
    into = sending.files.allocate("h0", FileKind.LANDING, "/data/landing", "boot", source=wal()).file
    sending.replay.requeue({(route.file, HEADER): claims(S, 0, 1, HEADER)[0]}, into)
    assert "own replay" in sending.bootstraps.wanted()[0].waits_for
    with pytest.raises(RequestError, match="own replay"):
        sending.bootstraps.covered(wanted)
    applied(sending, FLIGHTS, {into: HEADER + FRAME}, 2)
    assert sending.bootstraps.wanted()[0].waits_for == ""
    assert sending.bootstraps.coverage(FLIGHTS.uuid, ["default"]) == [coverage(interval(0, 3))]


@pytest.mark.parametrize("decide", ["discard", "release"])
def test_a_bootstrap_waits_for_lost_writes_that_would_be_duplicates_at_the_peer_once_merged(
    sending: Ledger, decide: str
) -> None:
    sending.rules.define(Peer("east", "zk:2181/east", EAST), 0)
    route = Route(sending)
    route.land(claims(S, 0, 3, 0))
    applied(sending, FLIGHTS, {route.file: HEADER + 3 * FRAME})
    lost = Quarantined(route.file, HEADER, HEADER + FRAME, FLIGHTS.uuid, "late", "/copy", 1, succession="east -> west")
    sending.replay.quarantine(lost, (S, 0))
    wanted = begin(sending)
    assert wanted.waits_for.startswith("lost writes are kept here, which north would miss once they are merged")
    with pytest.raises(RequestError, match="merge or discard them"):
        sending.bootstraps.covered(wanted)
    sending.rules.enable("east", FLIGHTS.uuid, ["default"], "ops.flights", 0, bootstrap=True)
    waits = {each.peer: each.waits_for for each in sending.bootstraps.wanted()}
    assert waits["north"] and not waits["east"], "east wrote them"
    if decide == "discard":
        sending.replay.discard(route.file, HEADER, 2)
    else:
        sending.replay.release(route.file, HEADER)
    assert not any(each.waits_for for each in sending.bootstraps.wanted())


def test_a_file_never_covers_what_the_table_came_to_lack_since_it_was_wanted(sending: Ledger) -> None:
    route = Route(sending)
    route.land(claims(S, 0, 3, 0))
    applied(sending, FLIGHTS, {route.file: HEADER + 3 * FRAME})
    wanted = begin(sending)
    assert wanted.waits_for == "" and sending.bootstraps.covered(wanted) == ([coverage(interval(0, 3))], 1)
    route.land(claims(S, 3, 4, 0))
    bad = HEADER + 3 * FRAME
    sending.replay.quarantine(Quarantined(route.file, bad, bad + FRAME, FLIGHTS.uuid, "bad", "/copy", 1), (S, 3))
    applied(sending, FLIGHTS, {route.file: bad + FRAME}, commit=2)
    with pytest.raises(RequestError, match="the table has 1 quarantined frame here"):
        sending.bootstraps.covered(wanted)
    sending.replay.discard(route.file, bad, 2)
    assert sending.bootstraps.covered(wanted)[1] == 2
    sending.replay.rewind(FLIGHTS.uuid, {route.file: HEADER + FRAME})
    with pytest.raises(RequestError, match="own replay has not applied"):
        sending.bootstraps.covered(wanted)


def test_a_discarded_frame_is_not_covered_so_that_the_next_bootstrap_brings_it_after_a_retry(sending: Ledger) -> None:
    route = Route(sending)
    route.land(claims(S, 0, 3, 0))
    bad = HEADER + FRAME
    sending.replay.quarantine(Quarantined(route.file, bad, bad + FRAME, FLIGHTS.uuid, "bad", "/copy", 1), (S, 1))
    applied(sending, FLIGHTS, {route.file: route.at})
    sending.replay.discard(route.file, bad, 2)
    wanted = begin(sending)
    ((without, *_), _) = sending.bootstraps.covered(wanted)
    assert without.sequences() == {S: Ranges.of((0, 1), (2, 3))}
    into = sending.files.allocate("h0", FileKind.LANDING, "/data/landing", "boot", source=wal()).file
    sending.replay.requeue({(route.file, bad): claims(S, 1, 2, HEADER)[0]}, into)
    applied(sending, FLIGHTS, {into: HEADER + FRAME}, 2)
    ((whole, *_), _) = sending.bootstraps.covered(wanted)
    assert whole.sequences() == {S: Ranges.of((0, 3))}


def test_rows_of_a_damaged_frame_that_came_again_after_it_was_discarded_are_covered(sending: Ledger) -> None:
    route, again = Route(sending), Route(sending, source=wal(5))
    route.land(claims(S, 0, 3, 0))
    bad = HEADER + FRAME
    sending.replay.quarantine(Quarantined(route.file, bad, bad + FRAME, FLIGHTS.uuid, "damaged", "/copy", 1), (S, 1))
    applied(sending, FLIGHTS, {route.file: route.at})
    sending.replay.discard(route.file, bad, 2, claims(S, 1, 2, bad)[0])
    again.land(claims(S, 1, 2, 0))
    applied(sending, FLIGHTS, {again.file: again.at}, 2)
    ((whole, *_), _) = sending.bootstraps.covered(begin(sending))
    assert whole.sequences() == {S: Ranges.of((0, 3))}


def test_adopting_claims_what_nobody_has_and_later_frames_are_duplicates(sending: Ledger) -> None:
    route = Route(sending)
    route.land(claims(S, 2, 4, 0))
    file = received(sending)
    at = (HEADER + FRAME, HEADER + 2 * FRAME)
    taken = sending.bootstraps.adopt([(file, *at, coverage(interval(0, 6), interval(8, 9)))])
    assert taken == {S: Ranges.of((0, 2), (4, 6), (8, 9))}
    assert sending.bootstraps.adopt([(file, *at, coverage(interval(0, 6), interval(8, 9)))]) == taken
    assert sending.landing.coverage(FLIGHTS.uuid)[S] == Ranges.of((0, 6), (8, 9))
    later = Route(sending, source=wal(5))
    later.land(claims(S, 4, 8, 0))
    (pending,) = [part for part in sending.replay.pending() if part.row.file == later.file]
    assert pending.duplicates == Ranges.of((HEADER, HEADER + 2 * FRAME))
    assert sending.bootstraps.adopt([(file, *at, coverage(interval(0, 6), interval(8, 9)))]) == taken
    applied(sending, FLIGHTS, {file: HEADER + 2 * FRAME})
    (row,) = [row for row in sending.files.all() if row.file == file]
    assert row.applied == row.length


def test_a_bootstrap_of_another_history_is_refused_as_a_whole(sending: Ledger) -> None:
    Route(sending).land(claims(S, 0, 3, 0))
    file = received(sending)
    with pytest.raises(DivergenceError, match="another history"):
        sending.bootstraps.adopt([(file, HEADER + FRAME, HEADER + 2 * FRAME, coverage(interval(0, 3, "other")))])
    with pytest.raises(DivergenceError):
        sending.bootstraps.adopt([(file, HEADER + FRAME, HEADER + 2 * FRAME, coverage(interval(3, 5, "other")))])
    assert sending.landing.coverage(FLIGHTS.uuid)[S] == Ranges.of((0, 3))


def test_adopting_very_many_spans_again_compares_each_with_those_around_it_only(
    sending: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a cluster whose ledger was rebuilt: other writes wait meanwhile."""
    compared: list[Interval] = []
    monkeypatch.setattr(
        "replication.ledger.sql.parts.bootstraps.conflict", lambda one, two: compared.append(one) or conflict(one, two)
    )
    file, many = received(sending), coverage(*(interval(2 * n, 2 * n + 1) for n in range(500)))
    taken = sending.bootstraps.adopt([(file, HEADER + FRAME, HEADER + 2 * FRAME, many)])
    assert taken == many.sequences()
    assert sending.bootstraps.adopt([(file, HEADER + FRAME, HEADER + 2 * FRAME, many)]) == taken
    assert len(compared) == 500


def test_replicated_time_does_not_rise_while_a_sender_bootstraps_or_has_lost_rows(ledger: Ledger) -> None:
    ledger.tables.create(FLIGHTS)
    note_closed(ledger, EAST, ClosedNotice(50, ()))

    def now() -> tuple[int, str]:
        found = ledger.time.replicated(FLIGHTS.uuid)[EAST]
        return found.t, found.held_by

    def declare(source: ClusterId, generation: int, phase: Phase) -> None:
        ledger.landing.declare_routes([InboundRoute(source, FLIGHTS.uuid, "default", generation, phase=phase)])

    for phase, expected in (
        (Phase.BOOTSTRAPPING, (0, f"table {FLIGHTS.uuid} is being bootstrapped from east")),
        (Phase.LIVE, (50, "")),
        (Phase.BOOTSTRAPPING, (50, "")),  # an older word of the same generation
    ):
        declare(EAST, 1, phase)
        assert now() == expected
    declare(EAST, 1, Phase.NEEDS_BOOTSTRAP)
    assert now()[0] == 0 and "walship bootstrap" in now()[1]
    declare(EAST, 2, Phase.BOOTSTRAPPING)
    declare(EAST, 2, Phase.LIVE)
    assert now() == (50, "")
    declare(NORTH, 1, Phase.BOOTSTRAPPING)
    ledger.landing.close_route(NORTH, FLIGHTS.uuid, "default", 1)
    assert now() == (50, "")


def test_what_is_forgotten_is_kept_by_table_and_never_less(ledger: Ledger) -> None:
    assert not ledger.bootstraps.purged(FLIGHTS.uuid)
    for since, before in ((0, 9), (3, 5), (2, 0)):
        ledger.bootstraps.note_purged(FLIGHTS.uuid, Purged(since, before))
    assert ledger.bootstraps.purged(FLIGHTS.uuid) == Purged(3, 9)
    assert ledger.bootstraps.purged(WEATHER.uuid) == Purged()
