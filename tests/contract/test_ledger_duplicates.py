"""The ledger's contract: bytes that hold only what landed elsewhere count as applied once that is, not before."""

from __future__ import annotations

import pytest

from replication.core.coverage import Ranges
from replication.ledger.base import FileKind, Ledger, Readable
from tests.contract.ledger_stores import FRAME, HEADER, Route, applied, claims, peer, stream, table, wal

FLIGHTS, WEATHER = table(), table("ops.weather", 2)
S, W = stream(FLIGHTS, wal()), stream(WEATHER, wal())
FIRST, AGAIN = wal(1), wal(2)


def at(frames: int) -> int:
    return HEADER + frames * FRAME


@pytest.fixture
def routes(ledger: Ledger) -> tuple[Route, Route]:
    """The route that brings frames first, and the one that brings them again."""
    for spec in (FLIGHTS, WEATHER):
        ledger.tables.create(spec)
    return Route(ledger, FIRST), Route(ledger, AGAIN)


def prefixes(ledger: Ledger) -> tuple[int, int]:
    """How far the two sources are told to be applied."""
    found = ledger.landing.applied_prefix([FIRST, AGAIN])
    return found[FIRST], found[AGAIN]


def test_a_file_of_duplicates_is_applied_when_what_is_claimed_is(ledger: Ledger, routes: tuple[Route, Route]) -> None:
    first, again = routes
    first.land(claims(S, 0, 2, 0))
    first.land(claims(S, 2, 4, 0))
    again.land(claims(S, 0, 4, 0))
    assert prefixes(ledger) == (HEADER, HEADER)
    assert {p.row.file: p.duplicates.total for p in ledger.replay.pending()} == {first.file: 0, again.file: 4 * FRAME}
    applied(ledger, FLIGHTS, {first.file: at(2)})
    assert prefixes(ledger) == (at(2), HEADER), "one registration is one range"
    applied(ledger, FLIGHTS, {first.file: at(4)}, 2)
    assert prefixes(ledger) == (at(4), at(4)) and ledger.replay.pending() == []


def test_it_is_applied_whichever_file_the_replay_marks_first(ledger: Ledger, routes: tuple[Route, Route]) -> None:
    first, again = routes
    first.land(claims(S, 0, 2, 0))
    again.land(claims(S, 0, 2, 0), claims(W, 0, 1, 0))
    applied(ledger, WEATHER, {again.file: at(3)})
    assert prefixes(ledger) == (HEADER, HEADER)
    applied(ledger, FLIGHTS, {again.file: at(3), first.file: at(2)})
    assert prefixes(ledger) == (at(2), at(3))


def test_what_lands_again_once_it_is_applied_is_applied_at_once(ledger: Ledger, routes: tuple[Route, Route]) -> None:
    first, again = routes
    first.land(claims(S, 0, 2, 0))
    applied(ledger, FLIGHTS, {first.file: at(2)})
    again.land(claims(S, 0, 1, 0))
    assert prefixes(ledger) == (at(2), at(1))
    first.land(claims(S, 2, 3, 0))
    again.land(claims(S, 1, 3, 0))
    assert prefixes(ledger) == (at(2), at(1))
    applied(ledger, FLIGHTS, {first.file: at(3)}, 2)
    assert prefixes(ledger) == (at(3), at(3))


def test_nobody_waits_for_the_rows_of_a_dropped_table(ledger: Ledger, routes: tuple[Route, Route]) -> None:
    first, again = routes
    first.land(claims(S, 0, 2, 0))
    again.land(claims(S, 0, 2, 0))
    ledger.tables.drop(FLIGHTS.uuid)
    assert prefixes(ledger) == (at(2), at(2))


def test_a_file_of_duplicates_stays_until_then(ledger: Ledger, routes: tuple[Route, Route]) -> None:
    first, again = routes
    first.land(claims(S, 0, 2, 0))
    again.land(claims(S, 0, 2, 0))
    for route in routes:
        ledger.files.close(route.file, route.at)
    ledger.rules.define(peer(), 0)
    assert ledger.files.retirable("h0") == []
    salvaged = ledger.salvage.carry_out(first.file, 0, Readable(0))
    assert salvaged.lost == {S: Ranges.of((0, 2))}, "its copies were not asked for"
    assert [row.file for row in ledger.files.retirable("h0") if row.kind is FileKind.LANDING] == [again.file]


def test_what_is_pending_is_listed_in_the_order_in_which_files_were_begun(ledger: Ledger) -> None:
    for spec in (FLIGHTS, WEATHER):
        ledger.tables.create(spec)
    made = [Route(ledger, wal(7), "h1"), Route(ledger, wal(8), "h0"), Route(ledger, wal(9), "h1")]
    for number, route in enumerate(made):
        route.land(claims(S, number, number + 1, 0))
    assert [part.row.file for part in ledger.replay.pending()] == [route.file for route in made]


def test_a_group_of_very_many_streams_claims_of_each_what_is_new(ledger: Ledger, routes: tuple[Route, Route]) -> None:
    """As of a writer of many tables: some streams new, some here up to a point, one with another history."""
    first, again = routes
    streams = [stream(FLIGHTS, wal(10 + number)) for number in range(150)]
    first.land(*(claims(each, 0, 2, 0) for each in streams[:100]))
    other = claims(streams[7], 2, 3, 0, "other")
    found = ledger.registration.register(
        [again.group(*(claims(each, 1, 4, 0) for each in streams if each != streams[7]), other)]
    )
    assert [(each.claim.stream, each.claim.sequence) for each in found] == [(streams[7], 2)]
    covered = ledger.landing.coverage()
    assert [covered[each].spans for each in streams[:7]] == [((0, 4),)] * 7
    assert covered[streams[7]].spans == ((0, 2),)
    assert [covered[each].spans for each in streams[100:]] == [((1, 4),)] * 50
    (landed,) = [pending for pending in ledger.replay.pending() if pending.row.file == again.file]
    assert landed.duplicates.total == (99 + 1) * FRAME, "a frame of each that was here, and the other history's"
