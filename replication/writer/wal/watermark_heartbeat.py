"""While a WAL is being made, promises that its commit will be later, so that closed time need not wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from replication.writer.wal.commit_clock import CommitClock

EVERY_S = 0.2


class WatermarkHeartbeat:
    """Raises a watermark a few times a second until ``stop``, which joins its thread."""

    def __init__(self, watermark: Callable[[int], None], clock: CommitClock) -> None:
        self._watermark = watermark
        self._clock = clock
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="import-watermark", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No watermark is made after this returns. Idempotent."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._watermark(self._clock.tick())
