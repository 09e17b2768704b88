"""WALs that get nothing more: each is closed in the ledger as soon as that can be reached."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Protocol

import structlog

from replication.core.ids import FileId
from replication.errors import CoordinationError, StorageError
from replication.ledger.base import Ledger
from replication.retries import next_ask_s

_log = structlog.get_logger(__name__)


class EndedWal(Protocol):
    """A WAL that gets nothing more (``wal_file.py``, ``bulk_file.py``)."""

    file: FileId
    path: str

    @property
    def published(self) -> int:
        """Durable bytes that other processes can see."""

    def close(self, ledger: Ledger) -> None:
        """Close it in the ledger, then release the lock; CoordinationError when the ledger cannot be reached."""

    def abandon(self) -> None:
        """Release the lock and leave the ledger to recovery."""


class EndedWals:
    """Those that are still open in the ledger. ``add`` is for any thread, the rest for the commit thread."""

    def __init__(self, ledger: Ledger, retry_s: float) -> None:
        self._ledger = ledger
        self._pause_s = retry_s
        self._wals: deque[EndedWal] = deque()
        self._retry_s = 0.0
        self._lock = threading.Lock()
        self._is_closed = False

    def add(self, wal: EndedWal) -> None:
        """Take a WAL to close in the ledger; once this is closed itself, that is left to recovery."""
        with self._lock:
            if not self._is_closed:
                self._wals.append(wal)
                return
        wal.abandon()

    def report_when_due(self) -> None:
        """As ``report``, unless the ledger failed a moment ago."""
        if self._wals and time.monotonic() >= self._retry_s:
            self.report()

    def report(self) -> None:
        """Close them in the ledger, or as many as it takes."""
        while self._wals:
            wal, begun_s = self._wals[0], time.monotonic()
            try:
                wal.close(self._ledger)
            except CoordinationError as error:
                _log.warning("wal_close_delayed", file=str(wal.file), error=str(error))
                self._retry_s = next_ask_s(begun_s, time.monotonic(), self._pause_s)
                return
            except StorageError as error:  # the ledger has it otherwise; nothing here can change that
                _log.error("wal_close_refused", file=str(wal.file), error=str(error))
                wal.abandon()
            else:
                _log.info("wal_closed", file=str(wal.file), end=wal.published)
            self._wals.popleft()

    def close(self) -> None:
        """As ``report``; what the ledger does not take now, and what comes later, is left to recovery."""
        with self._lock:
            self._is_closed = True
        self.report()
        while self._wals:
            self._wals.popleft().abandon()
