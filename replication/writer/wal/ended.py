"""Ended WALs: each is closed in the ledger, as soon as the ledger can be reached."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Protocol

from replication import log
from replication.core.ids import FileId
from replication.errors import CoordinationError, StorageError
from replication.ledger.base import Ledger
from replication.retries import next_ask_s

_log = log.get(__name__)


class EndedWal(Protocol):
    """A WAL that gets no more frames (``wal_file.py``, ``bulk_file.py``)."""

    file: FileId
    published: int  # durable bytes that other processes can see

    def release(self) -> None:
        """Release its lock. One that is OPEN in the ledger is closed there by recovery."""


class EndedWals:
    """Ended WALs that are still OPEN in the ledger. Any thread may call ``add``; the commit thread calls the rest."""

    def __init__(self, ledger: Ledger, retry_s: float) -> None:
        self._ledger = ledger
        self._pause_s = retry_s
        self._wals: deque[EndedWal] = deque()
        self._retry_s = 0.0
        self._lock = threading.Lock()
        self._is_closed = False

    def add(self, wal: EndedWal) -> None:
        """Add a WAL to close in the ledger. After ``close``, the WAL is left to recovery."""
        with self._lock:
            if not self._is_closed:
                self._wals.append(wal)
                return
        wal.release()

    def report_when_due(self) -> None:
        """As ``report``, unless the ledger failed within ``retry_s``."""
        if self._wals and time.monotonic() >= self._retry_s:
            self.report()

    def report(self) -> None:
        """Close the WALs in the ledger, until it fails."""
        while self._wals:
            wal, begun_s = self._wals[0], time.monotonic()
            try:
                self._ledger.files.close(wal.file, wal.published)
            except CoordinationError as error:
                _log.warning("wal_close_delayed", file=str(wal.file), error=str(error))
                self._retry_s = next_ask_s(begun_s, time.monotonic(), self._pause_s)
                return
            except StorageError as error:  # the ledger has another closed length: retrying cannot help
                _log.error("wal_close_refused", file=str(wal.file), error=str(error))
            else:
                _log.info("wal_closed", file=str(wal.file), end=wal.published)
            wal.release()
            self._wals.popleft()

    def close(self) -> None:
        """As ``report``; the remaining WALs and those added later are left to recovery."""
        with self._lock:
            self._is_closed = True
        self.report()
        while self._wals:
            self._wals.popleft().release()
