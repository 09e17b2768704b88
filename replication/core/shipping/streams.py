"""How many streams ship large files to a peer: one more is tried, and kept when it brings more bytes. Pure.

One connection fills a short route. On a long one it is limited to its window over its round trip, and several
connections bring several times that. Which of the two a route is shows only in the figures, and may change, so it is
tried again.
"""

from __future__ import annotations

from dataclasses import dataclass

GAIN = 1.15  # so much more must come through for one more stream to be kept
TRIAL_S = 2.0
REST_S = 60.0


@dataclass(frozen=True, slots=True)
class Streams:
    """``count`` streams, of which the last is on ``trial`` against ``rate`` (bytes/s) without it.

    No other trial begins before ``again_s`` (of the clock that ``judged`` is given).
    """

    count: int = 1
    rate: float = 0.0
    trial: bool = False
    again_s: float = 0.0

    def judged(self, rate: float, now_s: float, most: int) -> Streams:
        """What to do after all streams were busy for about ``TRIAL_S`` and ``rate`` bytes/s came through."""
        if self.count > most:
            return Streams(most, again_s=self.again_s)
        if self.trial and rate < self.rate * GAIN:
            return Streams(self.count - 1, again_s=now_s + REST_S)
        if self.count < most and now_s >= self.again_s:
            return Streams(self.count + 1, rate, True, self.again_s)
        return Streams(self.count, again_s=self.again_s)
