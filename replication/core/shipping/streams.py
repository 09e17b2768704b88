"""The number of streams that ship large files to a peer: one more is tried, and kept if the rate grows. Pure.

One connection fills a link with a short round trip. With a long round trip a connection is limited to its window per
round trip, and several connections are several times as fast. Only the measured rate shows which is the case, and it
may change, so trials are repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

GAIN = 1.15  # the factor by which the rate must grow to keep one more stream
TRIAL_S = 2.0
REST_S = 60.0


@dataclass(frozen=True, slots=True)
class Streams:
    """``count`` streams. With ``trial`` the last one is on trial against ``rate``, the bytes/s without it.

    No other trial begins before ``again_s``, by the clock of ``now_s``.
    """

    count: int = 1
    rate: float = 0.0
    trial: bool = False
    again_s: float = 0.0

    def judged(self, rate: float, now_s: float, most: int) -> Streams:
        """Return the streams to use after all were busy for about ``TRIAL_S`` at ``rate`` bytes/s; ``most`` at most."""
        if self.count > most:
            return Streams(most, again_s=self.again_s)
        if self.trial and rate < self.rate * GAIN:
            return Streams(self.count - 1, again_s=now_s + REST_S)
        if self.count < most and now_s >= self.again_s:
            return Streams(self.count + 1, rate, True, self.again_s)
        return Streams(self.count, again_s=self.again_s)
