"""The rate of one peer on one worker: shared by all streams to the peer, changed while they run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from replication.core.shipping.throttle import TokenBucket


class Throttle:
    """Lets bytes go to a peer at no more than a rate; no rate at first. Safe for threads.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._bucket: TokenBucket | None = None

    def set_rate(self, rate: float) -> None:
        """From now on ``rate`` bytes per second; 0 for no limit. What went too early before is still waited for."""
        with self._lock:
            if rate <= 0:
                self._bucket = None
            elif self._bucket is None:
                self._bucket = TokenBucket.full(rate, self._clock())
            elif self._bucket.rate != rate:
                self._bucket = self._bucket.at(self._clock()).at_rate(rate)

    def message_bytes(self, at_most: int) -> int:
        """How large the next message may be."""
        bucket = self._bucket
        return at_most if bucket is None else min(at_most, bucket.message_bytes)

    def admits(self) -> bool:
        """Whether a message may go now."""
        if self._bucket is None:
            return True
        with self._lock:
            if self._bucket is None:
                return True
            self._bucket = self._bucket.at(self._clock())
            return self._bucket.wait_s() == 0.0

    def spend(self, size: int) -> None:
        """A message of ``size`` bytes went."""
        if self._bucket is None:
            return
        with self._lock:
            if self._bucket is not None:
                self._bucket = self._bucket.at(self._clock()).spend(size)
