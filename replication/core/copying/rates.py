"""Limits of bytes per second: one for all times, or a timetable by the time of day."""

from __future__ import annotations

import re
from dataclasses import dataclass

from replication.core.shipping.rate import parse_rate
from replication.errors import FormatError

_STEP = re.compile(r"([01]?\d|2[0-3]):([0-5]\d),(\S+)")


@dataclass(frozen=True, slots=True)
class RateTable:
    """Limits by the time of day.

    Attributes:
        steps: minutes since midnight, and the bytes per second from then on, 0 for no limit; in order of time. The last
            one is also that of the morning. Empty sets no limit.
    """

    steps: tuple[tuple[int, float], ...] = ()

    def at(self, minute: int) -> float | None:
        """The bytes per second at a minute of the day; None for no limit."""
        if not self.steps:
            return None
        begun = [rate for begin, rate in self.steps if begin <= minute]
        return (begun or [self.steps[-1][1]])[-1] or None

    def shared(self, count: int) -> RateTable:
        """The limits of each of ``count`` processes that copy at once."""
        return RateTable(tuple((begin, rate / count) for begin, rate in self.steps))


def parse_rates(text: str) -> RateTable:
    """``50MiB``, ``off``, or a timetable such as ``08:00,10MB 18:00,off``; empty sets no limit.

    Raises:
        FormatError: it is none of these.
    """
    words = text.split()
    if not words:
        return RateTable()
    if "," not in text:
        return RateTable(((0, parse_rate(text)),))
    steps = {}
    for word in words:
        if (found := _STEP.fullmatch(word)) is None:
            raise FormatError(f"{word!r} is not HH:MM,RATE", "Write for example '08:00,10MB 18:00,off'")
        steps[int(found[1]) * 60 + int(found[2])] = parse_rate(found[3])
    return RateTable(tuple(sorted(steps.items())))
