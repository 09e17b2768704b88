"""Writes the progress of files at peers to the ledger, in batches. Reports are joined, in any order."""

from __future__ import annotations

import threading
from collections.abc import Callable

from replication.core.ids import FileId
from replication.errors import CoordinationError
from replication.ledger.base import Ledger, PeerProgress
from replication.ledger.decisions.progress import join

_WAITING_MAX = 100_000


class ProgressLog:
    """Collects progress; ``flush`` writes it. One joined report per file and peer waits. Safe for threads.

    Args:
        ask: called after each report, to ask for a ``flush``.
    """

    def __init__(self, ledger: Ledger, ask: Callable[[], None] = lambda: None) -> None:
        self._ledger = ledger
        self._ask = ask
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._waiting: dict[tuple[FileId, str], PeerProgress] = {}

    def waiting(self) -> set[FileId]:
        """The files of which reports wait."""
        with self._lock:
            return {file for file, _ in self._waiting}

    def report(self, progress: PeerProgress) -> None:
        """Add to the next batch."""
        key = (progress.file, progress.peer)
        with self._lock:
            known = self._waiting.get(key)
            if known is not None:
                progress = join(known, progress)
            elif len(self._waiting) >= _WAITING_MAX:
                return  # the next stream reports it again, from the peer's resume ranges
            self._waiting[key] = progress
        self._ask()

    def flush(self) -> None:
        """Write all waiting reports. Raises CoordinationError when that fails; then they wait for a retry."""
        with self._flushing:
            with self._lock:
                batch, self._waiting = self._waiting, {}
            if not batch:
                return
            try:
                self._ledger.files.record(list(batch.values()))
            except CoordinationError:
                for progress in batch.values():
                    with self._lock:
                        later = self._waiting.get((progress.file, progress.peer))
                        self._waiting[progress.file, progress.peer] = join(progress, later) if later else progress
                self._ask()
                raise
