"""Routes that a stream declares are opened together: those that are refused are told apart, the others are stored."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from peer.receive.definitions import Definitions
from peer.receive.routes import Routes
from replication.core.grants import Grant
from replication.core.ids import ClusterId
from replication.core.routes.carried import InboundRoute
from replication.ledger.sql.memory import MemoryLedger
from replication.ledger.sql.parts.landing import SqlLandingRecords
from replication.link.base import Reason, Route
from tests.tables_made import keyed

OWN, EAST = (ClusterId(name, UUID(int=n)) for n, name in enumerate(("own", "east"), 1))
GRANT = Grant(EAST, ("ops.*",))
SPECS = [keyed(f"ops.t{number}") for number in range(3)]


def _route(number: int, generation: int = 1) -> Route:
    spec = SPECS[number]
    return Route(spec, "default", spec.name, generation, {}, tuple(spec.versions.values()))


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger(OWN)


def _stored(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of the tables in each later call that stores routes."""
    calls: list[list[str]] = []

    real = SqlLandingRecords.declare_routes
    names = {spec.uuid: spec.name for spec in SPECS}

    def declare(self: Any, routes: list[InboundRoute]) -> None:
        if routes:
            calls.append([names[route.table] for route in routes])
        real(self, routes)

    monkeypatch.setattr(SqlLandingRecords, "declare_routes", declare)
    return calls


def test_all_routes_are_stored_at_once_and_only_those_that_changed(
    ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, routes = _stored(monkeypatch), Routes(ledger, Definitions(ledger))
    for declared, stored in (
        ([_route(0), _route(1), _route(2)], [["ops.t0", "ops.t1", "ops.t2"]]),
        ([_route(0), _route(1), _route(2)], []),
        ([_route(0), _route(1, generation=2), _route(2)], [["ops.t1"]]),
    ):
        assert not routes.open(GRANT, declared)
        assert calls == stored
        calls.clear()
    assert {route.table for route in ledger.landing.routes()} == {spec.uuid for spec in SPECS}


def test_a_refused_route_does_not_keep_the_others_from_being_opened(ledger: MemoryLedger) -> None:
    ledger.tables.create(keyed("ops.t1"))  # another table of that name
    refused = Routes(ledger, Definitions(ledger)).open(GRANT, [_route(number) for number in range(3)])
    assert {key: each.reason for key, each in refused.items()} == {(SPECS[1].uuid, "default"): Reason.TABLE_CONFLICT}
    assert {route.table for route in ledger.landing.routes()} == {SPECS[0].uuid, SPECS[2].uuid}
