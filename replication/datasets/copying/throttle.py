"""A limit of bytes per second over all threads of a copy; it may change while they run."""

from __future__ import annotations

import threading
import time

_BURST_S = 0.1


class CopyThrottle:
    """Bytes per second.

    Args:
        bytes_per_s: None for no limit.
        stopped: ends every wait.
    """

    def __init__(self, bytes_per_s: float | None, stopped: threading.Event) -> None:
        self.bytes_per_s = bytes_per_s
        self._stopped = stopped
        self._lock = threading.Lock()
        self._free_at = 0.0

    def take(self, count: int) -> None:
        """Wait until so many more bytes may go."""
        if self.bytes_per_s is None:
            return
        with self._lock:
            now = time.monotonic()
            begin = max(self._free_at, now - _BURST_S)
            self._free_at = begin + count / self.bytes_per_s
            wait_s = self._free_at - now
        if wait_s > 0:
            self._stopped.wait(wait_s)
