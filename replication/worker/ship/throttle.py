"""The rate limit of one peer on one worker, shared by all streams to the peer. It may change while they run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from replication.core.shipping.throttle import TokenBucket


class Throttle:
    """Limits the bytes per second to a peer; unlimited until ``set_rate``. Safe for threads.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._bucket: TokenBucket | None = None

    def set_rate(self, rate: float) -> None:
        """Set the rate in bytes per second; 0 means no limit. A debt of the earlier rate is kept."""
        with self._lock:
            if rate <= 0:
                self._bucket = None
            elif self._bucket is None:
                self._bucket = TokenBucket.full(rate, self._clock())
            elif self._bucket.rate != rate:
                self._bucket = self._bucket.at(self._clock()).at_rate(rate)

    def message_bytes(self, at_most: int) -> int:
        """Return the maximum size of the next message."""
        bucket = self._bucket
        return at_most if bucket is None else min(at_most, bucket.message_bytes)

    def admits(self) -> bool:
        """Whether a message may be sent now."""
        if self._bucket is None:
            return True
        with self._lock:
            if self._bucket is None:
                return True
            self._bucket = self._bucket.at(self._clock())
            return self._bucket.wait_s() == 0.0

    def spend(self, size: int) -> None:
        """Note that a message of ``size`` bytes was sent."""
        if self._bucket is None:
            return
        with self._lock:
            if self._bucket is not None:
                self._bucket = self._bucket.at(self._clock()).spend(size)
