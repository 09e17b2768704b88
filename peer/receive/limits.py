"""The directories and limits of landing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LandingLimits:
    """The directories and limits of landing on one host.

    A landing file is closed at ``file_bytes_max``, or after ``idle_s`` without bytes. ``queue_bytes_max`` limits the
    bytes queued for the disk, ``waiting_bytes_max`` the landed bytes that wait for replay. ``fault_s`` is how long a
    sender's stream waits after a refused message, once there were many.
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
    fault_s: float = 0.5
