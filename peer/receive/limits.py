"""Where landing happens, and what bounds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LandingLimits:
    """Where landing happens and what bounds it.

    ``file_bytes_max`` and ``idle_s`` close a landing file. ``queue_bytes_max`` is what may wait for the disk,
    ``waiting_bytes_max`` what may wait for replay. ``group_delay_s`` is how long a group waits for more arrivals.
    """

    directory: str
    quarantine_directory: str
    host: str
    boot: str
    disk_free_min_bytes: int
    waiting_bytes_max: int
    file_bytes_max: int = 256 << 20
    idle_s: float = 60.0
    queue_bytes_max: int = 32 << 20
    group_delay_s: float = 0.0
