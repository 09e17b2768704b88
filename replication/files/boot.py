"""The id of the machine's boot, and a clock that counts while the machine sleeps."""

from __future__ import annotations

import subprocess
import sys
import time


def boot_id() -> str:
    """An id that changes when the machine restarts. When it has changed, everything that was only in memory is lost."""
    if sys.platform == "linux":
        with open("/proc/sys/kernel/random/boot_id") as source:
            return source.read().strip()
    found = subprocess.run(
        ["sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=True, timeout=10
    )
    return found.stdout.strip()


def boottime_ns() -> int:
    """Nanoseconds since boot, sleep included: CLOCK_BOOTTIME, or macOS's CLOCK_MONOTONIC, which is the same."""
    if sys.platform == "linux":
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
