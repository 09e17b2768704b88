"""Trying again: how long to wait after a failure, and calls that are repeated at once, both by tenacity.

Tenacity is imported where it is first needed, since every command imports this module.

``exponential`` makes the wait after the n-th failure in a row. ``Backoff`` counts failures as a value, ``Retries`` for
a thread. ``repeated_on`` repeats an optimistic step that lost a race. ``next_ask_s`` spaces questions
to something that hangs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

Wait = Callable[[int], float]

_EXPONENT_MAX = 64  # later failures wait as long as this one
_HUNG = 10  # its caller goes on without after this many times the time that a call took to fail
_P = ParamSpec("_P")
_R = TypeVar("_R")


def exponential(min_s: float, max_s: float, *, jitter: bool = True) -> Wait:
    """Seconds to wait after the n-th failure in a row: ``min_s``, doubled each time up to ``max_s``.

    With ``jitter`` a random part of at most half is taken off, so that those who failed together do not come back
    together.
    """
    from tenacity import RetryCallState, Retrying, wait_exponential, wait_random_exponential

    sure = wait_exponential(multiplier=min_s / 2, max=max_s / 2)
    random = wait_random_exponential(multiplier=min_s / 2, max=max_s / 2) if jitter else sure

    def wait_s(failures: int) -> float:
        state = RetryCallState(Retrying(), None, (), {})
        state.attempt_number = min(failures, _EXPONENT_MAX)
        return sure(state) + random(state)

    return wait_s


@dataclass(frozen=True, slots=True)
class Backoff:
    """Failures in a row, and the time before which nothing new is tried; times are seconds of any one clock."""

    failures: int = 0
    until_s: float = 0.0

    def due(self, now_s: float) -> bool:
        """Whether the next attempt may be made."""
        return now_s >= self.until_s

    def failed(self, now_s: float, wait: Wait) -> Backoff:
        """After one more failure, at ``now_s``."""
        failures = self.failures + 1
        return Backoff(failures, now_s + wait(failures))


class Retries:
    """Counts failures in a row, for one thread."""

    def __init__(self, min_s: float, max_s: float, *, jitter: bool = True) -> None:
        self._wait = exponential(min_s, max_s, jitter=jitter)
        self.failures = 0

    def succeeded(self) -> None:
        """The next wait is short again."""
        self.failures = 0

    @property
    def is_logged(self) -> bool:
        """Whether the next failure goes to the log: the 1st, 2nd, 4th, 8th and so on."""
        return (self.failures + 1) & self.failures == 0

    def failed(self) -> float:
        """Count a failure; the seconds to wait before the next attempt."""
        self.failures += 1
        return self._wait(self.failures)


def repeated_on(
    *errors: type[Exception], times: int, pause_s: float = 0.0
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """A function that runs anew when it raises one of these errors; ``times`` in all, then it raises.

    Before each time it waits for a random time of up to ``pause_s``.
    """
    from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random

    wait = wait_random(0.0, pause_s)
    return retry(retry=retry_if_exception_type(errors), stop=stop_after_attempt(times), wait=wait, reraise=True)


def next_ask_s(begun_s: float, failed_s: float, min_s: float, max_s: float = math.inf) -> float:
    """When to ask again what was asked at ``begun_s`` and failed at ``failed_s``.

    The wait is ten times as long as the failure took, between ``min_s`` and ``max_s``. So a call that hangs takes a
    tenth of its caller's time at most.
    """
    return failed_s + min(max(min_s, _HUNG * (failed_s - begun_s)), max_s)
