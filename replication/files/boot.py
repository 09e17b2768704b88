"""The id of the machine's boot, and a clock that counts while the machine sleeps."""

from __future__ import annotations

import subprocess
import sys
import time


def boot_id() -> str:
    """Return an id that changes when the machine restarts. After a change, bytes that were only in memory are lost."""
    if sys.platform == "linux":
        with open("/proc/sys/kernel/random/boot_id") as source:
            return source.read().strip()
    output = subprocess.run(
        ["sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=True, timeout=10
    )
    return output.stdout.strip()


def boottime_ns() -> int:
    """Return nanoseconds since boot, sleep included: CLOCK_BOOTTIME, or its equivalent CLOCK_MONOTONIC on macOS."""
    if sys.platform == "linux":
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
