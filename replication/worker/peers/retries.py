"""Trying again: exponential back-off with jitter, cut short by a stop or a wake-up, forgotten after success."""

from __future__ import annotations

import threading

from tenacity import RetryCallState, Retrying, wait_random_exponential


class Retries:
    """How long to wait before the next attempt at one peer.

    Args:
        min_s: the first wait is at most this much.
        max_s: no wait is longer.
    """

    def __init__(self, min_s: float, max_s: float) -> None:
        self._wait = wait_random_exponential(multiplier=min_s, max=max_s)
        self._floor_s = min_s / 2
        self._state = RetryCallState(Retrying(), None, (), {})
        self.failures = 0

    def succeeded(self) -> None:
        """The next wait is short again."""
        self.failures = 0

    @property
    def tells(self) -> bool:
        """Whether the next failure is worth a line in the log: the 1st, 2nd, 4th, 8th and so on."""
        return (self.failures + 1) & self.failures == 0

    def failed(self) -> float:
        """Count a failure; the seconds to wait before the next attempt."""
        self.failures += 1
        self._state.attempt_number = min(self.failures, 64)
        return max(self._floor_s, self._wait(self._state))

    def wait(self, wake: threading.Event) -> float:
        """Count a failure and wait, or less when ``wake`` is set; the seconds it was to be."""
        seconds = self.failed()
        wake.wait(seconds)
        return seconds
