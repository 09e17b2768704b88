"""Forecast when a growing value reaches a limit, from its growth in the last minutes. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression

WINDOW_US = 600_000_000
SPAN_MIN_US = 2_000_000


@dataclass(frozen=True, slots=True)
class Forecast:
    """``growth`` is in units per second, negative when shrinking; ``in_s`` is the time to the limit, None for never."""

    growth: float
    in_s: float | None


def forecast(samples: Sequence[tuple[int, int]], limit: int, now: int, reach: float = math.inf) -> Forecast | None:
    """Forecast when a value reaches ``limit``, at the rate of the last ten minutes.

    The rate is the slope of the least squares line, so single outliers count little.

    Args:
        samples: (microseconds since 1970, value), oldest first.
        limit: at or above this value ``in_s`` is 0.
        now: microseconds since 1970.
        reach: ``in_s`` is None for a limit further away than this many times the span of the samples.

    Returns:
        None when there are fewer than two samples, or they span less than two seconds.
    """
    recent = [(at, value) for at, value in samples if at > now - WINDOW_US]
    if len(recent) < 2 or recent[-1][0] - recent[0][0] < SPAN_MIN_US:
        return None
    start = recent[0][0]
    times = [(at - start) / 1e6 for at, _ in recent]
    values = [value for _, value in recent]
    growth = linear_regression(times, values).slope
    left = limit - values[-1]
    if left <= 0:
        return Forecast(growth, 0.0)
    if growth <= 0:
        return Forecast(growth, None)
    in_s = max(0.0, left / growth - (now - recent[-1][0]) / 1e6)
    return Forecast(growth, in_s if in_s <= reach * times[-1] else None)
