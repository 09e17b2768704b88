"""Ranges of a source that bring no rows, of which an idle WAL has several a second, need no rows of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from replication.core.coverage import Ranges
from replication.core.ids import NIL_UUID, StreamId
from replication.ledger.base import Landed
from replication.ledger.sql.schema import tables as schema
from tests.contract.ledger_stores import FLIGHTS, FRAME, HEADER, WEST, Route, applied, claims, stream, wal
from tests.fakes.ledger import MemoryLedger

S, SYSTEM = stream(FLIGHTS, wal()), StreamId(wal(), NIL_UUID, "")


@pytest.fixture
def ledger() -> Iterator[MemoryLedger]:
    made = MemoryLedger(WEST)
    made.tables.create(FLIGHTS)
    yield made
    made.close()


def row_count(ledger: MemoryLedger) -> int:
    with ledger._real._store.read() as connection:
        return int(connection.scalar(sa.select(sa.func.count()).select_from(schema.received)) or 0)


def skip(ledger: MemoryLedger, route: Route, begin: int, end: int) -> None:
    ledger.registration.register([Landed(route.file, route.at, route.at, route.source, begin, end, ())])


def test_skipped_ranges_that_adjoin_are_one_row(ledger: MemoryLedger) -> None:
    route = Route(ledger)
    for number in range(20):
        skip(ledger, route, HEADER + 100 * number, HEADER + 100 * (number + 1))
    assert row_count(ledger) == 1
    assert ledger.landing.received(wal()) == Ranges.of((HEADER, HEADER + 2000))
    skip(ledger, route, HEADER + 3000, HEADER + 3100)
    assert row_count(ledger) == 2
    assert ledger.landing.received(wal()) == Ranges.of((HEADER, HEADER + 2000), (HEADER + 3000, HEADER + 3100))
    assert ledger.landing.applied_prefix([wal()]) == {wal(): HEADER + 2000}


def test_frames_without_rows_are_one_row(ledger: MemoryLedger) -> None:
    route = Route(ledger)
    for number in range(20):
        route.land(claims(SYSTEM, number, number + 1, HEADER))
    assert row_count(ledger) == 1
    assert ledger.landing.applied_prefix([wal()]) == {wal(): route.at}


def test_what_follows_rows_counts_once_they_are_applied(ledger: MemoryLedger) -> None:
    route = Route(ledger)
    route.land(claims(S, 0, 1, HEADER))
    route.land(claims(SYSTEM, 0, 1, HEADER))
    end = route.at
    for number in range(5):
        skip(ledger, route, end + 100 * number, end + 100 * (number + 1))
    assert row_count(ledger) == 1
    assert ledger.landing.applied_prefix([wal()]) == {wal(): HEADER}
    more = route.group(claims(S, 1, 2, HEADER))
    after = end + 500
    later = Landed(more.file, more.begin, more.end, more.source, after, after + FRAME, more.claims)
    ledger.registration.register([later])
    assert row_count(ledger) == 2, "rows are applied one registration at a time"
    applied(ledger, FLIGHTS, {route.file: HEADER + FRAME})
    assert ledger.landing.applied_prefix([wal()]) == {wal(): after}
    applied(ledger, FLIGHTS, {route.file: route.at}, 2)
    assert ledger.landing.applied_prefix([wal()]) == {wal(): after + FRAME}
