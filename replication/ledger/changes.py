"""Whether a ledger has to be read again: loops that poll every second read nothing while nobody decides anything."""

from __future__ import annotations

import time
from collections.abc import Callable

from replication.ledger.base import Ledger

_LONGEST_S = 30.0  # a decision may be untold


class LedgerChanges:
    """Whether anything may have been decided since the last call. For one thread."""

    def __init__(self, ledger: Ledger, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._monotonic = monotonic
        self._seen: object | None = None
        self._until_s = 0.0

    def any(self) -> bool:
        """Call it before reading. True also when nobody can tell, and every 30 s in any case."""
        found, now_s = self._ledger.decided(), self._monotonic()
        if found is not None and found == self._seen and now_s < self._until_s:
            return False
        self._seen, self._until_s = found, now_s + _LONGEST_S
        return True

    def forget(self) -> None:
        """Have the next call return True: what changed could not be read."""
        self._seen = None
