"""Counts messages that this host's receiver refused, for ``status``: at most one write to the ledger a second."""

from __future__ import annotations

import threading
from collections.abc import Callable

from peer.status.refused import REFUSED_MAX, RefusedMessages, load_refused, save_refused
from replication import log
from replication.errors import CoordinationError
from replication.ledger.base import Ledger
from replication.link.base import Reason, Refusal
from replication.wall_clock import now_us

#: Refusals that need a person. The others are usual, such as HOLE, or shown elsewhere, such as DISK_FULL.
_COUNTED = (
    Reason.CLOCK_AHEAD,
    Reason.CORRUPT,
    Reason.LOOP,
    Reason.NOT_GRANTED,
    Reason.TOO_LARGE,
    Reason.VERSION,
    Reason.WRONG_CLUSTER,
)
_log = log.get(__name__)


class RefusedCounts:
    """Refused messages by sender and reason. Safe for threads.

    Args:
        changed: called when there is something to ``save``.
    """

    def __init__(self, ledger: Ledger, host: str, changed: Callable[[], None] = lambda: None) -> None:
        self._ledger = ledger
        self._host = host
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], RefusedMessages] = {}
        self._tell = changed
        self._changed = False
        self._loaded = False

    def count(self, source: str, refusal: Refusal) -> None:
        """Count a refusal whose reason needs a person."""
        if refusal.reason in _COUNTED:
            self.note(source, refusal.reason, refusal.what)

    def note(self, source: str, reason: Reason, what: str) -> None:
        """Count a message of the cluster ``source`` that was refused, whatever the reason."""
        self._add(RefusedMessages(source, reason.value, 1, what[:300], now_us()))

    @property
    def is_saved(self) -> bool:
        """Whether ``save`` has nothing to do."""
        return not self._changed

    def save(self) -> None:
        """Replace this host's counts in the ledger, if they changed."""
        with self._lock:
            if not self._changed:
                return
        try:
            if not self._loaded:
                for earlier in load_refused(self._ledger.landing, self._host):
                    self._add(earlier)
                self._loaded = True
            with self._lock:
                counted, self._changed = list(self._counts.values()), False
            save_refused(self._ledger.landing, self._host, counted)
        except CoordinationError as error:
            self._changed = True
            _log.warning("refused_not_saved", error=str(error))

    def _add(self, more: RefusedMessages) -> None:
        key = (more.source, more.reason)
        with self._lock:
            known = self._counts.pop(key, None)
            self._counts[key] = more if known is None else known.plus(more)
            if len(self._counts) > REFUSED_MAX:
                del self._counts[min(self._counts, key=lambda each: self._counts[each].at)]
            was_saved, self._changed = not self._changed, True
        if was_saved:
            self._tell()
