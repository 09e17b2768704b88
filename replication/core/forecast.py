"""When something that grows will reach a limit, computed from its growth in the last minutes. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression

WINDOW_US = 600_000_000
SPAN_MIN_US = 2_000_000


@dataclass(frozen=True, slots=True)
class Forecast:
    """``growth`` in units per second, below 0 when it shrinks; the limit is reached ``in_s`` from now, None: never."""

    growth: float
    in_s: float | None


def forecast(samples: Sequence[tuple[int, int]], limit: int, now: int, reach: float = math.inf) -> Forecast | None:
    """When a value reaches ``limit``, at the rate of the last ten minutes.

    The rate is the slope of the least squares line, so single outliers count little.

    Args:
        samples: (microseconds since 1970, value), oldest first.
        limit: the value at which it is over; at or past it ``in_s`` is 0.
        now: microseconds since 1970.
        reach: no time is given for a limit further away than this many times the span of the samples.

    Returns:
        None while too little is known: fewer than two samples, or none two seconds apart.
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
