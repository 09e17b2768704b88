"""The commit clock of one writer, shared by its commit thread and its imports: no two commits have the same time.

Commit times come from a hybrid logical clock. Each is at least the wall clock, above the last one, and above every
commit time registered on this cluster. So a row of a cluster with a fast clock can be overwritten once it is readable.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from replication import log
from replication.core.clock import Clock, is_far_ahead
from replication.errors import CoordinationError
from replication.ledger.base import Ledger, SkewedClock
from replication.retries import next_ask_s

SEEN_EVERY_S = 0.02  # less than it takes a landed row to become visible
SEEN_AGAIN_S = 5.0
ALARM_EVERY_S = 60.0
_log = log.get(__name__)


class CommitClock:
    """A hybrid logical clock (``core/clock.py``) that is safe for threads.

    Args:
        ledger: has the newest commit time registered on this cluster.
        floor: every returned time is above this.
        now: the wall clock in microseconds since 1970.
    """

    def __init__(
        self,
        ledger: Ledger,
        host: str,
        floor: int,
        now: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._host = host
        self._clock = Clock(floor)
        self._now = now
        self._monotonic = monotonic
        self._observe_s = self._alarm_s = 0.0
        self._lock = threading.Lock()

    @property
    def last(self) -> int:
        """The last returned time, or the floor."""
        return self._clock.last

    def wall(self) -> int:
        """The wall clock."""
        return self._now()

    def now(self) -> int:
        """The later of the wall clock and the last returned time."""
        return max(self._now(), self._clock.last)

    def tick(self) -> int:
        """Return a new commit time, in microseconds since 1970, above every earlier one."""
        with self._lock:
            moment = self._monotonic()
            if moment >= self._observe_s:
                self._observe(moment)
            now = self._now()
            self._clock = self._clock.tick(now)
            if is_far_ahead(self._clock.last, now) and moment >= self._alarm_s:
                self._alarm_s = moment + ALARM_EVERY_S
                self._alarm(now)
            return self._clock.last

    def _observe(self, moment: float) -> None:
        try:
            self._clock = self._clock.observe(self._ledger.time.seen())
            self._observe_s = moment + SEEN_EVERY_S
        except CoordinationError as error:  # go on without the ledger: registered commit times may be ahead meanwhile
            self._observe_s = next_ask_s(moment, self._monotonic(), SEEN_AGAIN_S)
            _log.warning("clock_not_followed", host=self._host, error=str(error))

    def _alarm(self, now: int) -> None:
        _log.warning("clock_far_ahead", host=self._host, ahead_s=(self._clock.last - now) / 1e6)
        try:
            self._ledger.time.note_ahead(SkewedClock(self._ledger.cluster, self._clock.last, now))
        except CoordinationError as error:
            _log.warning("clock_far_ahead_not_noted", host=self._host, error=str(error))
