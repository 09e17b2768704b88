"""The rules as the worker last read them, and whether they changed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from replication import log
from replication.coordination.paths import MemberKind
from replication.coordination.session import Coordination
from replication.core.succession import Successions
from replication.errors import CoordinationError, FormatError
from replication.ledger.base import Ledger, Peer, Rule
from replication.ledger.changes import LedgerChanges
from replication.wall_clock import now_us
from replication.worker.ship.routes import InboundState

_TIME_S = 3.0  # routes fall silent after 15 s
_log = log.get(__name__)
_Seen = tuple[list[Rule], int, Successions, InboundState | None]


class RulesCache:
    """Caches rules, peers, and the number of workers that share a peer's rate. For one thread."""

    def __init__(
        self, ledger: Ledger, coordination: Coordination, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._ledger = ledger
        self._coordination = coordination
        self._monotonic = monotonic
        self._changes = LedgerChanges(ledger)
        self._seen: _Seen = ([], 0, Successions(), None)
        self._peers: dict[str, Peer] = {}
        self._workers = 1
        self._read_s = 0.0
        self._is_failing = False

    def refresh(self) -> bool | None:
        """Read the ledger; return whether rules, tables, successions or inbound routes changed since the last call.

        Returns None when they cannot be read. The worker calls this at every announcement and every heartbeat, so
        peers get an altered definition, and hear who took over, within a heartbeat.
        """
        now_s = self._monotonic()
        is_due = self._depends_on_time and now_s >= self._read_s + _TIME_S
        if not self._changes.any() and not is_due:
            return False
        self._read_s = now_s
        try:
            rules, revision = self._ledger.rules.all(), self._ledger.tables.revision()
            self._peers = {peer.name: peer for peer in self._ledger.rules.peers()}
            self._count_workers()
            known = self._ledger.successions.known()
            inbound = InboundState.of(self._ledger, now_us()) if rules else None
        except CoordinationError as error:
            if not self._is_failing:
                _log.warning("rules_not_read", error=str(error))
            self._is_failing = True
            self._changes.forget()
            return None
        self._is_failing = False
        before, self._seen = self._seen, (rules, revision, known, inbound)
        return self._seen != before

    @property
    def _depends_on_time(self) -> bool:
        """Whether what ``refresh`` reads may change while the ledger does not: routes fall silent, workers come."""
        inbound = self._seen[-1]
        return bool(inbound and inbound.routes) or any(peer.rate for peer in self._peers.values())

    def paused(self) -> frozenset[str]:
        """The names of paused peers."""
        return frozenset(peer.name for peer in self._peers.values() if peer.paused)

    def rate(self, name: str) -> float:
        """This host's share of a peer's rate, in bytes per second; 0 means no limit. Workers share a rate evenly."""
        peer = self._peers.get(name)
        return 0.0 if peer is None or not peer.rate else peer.rate / self._workers

    def _count_workers(self) -> None:
        """Count the workers if any peer has a rate; keep the last count when ZooKeeper cannot be read."""
        if any(peer.rate for peer in self._peers.values()):
            with contextlib.suppress(CoordinationError, FormatError):
                self._workers = max(1, len(self._coordination.members(MemberKind.WORKERS)))
