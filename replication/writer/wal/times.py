"""The clock and the intervals of a writer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from replication.wall_clock import now_us


@dataclass(frozen=True, slots=True)
class WriterTimes:
    """A clock and intervals in seconds that are not settings.

    Attributes:
        now: the wall clock in microseconds since 1970.
        idle_tick_s: how often an idle commit thread checks for WALs to roll or close.
        ledger_retry_s: the minimum pause after the ledger failed.
        heartbeat_s: how often an import raises its watermark.
    """

    now: Callable[[], int] = now_us
    idle_tick_s: float = 0.2
    ledger_retry_s: float = 1.0
    heartbeat_s: float = 0.2


DEFAULT_TIMES = WriterTimes()
