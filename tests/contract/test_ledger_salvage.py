"""The ledger's contract: a landing file that cannot be read is salvaged, and nothing is lost or applied twice by it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from uuid import UUID

import pyarrow as pa
import pytest

from peer.repair.describe import lines
from replication.core.coverage import Ranges
from replication.core.definition.define import typed_table
from replication.core.ids import FileId, StreamId
from replication.core.phase import Phase
from replication.core.routes.carried import InboundRoute
from replication.core.routes.freshness import ClosedNotice
from replication.errors import MissingFileError, RequestError, StaleTermError
from replication.ledger.base import Claim, FileKind, Ledger, PeerProgress, Quarantined, Readable, SalvagePlan
from tests.contract.ledger_stores import EAST, FRAME, HEADER, NORTH, Route, applied, claims, peer, stream, table, wal
from tests.noted import note_closed

FLIGHTS = table()
NUMBERS = (UUID(int=9000 + i) for i in itertools.count())
KEYLESS = typed_table("ops.log", pa.schema([("a", pa.int64())]), [], uuids=NUMBERS)
S, K = stream(FLIGHTS, wal()), stream(KEYLESS, wal())


def at(frames: int) -> int:
    return HEADER + frames * FRAME


@pytest.fixture
def route(ledger: Ledger) -> Route:
    ledger.tables.create(FLIGHTS)
    ledger.tables.create(KEYLESS)
    return Route(ledger)


def close(ledger: Ledger, route: Route) -> Route:
    ledger.files.close(route.file, route.at)
    return route


def copies(ledger: Ledger, *frames: tuple[Claim, ...]) -> tuple[FileId, tuple[Claim, ...]]:
    """An empty landing file and the frames as they lie there."""
    made = Route(ledger)
    return made.file, made.group(*frames).claims


def nothing(route: Route) -> Readable:
    """Of a file that is gone."""
    return Readable(route.at)


def plan(ledger: Ledger, route: Route, *, keeps_tables: bool = True) -> SalvagePlan:
    return ledger.salvage.plan(route.file, nothing(route), keeps_tables=keeps_tables)


def saved_of(plan: SalvagePlan) -> list[tuple[StreamId, int]]:
    return [(claim.stream, claim.sequence) for claim in (*plan.wanted, *plan.elsewhere)]


def pending(ledger: Ledger) -> dict[FileId, int]:
    return {p.row.file: (p.end - p.begin - p.duplicates.total) // FRAME for p in ledger.replay.pending()}


def phases(ledger: Ledger) -> set[Phase]:
    return {rule.phase for rule in ledger.rules.all()}


def test_what_is_applied_stays_and_the_rest_is_needed_again(ledger: Ledger, route: Route) -> None:
    route.land(claims(S, 0, 2, 0))
    route.land(claims(S, 2, 4, 0))
    applied(ledger, FLIGHTS, {route.file: at(2)})
    close(ledger, route)
    assert ledger.salvage.losses([wal()]) == {}
    assert plan(ledger, route).lost == {S: Ranges.of((2, 4))}
    salvaged = ledger.salvage.carry_out(route.file, 0, nothing(route))
    assert salvaged.again == Ranges.of((at(2), at(4))) and salvaged.row.source == wal()
    assert salvaged.lost == {S: Ranges.of((2, 4))} and not saved_of(salvaged)
    assert ledger.landing.coverage() == {S: Ranges.of((0, 2))}
    assert ledger.landing.received(wal()) == Ranges.of((HEADER, at(2)))
    assert ledger.salvage.losses([wal(), wal(7)]) == {wal(): (1, Ranges.of((HEADER, at(2))))}
    assert ledger.landing.applied_prefix([wal()]) == {wal(): at(2)}
    assert ledger.files.get(route.file) is None and pending(ledger) == {}
    anew = Route(ledger)
    anew.land(claims(S, 0, 4, 0))
    assert pending(ledger) == {anew.file: 2}, "what was applied is a duplicate"
    assert ledger.landing.coverage() == {S: Ranges.of((0, 4))}


def test_how_new_the_frames_of_a_salvaged_file_may_be_stays_known(ledger: Ledger, route: Route) -> None:
    ledger.landing.declare_routes([InboundRoute(EAST, FLIGHTS.uuid, "default", 1)])
    route.land(claims(S, 0, 4, 0))
    applied(ledger, FLIGHTS, {route.file: at(3)})
    note_closed(ledger, EAST, ClosedNotice(1, ((S, 1),)))
    close(ledger, route)
    ledger.salvage.carry_out(route.file, 0, Readable(route.at, claims(S, 0, 4, HEADER)[:3]))
    assert ledger.successions.coverage_after(EAST, 0) == {S: Ranges.of((0, 3))}


def test_frames_that_were_copied_are_claimed_there_and_not_asked_for_again(ledger: Ledger, route: Route) -> None:
    route.land(claims(S, 0, 3, 0))
    close(ledger, route)
    into, saved = copies(ledger, claims(S, 0, 3, 0))
    readable = Readable(route.at, claims(S, 0, 3, HEADER))
    salvaged = ledger.salvage.carry_out(route.file, 0, readable, into, saved)
    assert not salvaged.again and saved_of(salvaged) == [(S, 0), (S, 1), (S, 2)] and not salvaged.lost
    assert ledger.salvage.losses([wal()]) == {} and pending(ledger) == {into: 3}
    assert ledger.landing.received(wal()) == Ranges.of((HEADER, at(3)))
    assert ledger.landing.applied_prefix([wal()]) == {wal(): HEADER}, "landed is not applied"
    applied(ledger, FLIGHTS, {into: at(3)})
    assert ledger.landing.applied_prefix([wal()]) == {wal(): at(3)}


def test_a_landed_duplicate_is_named_as_the_place_to_copy_from(ledger: Ledger, route: Route) -> None:
    route.land(claims(S, 0, 3, 0))
    other = Route(ledger, source=wal(1))
    other.land(claims(S, 1, 2, 0))
    close(ledger, route)
    (duplicates,) = ledger.salvage.duplicates(route.file, plan(ledger, route).lost)
    assert (duplicates[0].file, duplicates[1], duplicates[2]) == (other.file, HEADER, HEADER + FRAME)
    into, saved = copies(ledger, claims(S, 1, 2, 0))
    readable = Readable(route.at, elsewhere=claims(S, 1, 2, HEADER))
    salvaged = ledger.salvage.carry_out(route.file, 0, readable, into, saved)
    assert salvaged.lost == {S: Ranges.of((0, 1), (2, 3))} and saved_of(salvaged) == [(S, 1)]
    assert salvaged.again == Ranges.of((HEADER, at(3)))
    anew = Route(ledger)
    anew.land(claims(S, 0, 3, 0))
    assert pending(ledger) == {other.file: 0, into: 1, anew.file: 2}


def test_of_a_registration_applied_in_part_only_the_rest_comes_again(ledger: Ledger, route: Route) -> None:
    for spec in (FLIGHTS, KEYLESS):
        of = stream(spec, wal())
        made = Route(ledger)
        made.land(claims(of, 0, 4, 0))
        applied(ledger, spec, {made.file: at(1)})
        close(ledger, made)
        done = claims(of, 0, 1, HEADER)
        salvaged = ledger.salvage.carry_out(made.file, 0, Readable(made.at, done))
        assert salvaged.lost == {of: Ranges.of((1, 4))}
        assert ledger.landing.coverage(spec.uuid) == {of: Ranges.of((0, 1))}


def test_a_table_without_key_is_never_given_rows_twice(ledger: Ledger, route: Route) -> None:
    route.land(claims(K, 0, 4, 0))
    applied(ledger, KEYLESS, {route.file: at(1)})
    close(ledger, route)
    with pytest.raises(RequestError, match="an unknown part of the unreadable bytes"):
        ledger.salvage.carry_out(route.file, 0, nothing(route))
    assert ledger.landing.coverage() == {K: Ranges.of((0, 4))} and ledger.files.get(route.file) is not None


def test_what_the_sender_sends_by_a_bootstrap_only_is_told_and_counts_as_lost_until_one_brings_it(
    ledger: Ledger, route: Route
) -> None:
    route.land(claims(S, 0, 4, 0))
    close(ledger, route)
    ledger.landing.declare_routes([InboundRoute(EAST, FLIGHTS.uuid, "default", 2, {wal(): 3})])
    note_closed(ledger, EAST, ClosedNotice(10, ((S, 3),)))
    plan = ledger.salvage.carry_out(route.file, 0, Readable(route.at))
    assert plan.lost == {S: Ranges.of((0, 4))} and plan.unsent == {S: Ranges.of((0, 3))}
    told = list(lines(plan, {FLIGHTS.uuid: "ops.flights"}))
    assert told[0] == "1 frame of ops.flights cannot be read here: east is asked again"
    assert told[1].endswith("on east: walship bootstrap -t ops.flights west")
    (loss,) = ledger.salvage.acknowledged_losses()
    assert (loss.stream, loss.sequences) == (S, Ranges.of((0, 3)))
    Route(ledger, source=wal(5)).land(claims(S, 0, 3, 0))
    assert not ledger.salvage.acknowledged_losses()


def test_what_a_peer_after_this_cluster_lacks_comes_again_though_it_is_applied_here(
    ledger: Ledger, route: Route
) -> None:
    ledger.rules.define(peer(), 0)
    ledger.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", 0)
    route.land(claims(S, 0, 2, 0))
    route.land(claims(S, 2, 4, 0))
    applied(ledger, FLIGHTS, {route.file: at(4)})
    ledger.files.record([PeerProgress(route.file, "north", Ranges.of((HEADER, at(2))), HEADER)])
    close(ledger, route)
    later = Route(ledger)
    landed = replace(later.group(claims(S, 4, 5, 0)), source_begin=at(4), source_end=at(5))
    ledger.registration.register([landed])  # and not applied, so that the sender has its file
    ledger.files.record([PeerProgress(later.file, "north", Ranges.of((HEADER, later.at)), HEADER)])
    salvaged = ledger.salvage.carry_out(route.file, 0, nothing(route))
    assert salvaged.again == Ranges.of((HEADER, at(4))), "exact to within a row, and applied rows are joined"
    assert not salvaged.lost and not salvaged.lacking and phases(ledger) == {Phase.LIVE}
    anew = Route(ledger)
    anew.land(claims(S, 0, 4, 0))
    assert pending(ledger) == {later.file: 1}, "here it is known"
    assert {f for f, _, status in ledger.files.statuses("north") if status.remaining} == {anew.file}


def lagging(ledger: Ledger, route: Route) -> None:
    """All of a file is applied, and north has two frames of four."""
    ledger.rules.define(peer(), 0)
    ledger.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", 0)
    route.land(claims(S, 0, 2, 0))
    route.land(claims(S, 2, 4, 0))
    applied(ledger, FLIGHTS, {route.file: at(4)})
    ledger.files.record([PeerProgress(route.file, "north", Ranges.of((HEADER, at(2))), HEADER)])
    close(ledger, route)


def test_a_peer_lacks_what_the_sender_may_have_released_so_it_needs_a_bootstrap(ledger: Ledger, route: Route) -> None:
    lagging(ledger, route)
    salvaged = ledger.salvage.carry_out(route.file, 0, nothing(route))
    assert salvaged.again == Ranges.of((HEADER, at(4))) and not salvaged.lost
    assert salvaged.lacking == {"north": {FLIGHTS.uuid: 4}} and phases(ledger) == {Phase.NEEDS_BOOTSTRAP}
    assert ledger.landing.coverage() == {S: Ranges.of((0, 4))} and pending(ledger) == {}


def test_what_a_peer_lacks_and_can_be_read_goes_from_the_copies_and_is_not_applied_again(
    ledger: Ledger, route: Route
) -> None:
    lagging(ledger, route)
    found = Readable(at(4), claims(S, 0, 4, HEADER))
    assert ledger.salvage.plan(route.file, found).wanted == found.frames[2:]
    into, saved = copies(ledger, claims(S, 2, 3, 0))
    with pytest.raises(RequestError, match="more frames of .* are needed"):
        ledger.salvage.carry_out(route.file, 0, found, into, saved)
    into, saved = copies(ledger, claims(S, 2, 4, 0))
    salvaged = ledger.salvage.carry_out(route.file, 0, found, into, saved)
    assert not salvaged.again and not salvaged.lost and not salvaged.lacking
    assert saved_of(salvaged) == [(S, 2), (S, 3)] and phases(ledger) == {Phase.LIVE}
    assert pending(ledger) == {} and ledger.landing.coverage() == {S: Ranges.of((0, 4))}
    found_at = {f: status.remaining for f, _, status in ledger.files.statuses("north") if status.remaining}
    assert found_at == {into: 2 * FRAME}
    assert into not in [row.file for row in ledger.files.retirable("h0")]


def test_of_what_a_peer_lacks_only_the_damaged_frames_are_lost_for_it(ledger: Ledger, route: Route) -> None:
    lagging(ledger, route)
    readable = Readable(at(4), (*claims(S, 0, 2, HEADER), *claims(S, 3, 4, at(3))))
    into, saved = copies(ledger, claims(S, 3, 4, 0))
    salvaged = ledger.salvage.carry_out(route.file, 0, readable, into, saved)
    assert salvaged.lacking == {"north": {FLIGHTS.uuid: 1}} and phases(ledger) == {Phase.NEEDS_BOOTSTRAP}


def test_a_rule_begins_among_the_copies_where_it_began_in_the_file(ledger: Ledger, route: Route) -> None:
    route.land(claims(S, 0, 2, 0))
    ledger.rules.define(peer(), 0)
    ledger.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", 0)
    route.land(claims(S, 2, 4, 0))
    close(ledger, route)
    into, saved = copies(ledger, claims(S, 1, 4, 0))
    ledger.salvage.carry_out(route.file, 0, Readable(at(4), claims(S, 1, 4, at(1))), into, saved)
    begins = {f: (status.begin, status.remaining) for f, _, status in ledger.files.statuses("north")}
    assert begins[into] == (at(1), 2 * FRAME)


def test_nothing_that_a_peer_wrote_is_required_for_it(ledger: Ledger, route: Route) -> None:
    ledger.rules.define(peer(), 0)
    ledger.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", 0)
    s = stream(FLIGHTS, wal(0, NORTH))
    route.land(claims(s, 0, 2, 0))
    applied(ledger, FLIGHTS, {route.file: at(2)})
    close(ledger, route)
    assert not ledger.salvage.carry_out(route.file, 0, nothing(route)).lacking and phases(ledger) == {Phase.LIVE}


def test_on_a_cluster_without_tables_what_has_landed_counts_for_the_sender(ledger: Ledger, route: Route) -> None:
    ledger.rules.define(peer(), 0)
    ledger.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", 0)
    route.land(claims(S, 0, 2, 0))
    close(ledger, route)
    assert not plan(ledger, route, keeps_tables=False).lost
    salvaged = ledger.salvage.carry_out(route.file, 0, nothing(route), keeps_tables=False)
    assert salvaged.again == Ranges.of((HEADER, at(2))) and not salvaged.lost
    assert salvaged.lacking == {"north": {FLIGHTS.uuid: 2}} and phases(ledger) == {Phase.NEEDS_BOOTSTRAP}


def test_a_host_that_replays_waits_for_what_has_landed_though_zookeeper_forgot_it(ledger: Ledger, route: Route) -> None:
    ledger.replay.note_replayer("h1", True)
    route.land(claims(S, 0, 2, 0))
    close(ledger, route)
    assert plan(ledger, route, keeps_tables=False).lost == {S: Ranges.of((0, 2))}
    salvaged = ledger.salvage.carry_out(route.file, 0, nothing(route), keeps_tables=False)
    assert salvaged.lost == {S: Ranges.of((0, 2))} and salvaged.again == Ranges.of((HEADER, at(2)))


def test_only_closed_landing_files_are_salvaged_and_under_the_current_term(ledger: Ledger, route: Route) -> None:
    route.land(claims(S, 0, 1, 0))
    with pytest.raises(RequestError, match="still OPEN"):
        ledger.salvage.carry_out(route.file, 0, nothing(route))
    with pytest.raises(MissingFileError):
        ledger.salvage.carry_out(wal(99), 0, nothing(route))
    close(ledger, route)
    ledger.terms.raise_to_next()
    with pytest.raises(StaleTermError):
        ledger.salvage.carry_out(route.file, 0, nothing(route))
    assert ledger.landing.coverage() == {S: Ranges.of((0, 1))}


def test_quarantined_frames_of_the_file_are_kept_when_passed_and_judged_anew_when_not(
    ledger: Ledger, route: Route
) -> None:
    route.land(claims(S, 0, 2, 0))
    route.land(claims(S, 2, 4, 0))
    for n in (1, 3):
        ledger.replay.quarantine(Quarantined(route.file, at(n), at(n + 1), FLIGHTS.uuid, "bad", f"/q/{n}", 1), (S, n))
    applied(ledger, FLIGHTS, {route.file: at(2)})
    close(ledger, route)
    ledger.salvage.carry_out(route.file, 0, nothing(route))
    assert [frame.copy for frame in ledger.replay.quarantined()] == ["/q/1"]


def test_after_a_loss_a_sender_believes_only_what_the_peer_kept(ledger: Ledger, route: Route) -> None:
    ledger.rules.define(peer(), 0)
    ledger.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", 0)
    file = ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "writer").file
    all_of_it, kept = Ranges.of((HEADER, at(4))), Ranges.of((HEADER, at(1)), (at(2), at(3)))
    loss = PeerProgress(file, "north", Ranges(), 0, losses=1, kept=kept)

    def known() -> tuple[Ranges, int, int]:
        (found,) = ledger.files.progress("north")
        return found.shipped, found.applied, found.losses

    ledger.files.record([PeerProgress(file, "north", all_of_it, at(2))])
    ledger.files.record([loss])
    assert known() == (kept, at(1), 1)
    ledger.files.record([PeerProgress(file, "north", all_of_it, at(4)), loss])
    assert known() == (kept, at(1), 1), "an ack from before the loss comes late"
    ledger.files.record([PeerProgress(file, "north", Ranges.of((at(1), at(2))), at(2), losses=1)])
    assert known() == (Ranges.of((HEADER, at(3))), at(2), 1)
    ledger.files.record([PeerProgress(file, "north", Ranges.of((at(3), at(4))), 0, losses=2)])
    assert known() == (Ranges.of((at(3), at(4))), HEADER, 2), "of a second loss nothing is known to be left"
