"""Beginning a bootstrap of a table that goes to a peer already, once both sides have room; and waiting for its end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from peer.bootstrap.room import BootstrapRoom
from peer.client.contacts import known_peer
from peer.client.peering import Peering
from replication.core.phase import Phase
from replication.errors import RequestError, WaitTimeoutError
from replication.ledger.base import Rule
from replication.worker.ship.routes import routes_of

_POLL_S = 0.05


def begin_bootstrap(peering: Peering, table: str, peer_name: str, room: BootstrapRoom) -> list[Rule]:
    """Send a peer the rows of a table that were there before its rule; one under way goes on.

    Raises:
        RequestError: the table does not go there, or there is no room here, in figures.
        UnknownTableError, UnknownPeerError: no such table or peer.
        PeerRefusedError: no room there, or the peer wants none; the hint is the remedy.
        PeerUnavailableError: no receiver of the peer answers.
    """
    ledger = peering.ledger
    spec, peer = ledger.tables.get(table), known_peer(ledger, peer_name)
    rules = [rule for rule in ledger.rules.all() if rule.table == spec.uuid and rule.peer == peer_name]
    if not rules:
        raise RequestError(
            f"{table} does not go to {peer_name}", f"walship enablereplication -t {table} --bootstrap {peer_name}"
        )
    if all(rule.phase is Phase.BOOTSTRAPPING for rule in rules):
        return rules
    room.check()
    with peering.contacts.link(peer) as link:
        for route in routes_of(ledger, rules, peer.cluster):
            link.open_route(ledger.cluster, peer.cluster, replace(route, bootstrap_bytes=room.there_bytes))
    rules = ledger.rules.begin_bootstrap(peer_name, spec.uuid, ledger.terms.current())
    peering.announcer.announce()
    return rules


def await_bootstrap(peering: Peering, tables: Sequence[str], peer_name: str, timeout_s: float) -> None:
    """Return when all rows from before are in the peer's tables.

    Raises:
        WaitTimeoutError: not in time; it goes on.
        RequestError: one was ended, or lost what it needs; or the peer is paused.
    """
    ledger = peering.ledger
    waiting = {name: ledger.tables.get(name).uuid for name in tables}
    deadline = time.monotonic() + timeout_s
    while True:
        rules = [rule for rule in ledger.rules.all() if rule.peer == peer_name]
        for name, table in list(waiting.items()):
            phases = {rule.phase for rule in rules if rule.table == table}
            if phases == {Phase.LIVE}:
                del waiting[name]
            elif not phases or Phase.NEEDS_BOOTSTRAP in phases:
                raise RequestError(f"the bootstrap of {name} at {peer_name} was broken off", "See walship status")
        if not waiting:
            return
        names = ", ".join(sorted(waiting))
        if known_peer(ledger, peer_name).paused:
            raise RequestError(
                f"{peer_name} is paused, so the rows of {names} do not get there", f"First: walship resume {peer_name}"
            )
        if time.monotonic() > deadline:
            raise WaitTimeoutError(
                f"not bootstrapped at {peer_name} within {timeout_s:g} s: {names}", "It goes on; see walship status"
            )
        time.sleep(_POLL_S)
