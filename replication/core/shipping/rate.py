"""Rates as people write them. Pure."""

from __future__ import annotations

import re

from replication.errors import FormatError

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
