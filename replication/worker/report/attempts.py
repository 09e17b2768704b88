"""Records the failures of this host's threads with each peer in the ledger, for ``status``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from uuid import UUID

from replication.errors import CoordinationError
from replication.ledger.base import Ledger
from replication.wall_clock import now_us

SPILL = "spill"  # moving files to the store; recorded for every peer


class AttemptLog:
    """Collects attempts; ``flush`` writes changes to the ledger. Safe for threads.

    Args:
        ask: called after a change, to ask for a ``flush``.
    """

    def __init__(
        self,
        ledger: Ledger,
        host: str,
        ask: Callable[[], None] = lambda: None,
    ) -> None:
        self._ledger = ledger
        self._host = host
        self._ask = ask
        self._lock = threading.Lock()
        self._failing: set[tuple[str, str]] = {
            (attempt.peer, attempt.work)
            for attempt in ledger.sending.attempts()
            if attempt.host == host and attempt.failures
        }
        self._waiting: dict[tuple[str, str], tuple[int, int, int, str]] = {}  # failures, next and last time, error
        self._held: dict[str, Mapping[UUID, str]] = {}  # to be written

    def failed(self, peer: str, work: str, failures: int, wait_s: float, error: str) -> None:
        """Note the ``failures``-th failure in a row; the next attempt is in ``wait_s``."""
        now = now_us()
        with self._lock:
            self._failing.add((peer, work))
            self._waiting[peer, work] = failures, now + int(wait_s * 1e6), now, error
        self._ask()

    def is_failing(self, peer: str, work: str) -> bool:
        """Whether the last attempt failed."""
        return (peer, work) in self._failing

    def succeeded(self, peer: str, work: str) -> None:
        """Note a success; cheap after an earlier success."""
        if (peer, work) in self._failing:
            with self._lock:
                self._failing.discard((peer, work))
                self._waiting[peer, work] = 0, 0, now_us(), ""
            self._ask()

    def withholds(self, peer: str, held: Mapping[UUID, str]) -> None:
        """Replace the tables that are withheld from the peer; ``held`` maps a table to the reason."""
        with self._lock:
            self._held[peer] = held
        self._ask()

    def flush(self) -> bool:
        """Write what waits to the ledger; return whether there was an attempt.

        Raises:
            CoordinationError: not all of it could be written; the rest is kept.
        """
        with self._lock:
            batch, self._waiting = self._waiting, {}
            held, self._held = self._held, {}
        has_attempts = bool(batch)
        try:
            for (peer, work), attempt in list(batch.items()):
                self._ledger.sending.attempted(peer, self._host, work, *attempt)
                del batch[peer, work]
            for peer, tables in list(held.items()):
                self._ledger.sending.set_held(peer, self._host, tables, now_us())
                del held[peer]
        except CoordinationError:
            with self._lock:
                self._waiting = {**batch, **self._waiting}
                self._held = {**held, **self._held}
            raise
        return has_attempts
