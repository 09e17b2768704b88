"""How much memory other processes take: their peak over what they took while idle. Linux only; elsewhere nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path


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


def _field(pid: int, name: str) -> int:
    found = re.search(rf"(?m)^{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    if found is None:
        raise OSError(f"no {name} of process {pid}")
    return int(found[1])
