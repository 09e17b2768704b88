"""How long a peer that fails is left alone: exponential, with jitter handed in. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Failures in a row, and the time before which nothing new is tried; times are seconds of any one clock."""

    failures: int = 0
    until_s: float = 0.0

    def due(self, now_s: float) -> bool:
        """Whether the next attempt may be made."""
        return now_s >= self.until_s

    def failed(self, now_s: float, jitter: float, *, retry_min_s: float, retry_max_s: float) -> Backoff:
        """After one more failure: double the wait of the last, at most ``retry_max_s``, cut by up to half.

        Args:
            now_s: when it failed.
            jitter: uniform in [0, 1); spreads those who failed together.
            retry_min_s: the wait after the first failure.
            retry_max_s: the longest wait.
        """
        wait_s = min(retry_max_s, retry_min_s * 2.0 ** min(self.failures, 60))
        return Backoff(self.failures + 1, now_s + wait_s * (1.0 - jitter / 2))
