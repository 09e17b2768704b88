"""The rules that a worker acts upon, as it last read them, and whether they changed."""

from __future__ import annotations

import contextlib
import time

import structlog

from replication.coordination.paths import MemberKind
from replication.coordination.session import Coordination
from replication.errors import CoordinationError
from replication.ledger.base import Ledger, Peer, Rule
from replication.worker.ship.routes import InboundState

_log = structlog.get_logger(__name__)
_Seen = tuple[list[Rule], int, InboundState | None]


class RulesCache:
    """Rules, peers, and how many workers share a peer's rate. For one thread."""

    def __init__(self, ledger: Ledger, coordination: Coordination) -> None:
        self._ledger = ledger
        self._coordination = coordination
        self._seen: _Seen = ([], 0, None)
        self._peers: dict[str, Peer] = {}
        self._workers = 1

    def refresh(self) -> bool | None:
        """Whether rules, tables, or routes into this cluster that they pass on differ from those of the last look.

        None when they cannot be read. Asked when changes are announced, and at every heartbeat. So an altered
        definition goes to the peers within a heartbeat, and what one of them learns goes on to its own.
        """
        try:
            rules, revision = self._ledger.rules.all(), self._ledger.tables.revision()
            self._peers = {peer.name: peer for peer in self._ledger.rules.peers()}
            self._count_workers()
            inbound = InboundState.of(self._ledger, time.time_ns() // 1000) if rules else None
        except CoordinationError as error:
            _log.warning("rules_not_read", error=str(error))
            return None
        before, self._seen = self._seen, (rules, revision, inbound)
        return self._seen != before

    def paused(self) -> frozenset[str]:
        """Peers to which nothing is to go now."""
        return frozenset(peer.name for peer in self._peers.values() if peer.paused)

    def rate(self, name: str) -> float:
        """This host's part of a peer's rate, bytes per second, 0 for no limit: workers share it evenly."""
        peer = self._peers.get(name)
        return 0.0 if peer is None or not peer.rate else peer.rate / self._workers

    def _count_workers(self) -> None:
        """Only when some peer has a rate; the count stays as it was when ZooKeeper does not answer."""
        if any(peer.rate for peer in self._peers.values()):
            with contextlib.suppress(CoordinationError):
                self._workers = max(1, len(self._coordination.members(MemberKind.WORKERS)))
