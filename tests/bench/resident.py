"""How much memory other processes take: their peak over what they took while idle. Linux only; elsewhere nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tests.bench.measure import Figure, at_most

MEMORY_MIB = 256


class PeakOfProcesses:
    """Peak resident MiB over idle of processes, from the kernel's own high-water mark (``VmHWM``), reset when made.

    Mapped files count, so the figure is never too small.

    Args:
        processes: name → process id.
    """

    def __init__(self, processes: Mapping[str, int]) -> None:
        self._processes = dict(processes)
        self._idle: dict[str, int] = {}
        for name, pid in self._processes.items():
            try:
                Path(f"/proc/{pid}/clear_refs").write_text("5")
                self._idle[name] = _field(pid, "VmRSS")
            except OSError:
                continue

    def over_idle_mib(self) -> dict[str, float]:
        """Per process; one that is gone, or whose peak cannot be read, is left out."""
        peaks: dict[str, float] = {}
        for name, idle in self._idle.items():
            try:
                peaks[name] = max(0, _field(self._processes[name], "VmHWM") - idle) / 1024
            except OSError:
                continue
        return peaks


def over_idle(what: str, *peaks: Mapping[str, float]) -> list[Figure]:
    """A figure for each process, of the highest of its peaks over idle in MiB."""
    highest: dict[str, float] = {}
    for name, mib in (item for each in peaks for item in each.items()):
        highest[name] = max(mib, highest.get(name, 0.0))
    return [
        at_most(f"{what}, peak memory of the {name} over idle", mib, "MiB", MEMORY_MIB) for name, mib in highest.items()
    ]


def _field(pid: int, name: str) -> int:
    found = re.search(rf"(?m)^{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    if found is None:
        raise OSError(f"no {name} of process {pid}")
    return int(found[1])
