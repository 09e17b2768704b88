"""How fast bytes may go to a peer: a token bucket over a clock that is handed in, and rates as people write them. Pure.

A message goes whenever the bucket is not in debt, and takes its size from the bucket. So frames larger than the bucket
pass. Over any time t at most ``rate * t + burst`` bytes and one message go.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from replication.errors import FormatError

BURST_S = 0.25
MESSAGE_BYTES_MIN = 16 << 10
_RATE_MAX = 1e18
_RATE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]i?)?B?(?:/s)?\Z", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_UNITS["ti"] = 1 << 40


def parse_rate(text: str) -> int:
    """Bytes per second of ``10MB``, ``512KiB/s`` or ``off``, which is 0.

    Raises:
        FormatError: it is none of these, or less than one byte.
    """
    if text.strip().lower() == "off":
        return 0
    found = _RATE.match(text.strip())
    rate = float(found["number"]) * _UNITS[(found["unit"] or "").lower()] if found else 0.0
    if not 1 <= rate < _RATE_MAX:
        raise FormatError(f"{text!r} is no rate", "Write bytes per second, such as 10MB or 512KiB, or off")
    return int(rate)


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """``tokens`` bytes may go at ``at_s``, below 0 when too much went; refilled at ``rate`` bytes/s up to ``burst``."""

    rate: float
    burst: float
    tokens: float
    at_s: float

    @staticmethod
    def full(rate: float, now_s: float) -> TokenBucket:
        """A bucket of ``rate`` bytes per second that has stood idle."""
        burst = rate * BURST_S
        return TokenBucket(rate, burst, burst, now_s)

    def at(self, now_s: float) -> TokenBucket:
        """The same, later; a clock that went back gives nothing."""
        if now_s <= self.at_s:
            return self
        return replace(self, tokens=min(self.burst, self.tokens + (now_s - self.at_s) * self.rate), at_s=now_s)

    def wait_s(self) -> float:
        """Seconds from ``at_s`` until a message may go; 0.0 when one may now."""
        return max(0.0, -self.tokens / self.rate)

    def spend(self, size: int) -> TokenBucket:
        """After a message of ``size`` bytes went."""
        return replace(self, tokens=self.tokens - size)

    def at_rate(self, rate: float) -> TokenBucket:
        """The same bucket at another rate: debt stays, what is saved is cut to the new burst."""
        burst = rate * BURST_S
        return TokenBucket(rate, burst, min(self.tokens, burst), self.at_s)

    @property
    def message_bytes(self) -> int:
        """How large messages may be so that they go evenly."""
        return max(MESSAGE_BYTES_MIN, int(self.burst))
