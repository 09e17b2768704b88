"""Waiting for bootstraps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from peer.client.bootstrap import await_bootstrap
from peer.client.contacts import Contacts
from peer.client.peering import Peering
from replication.coordination.session import Coordination
from replication.errors import RequestError, WaitTimeoutError
from tests.contract.ledger_stores import FLIGHTS, WEATHER, WEST, peer
from tests.fakes.ledger import MemoryLedger
from tests.noted import need_bootstrap


@pytest.fixture
def peering() -> Iterator[Peering]:
    """A cluster that bootstraps its flights and its weather at north."""
    ledger = MemoryLedger(WEST)
    ledger.rules.define(peer(), 0)
    for spec in (FLIGHTS, WEATHER):
        ledger.tables.create(spec)
        groups = [group.name for group in spec.groups]
        ledger.rules.enable("north", spec.uuid, groups, spec.name, 0, bootstrap=True)
    yield Peering(ledger, cast(Coordination, None), cast(Contacts, None))
    ledger.close()


def test_a_wait_for_several_bootstraps_ends_with_the_last(peering: Peering) -> None:
    names, rules = [FLIGHTS.name, WEATHER.name], peering.ledger.rules
    with pytest.raises(WaitTimeoutError, match="not bootstrapped at north within 0 s: ops.flights, ops.weather"):
        await_bootstrap(peering, names, "north", 0.0)
    rules.end_bootstrap("north", FLIGHTS.uuid, rules.generation(), 0)
    with pytest.raises(WaitTimeoutError, match="within 0 s: ops.weather. The"):
        await_bootstrap(peering, names, "north", 0.0)
    need_bootstrap(peering.ledger, "north", WEATHER.uuid)
    with pytest.raises(RequestError, match="the bootstrap of ops.weather at north has stopped"):
        await_bootstrap(peering, names, "north", 0.0)
    rules.begin_bootstrap("north", WEATHER.uuid, 0)
    rules.end_bootstrap("north", WEATHER.uuid, rules.generation(), 0)
    await_bootstrap(peering, names, "north", 0.0)


def test_a_wait_for_several_bootstraps_goes_on_without_a_table_that_is_dropped(
    peering: Peering, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = peering.ledger

    def drop(_: float) -> None:
        ledger.rules.disable("north", WEATHER.uuid, [group.name for group in WEATHER.groups], 0)
        ledger.tables.drop(WEATHER.uuid)
        ledger.rules.end_bootstrap("north", FLIGHTS.uuid, ledger.rules.generation(), 0)

    monkeypatch.setattr("peer.polling.time.sleep", drop)
    await_bootstrap(peering, [FLIGHTS.name, WEATHER.name], "north", 60.0)
    await_bootstrap(peering, [FLIGHTS.name, WEATHER.name], "north", 60.0)  # as if it was dropped before


def test_a_wait_for_a_bootstrap_at_a_paused_peer_fails(peering: Peering) -> None:
    peering.ledger.rules.set_paused("north", True, 0)
    with pytest.raises(RequestError, match="north is paused, so the bootstrap of ops.flights waits") as raised:
        await_bootstrap(peering, [FLIGHTS.name], "north", 60.0)
    assert raised.value.hint == "First: walship resume north"
