"""The clock of a writer, and how often it looks and tries again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


def now_us() -> int:
    """The wall clock in microseconds since 1970."""
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class WriterTimes:
    """A clock and times that no user sets.

    ``now`` is the wall clock in microseconds since 1970; the others are seconds.
    ``idle_tick_s``: an idle commit thread looks for WALs to roll or close so often. ``ledger_retry_s``: a ledger that
    failed is left alone for that long at least. ``heartbeat_s``: an import raises its watermark so often.
    """

    now: Callable[[], int] = now_us
    idle_tick_s: float = 0.2
    ledger_retry_s: float = 1.0
    heartbeat_s: float = 0.2


DEFAULT_TIMES = WriterTimes()
