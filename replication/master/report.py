"""Reports of the master's rounds: to the log, once per problem, and to the ledger for ``status``."""

from __future__ import annotations

import time
from collections.abc import Mapping

from replication import log
from replication.core.shipping.planner import PeerView, RetryLater
from replication.errors import ReplicationError, StaleTermError
from replication.ledger.base import Ledger
from replication.wall_clock import now_us

_log = log.get(__name__)


class RoundReport:
    """Reports each problem once, for as long as it lasts."""

    def __init__(self, ledger: Ledger, host: str) -> None:
        self._ledger = ledger
        self._host = host
        self._waiting: frozenset[RetryLater] = frozenset()
        self._has_reported = False
        self._problem = ""

    def succeeded(self) -> None:
        """Record a successful round."""
        self._problem = ""

    def failed(self, error: ReplicationError, term: int) -> None:
        """Log a failed round, once for as long as the same error repeats."""
        problem = type(error).__name__
        if problem != self._problem:
            report = _log.warning if error.retryable or isinstance(error, StaleTermError) else _log.error
            report("master_round_failed", host=self._host, term=term, error=str(error))
        self._problem = problem

    def waiting(self, waiting: frozenset[RetryLater], peers: Mapping[str, PeerView]) -> None:
        """Record for ``status`` why peers get no work. Paused peers are left out: ``status`` shows them as paused."""
        for later in waiting - self._waiting:
            _log.warning("peer_waits", peer=later.peer, error=later.reason)
        shown = {later.peer: later for later in waiting if later.peer in peers and not peers[later.peer].paused}
        now, now_s = now_us(), time.monotonic()
        for later in shown.values():
            if later not in self._waiting:
                failures = max(1, peers[later.peer].backoff.failures)
                next_at = now + int((later.until_s - now_s) * 1e6) if later.until_s else 0
                self._ledger.sending.attempted(later.peer, "", "plan", failures, next_at, now, later.reason)
        for attempt in self._ledger.sending.attempts() if waiting != self._waiting or not self._has_reported else ():
            if attempt.work == "plan" and attempt.failures and attempt.peer not in shown:
                self._ledger.sending.attempted(attempt.peer, "", "plan", 0, 0, now, "")
        self._has_reported = True
        self._waiting = waiting
