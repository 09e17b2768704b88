"""The hybrid logical clock of commit times: close to wall time, never the same twice, never behind what was seen.

After Kulkarni et al., "Logical Physical Clocks" (2014), with time and counter in one int64 of microseconds since 1970.
Pure: the wall clock is handed in.
"""

from __future__ import annotations

from dataclasses import dataclass

FAR_AHEAD_US = 60_000_000


@dataclass(frozen=True, slots=True)
class Clock:
    """The last time given or seen, in microseconds since 1970."""

    last: int = 0

    def tick(self, now: int) -> Clock:
        """The clock after giving a new time: ``max(now, last + 1)``, which is the result's ``last``."""
        return Clock(max(now, self.last + 1))

    def observe(self, seen: int) -> Clock:
        """The clock after seeing another cluster's commit time: the next tick is above it."""
        return Clock(max(self.last, seen))


def is_far_ahead(commit: int, now: int) -> bool:
    """Whether a commit time is so far ahead of the wall clock ``now`` that somebody should look at the clocks."""
    return commit - now > FAR_AHEAD_US
