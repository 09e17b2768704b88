"""Decide what a caller may do here, by its identity and the ledger."""

from __future__ import annotations

from collections.abc import Iterable

from replication.core.definition.schema import TableSpec
from replication.core.grants import (
    HOST_CALLS,
    NOT_GRANTED,
    ORIGIN_CALLS,
    PUBLIC_CALLS,
    WRONG_CLUSTER,
    Caller,
    Grant,
    grant_of,
    unknown_caller,
)
from replication.core.ids import ClusterId
from replication.errors import PeerRefusedError
from replication.ledger.base import Ledger


class CallerRights:
    """The rights of callers, read from the ledger at each call. Safe for threads.

    Args:
        ledger: the cluster's.
        allow_plaintext: whether callers without TLS are believed, because the network is trusted.
    """

    def __init__(self, ledger: Ledger, *, allow_plaintext: bool = False) -> None:
        self._ledger = ledger
        self._allow_plaintext = allow_plaintext

    def admit(self, call: str, caller: Caller) -> None:
        """Raise PeerRefusedError unless ``caller`` may make a call of that name at all."""
        stranger = unknown_caller(caller, self._allow_plaintext)
        if stranger is not None:
            raise stranger
        if call in PUBLIC_CALLS:
            return
        own = self._ledger.cluster
        if (call in HOST_CALLS) != (caller.cluster.name == own.name):
            if call in HOST_CALLS:
                raise PeerRefusedError(
                    f"this is {own}, not {caller.cluster}",
                    "Only hosts of one cluster share files",
                    reason=WRONG_CLUSTER,
                )
            raise _namesake(caller.cluster, own)
        if call not in HOST_CALLS:
            grant = self._grant_of(caller)
            if isinstance(grant, PeerRefusedError) and not (call in ORIGIN_CALLS and self._is_origin(caller.cluster)):
                raise grant

    def find(self, caller: Caller) -> Grant | None:
        """What is granted to ``caller``; None for nothing."""
        grant = self._grant_of(caller)
        return None if isinstance(grant, PeerRefusedError) else grant

    def of(self, caller: Caller) -> Grant:
        """What is granted to ``caller``; PeerRefusedError for nothing."""
        grant = self._grant_of(caller)
        if isinstance(grant, PeerRefusedError):
            raise grant
        return grant

    def check_sees(self, caller: Caller, spec: TableSpec) -> None:
        """Raise PeerRefusedError unless a caller may ask about a table here: it is granted, or sent to it."""
        grant = self.of(caller)
        peers = {peer.name for peer in self._ledger.rules.peers() if peer.cluster == caller.cluster}
        if not any(rule.table == spec.uuid and rule.peer in peers for rule in self._ledger.rules.all()):
            check_table(grant, self._ledger.cluster, spec.name)

    def _grant_of(self, caller: Caller) -> Grant | PeerRefusedError:
        peers = self._ledger.rules.peers()
        peer = next((peer.cluster for peer in peers if peer.name == caller.cluster.name), None)
        return grant_of(caller, self._ledger.cluster, peer)

    def _is_origin(self, cluster: ClusterId) -> bool:
        return any(route.brings(cluster) for route in self._ledger.landing.routes())


def check_table(grant: Grant, own: ClusterId, table: str) -> None:
    """Raise PeerRefusedError unless ``grant`` is for the table of that name here."""
    if not grant.covers(table):
        name = grant.cluster.name
        raise PeerRefusedError(
            f"{own.name} grants {name} no table {table}, only {', '.join(grant.tables) or 'none'}",
            f"On {own.name}: walship grants add {name} --table {table}",
            reason=NOT_GRANTED,
        )


def check_own(caller: Caller, clusters: Iterable[ClusterId]) -> None:
    """Raise PeerRefusedError unless all ``clusters`` are the caller, now or before it was restored."""
    for cluster in clusters:
        if cluster.name != caller.cluster.name:
            raise PeerRefusedError(
                f"{caller.cluster.name} asks about {cluster.name}", "A cluster asks for itself", reason=NOT_GRANTED
            )


def _namesake(caller: ClusterId, own: ClusterId) -> PeerRefusedError:
    if caller == own:
        what, remedy = f"{own.name} ships to itself", "Delete the peer that is the cluster itself"
    else:
        what, remedy = f"another cluster is named {own.name} too ({caller})", "Give each cluster its own name"
    return PeerRefusedError(what, remedy, reason=WRONG_CLUSTER)
