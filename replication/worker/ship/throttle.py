"""The rate limit of one peer on one worker, shared by all streams to the peer. It may change while they run.

It is a token bucket. A message may be sent when the bucket is not in debt, and takes its size from the bucket. So
frames larger than the bucket can be sent. In any time t at most ``rate * t + burst`` bytes plus one message are sent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

BURST_S = 0.25
_MESSAGE_BYTES_MIN = 16 << 10


class Throttle:
    """Limits the bytes per second to a peer; unlimited until ``set_rate``. Safe for threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rate = 0.0  # no limit
        self._tokens = 0.0  # bytes that may be sent at ``_at_s``; negative in debt
        self._at_s = 0.0

    def set_rate(self, rate: float) -> None:
        """Set the rate in bytes per second; 0 means no limit. A debt of the earlier rate is kept."""
        with self._lock:
            if self._rate:
                self._refill()
                self._tokens = min(self._tokens, rate * BURST_S)
            else:
                self._tokens, self._at_s = rate * BURST_S, self._clock()
            self._rate = max(0.0, rate)

    def message_bytes(self, at_most: int) -> int:
        """Return the maximum size of the next message, which keeps the rate even."""
        rate = self._rate
        return min(at_most, max(_MESSAGE_BYTES_MIN, int(rate * BURST_S))) if rate else at_most

    def wait_s(self) -> float:
        """Return the seconds until a message may be sent; 0.0 when one may be sent now."""
        if not self._rate:
            return 0.0
        with self._lock:
            self._refill()
            return max(0.0, -self._tokens / self._rate) if self._rate else 0.0

    def spend(self, size: int) -> None:
        """Note that a message of ``size`` bytes was sent."""
        if self._rate:
            with self._lock:
                self._refill()
                self._tokens -= size

    def _refill(self) -> None:
        """Add what has come since ``_at_s``; nothing when the clock went back."""
        now_s = self._clock()
        if now_s > self._at_s:
            self._tokens = min(self._rate * BURST_S, self._tokens + (now_s - self._at_s) * self._rate)
            self._at_s = now_s
