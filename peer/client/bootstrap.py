"""Begin a bootstrap of a table that goes to a peer already, and wait until it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from peer.bootstrap.space import BootstrapSpace
from peer.client.contacts import known_peer
from peer.client.peering import Peering
from peer.polling import polls
from replication.core.phase import Phase
from replication.errors import RequestError, WaitTimeoutError
from replication.ledger.base import Ledger, Rule

_POLL_S = 0.05


def begin_bootstrap(peering: Peering, table: str, peer_name: str, space: BootstrapSpace) -> list[Rule]:
    """Send a peer the rows that a table had before its rule. A bootstrap that is under way goes on.

    Raises:
        RequestError: the table does not go there, or this host has no space; the message gives figures.
        UnknownTableError, UnknownPeerError: no such table or peer.
        PeerRefusedError: the peer has no space, or refuses; the hint is the remedy.
        PeerUnavailableError: no receiver of the peer answers.
    """
    ledger = peering.ledger
    spec, peer = ledger.tables.get(table), known_peer(ledger, peer_name)
    rules = [rule for rule in ledger.rules.to(peer_name) if rule.table == spec.uuid]
    if not rules:
        raise RequestError(
            f"{table} does not go to {peer_name}", f"walship enablereplication -t {table} --bootstrap {peer_name}"
        )
    if all(rule.phase is Phase.BOOTSTRAPPING for rule in rules):
        return rules
    space.check()
    peering.open_routes(peer, rules, space.peer_bytes)
    rules = ledger.rules.begin_bootstrap(peer_name, spec.uuid, ledger.terms.current())
    peering.announcer.announce()
    return rules


def await_bootstrap(peering: Peering, tables: Sequence[str], peer_name: str, timeout_s: float) -> None:
    """Return when the bootstraps of ``tables`` are applied at the peer, but for tables that are dropped meanwhile.

    Raises:
        WaitTimeoutError: it took too long; the bootstraps go on.
        RequestError: a bootstrap was ended or cannot go on, or the peer is paused.
    """
    ledger = peering.ledger
    waiting = {spec.name: spec.uuid for spec in ledger.tables.all() if spec.name in tables}
    for _ in polls(timeout_s, _POLL_S):
        rules = ledger.rules.to(peer_name)
        for name, table in list(waiting.items()):
            phases = {rule.phase for rule in rules if rule.table == table}
            if phases == {Phase.LIVE} or phases != {Phase.BOOTSTRAPPING} and _is_dropped(ledger, table):
                del waiting[name]
            elif not phases or Phase.NEEDS_BOOTSTRAP in phases:
                raise RequestError(
                    f"the bootstrap of {name} at {peer_name} has stopped",
                    f"walship status says why; begin it again: walship bootstrap -t {name} {peer_name}",
                )
        if not waiting:
            return
        names = ", ".join(sorted(waiting))
        if known_peer(ledger, peer_name).paused:
            raise RequestError(
                f"{peer_name} is paused, so the bootstrap of {names} waits", f"First: walship resume {peer_name}"
            )
    raise WaitTimeoutError(
        f"not bootstrapped at {peer_name} within {timeout_s:g} s: {names}", "The bootstrap goes on; see walship status"
    )


def _is_dropped(ledger: Ledger, table: UUID) -> bool:
    return all(spec.uuid != table for spec in ledger.tables.all())
