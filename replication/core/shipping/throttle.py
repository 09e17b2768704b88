"""Throttle the bytes sent to a peer with a token bucket, and parse rates. Pure: the time is an argument.

A message may be sent when the bucket is not in debt, and takes its size from the bucket. So frames larger than the
bucket can be sent. In any time t at most ``rate * t + burst`` bytes plus one message are sent.
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
    """Parse ``10MB``, ``512KiB/s`` or ``off`` into bytes per second; ``off`` is 0.

    Raises:
        FormatError: the text is not a rate, or is less than one byte per second.
    """
    if text.strip().lower() == "off":
        return 0
    found = _RATE.match(text.strip())
    rate = float(found["number"]) * _UNITS[(found["unit"] or "").lower()] if found else 0.0
    if not 1 <= rate < _RATE_MAX:
        raise FormatError(f"{text!r} is not a rate", "Write bytes per second, such as 10MB or 512KiB, or off")
    return int(rate)


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """A token bucket: ``tokens`` bytes at ``at_s``, negative in debt; refilled at ``rate`` bytes/s up to ``burst``."""

    rate: float
    burst: float
    tokens: float
    at_s: float

    @staticmethod
    def full(rate: float, now_s: float) -> TokenBucket:
        """Return a full bucket of ``rate`` bytes per second."""
        burst = rate * BURST_S
        return TokenBucket(rate, burst, burst, now_s)

    def at(self, now_s: float) -> TokenBucket:
        """Return the bucket at ``now_s``, refilled; unchanged when the clock went back."""
        if now_s <= self.at_s:
            return self
        return replace(self, tokens=min(self.burst, self.tokens + (now_s - self.at_s) * self.rate), at_s=now_s)

    def wait_s(self) -> float:
        """Return the seconds from ``at_s`` until a message may be sent; 0.0 when one may be sent now."""
        return max(0.0, -self.tokens / self.rate)

    def spend(self, size: int) -> TokenBucket:
        """Return the bucket after a message of ``size`` bytes."""
        return replace(self, tokens=self.tokens - size)

    def at_rate(self, rate: float) -> TokenBucket:
        """Return the bucket with another rate: debt stays, tokens are cut to the new burst."""
        burst = rate * BURST_S
        return TokenBucket(rate, burst, min(self.tokens, burst), self.at_s)

    @property
    def message_bytes(self) -> int:
        """The message size that keeps the rate even."""
        return max(MESSAGE_BYTES_MIN, int(self.burst))
