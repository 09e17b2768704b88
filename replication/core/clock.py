"""The hybrid logical clock of commit times: close to wall time, unique, and above every commit time it has observed.

After Kulkarni et al., "Logical Physical Clocks" (2014), with time and counter in one int64 of microseconds since 1970.
Pure: the wall time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

FAR_AHEAD_US = 60_000_000


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock's state; ``last`` is the newest time issued or observed, in microseconds since 1970."""

    last: int = 0

    def tick(self, now: int) -> Clock:
        """Return the clock after issuing a new commit time, ``max(now, last + 1)``: the result's ``last``."""
        return Clock(max(now, self.last + 1))

    def observe(self, seen: int) -> Clock:
        """Return the clock after observing another cluster's commit time: the next tick is above it."""
        return Clock(max(self.last, seen))


def is_far_ahead(commit: int, now: int) -> bool:
    """Return whether a commit time is more than ``FAR_AHEAD_US`` ahead of the wall clock ``now``."""
    return commit - now > FAR_AHEAD_US


def moment_text(micros: int) -> str:
    """Microseconds since 1970 as UTC text; ``-`` for 0, and the number itself for years that Python does not have."""
    if not micros:
        return "-"
    try:
        return datetime.fromtimestamp(micros / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    except (ValueError, OverflowError, OSError):
        return str(micros)
