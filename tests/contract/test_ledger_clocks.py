"""What a ledger keeps of clocks and epochs: the newest commit time seen, clocks far ahead, a sender's role epoch."""

from __future__ import annotations

from replication.core.ids import ClusterId
from replication.ledger.base import FileKind, Ledger, SkewedClock
from tests.contract.ledger_stores import EAST, HEADER, NORTH, Route, Stores, applied, claims, stream, table, wal

FLIGHTS = table()
S = stream(FLIGHTS, wal())


def test_a_source_cluster_remembers_its_highest_role_epoch(stores: Stores) -> None:
    keep, again = stores.ledger.landing.keep_epoch, stores.another().landing.keep_epoch
    assert (keep(EAST, 3), again(EAST, 3), again(EAST, 5)) == (3, 3, 5)
    assert (keep(EAST, 4), again(EAST, 3), keep(EAST, 6)) == (5, 5, 6)
    assert keep(NORTH, 1) == 1, "each cluster has its own"
    assert keep(ClusterId("east", NORTH.incarnation), 0) == 0, "and each incarnation"


def test_the_newest_commit_time_seen_is_of_anything_registered_and_never_goes_back(stores: Stores) -> None:
    ledger = stores.ledger
    ledger.tables.create(FLIGHTS)
    assert ledger.time.seen() == 0
    route = Route(ledger)
    route.land(claims(S, 0, 1, 0, commit=70))
    assert stores.another().time.seen() == 70
    own = ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "writer").file
    written = claims(stream(FLIGHTS, own), 0, 1, HEADER, commit=50)
    ledger.registration.register_own(own, HEADER, written[-1].end, written)
    assert ledger.time.seen() == 70
    applied(ledger, FLIGHTS, {route.file: route.at})
    ledger.files.close(route.file, route.at)
    ledger.files.retire(route.file, ledger.terms.current())
    assert ledger.files.get(route.file) is None
    assert stores.another().time.seen() == 70, "retiring a file forgets no time"


def test_a_writer_starts_above_all_commit_times_seen(ledger: Ledger) -> None:
    ledger.tables.create(FLIGHTS)
    Route(ledger).land(claims(S, 0, 1, 0, commit=900))
    ledger.time.raise_closed("h0", {}, 100)
    assert ledger.time.register_writer("w", "h0", 1, "boot", 1) >= 900


def test_closed_time_without_writers_follows_the_newest_commit_time_seen(ledger: Ledger) -> None:
    """So a site whose clock is behind does not hold up the tables that it feeds while nobody writes there."""
    ledger.tables.create(FLIGHTS)
    assert ledger.time.raise_closed("h0", {}, 100) == 100
    Route(ledger).land(claims(S, 0, 1, 0, commit=900))
    assert ledger.time.raise_closed("h0", {}, 110) == 900
    assert ledger.time.raise_closed("h0", {}, 1000) == 1000
    assert ledger.time.register_writer("w", "h0", 1, "boot", 1) >= 1000
    assert ledger.time.raise_closed("h0", {"w": 1500}, 5000) == 1500, "a writer's watermark holds it"


def test_clocks_far_ahead_are_kept_until_time_has_caught_up(stores: Stores) -> None:
    note = stores.ledger.time.note_ahead
    note(SkewedClock(EAST, 500, 100))
    note(SkewedClock(NORTH, 400, 110))
    note(SkewedClock(EAST, 450, 120))
    assert stores.another().time.ahead() == [SkewedClock(EAST, 500, 100), SkewedClock(NORTH, 400, 110)]
    note(SkewedClock(NORTH, 900, 450))
    assert stores.ledger.time.ahead() == [SkewedClock(EAST, 500, 100), SkewedClock(NORTH, 900, 450)]
    note(SkewedClock(EAST, 950, 700))
    assert stores.ledger.time.ahead() == [SkewedClock(EAST, 950, 700), SkewedClock(NORTH, 900, 450)]
    note(SkewedClock(EAST, 1200, 1000))
    assert stores.ledger.time.ahead() == [SkewedClock(EAST, 1200, 1000)]
