"""The files of this host and their durable lengths.

The length of an open WAL comes from its mapped counters, without a system call; that of a landing file from the
ledger. New files are found when the WAL directory changes, so a successor is followed from its first frame on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from dataclasses import dataclass

from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import FileId
from replication.errors import StorageError
from replication.files.base import Files
from replication.ledger.base import FileKind, FileRow, Ledger
from replication.writer.wal.durable_length import DurableLength


@dataclass(frozen=True, slots=True)
class Source:
    """A file to ship from: bytes below ``length`` are durable; a ``closed`` file does not grow."""

    row: FileRow
    length: int
    closed: bool

    @property
    def file(self) -> FileId:
        """Its id."""
        return self.row.file


class HostFiles:
    """The files of one host. Safe for threads; ``close`` releases the counters."""

    def __init__(self, ledger: Ledger, files: Files, host: str, wal_dir: str) -> None:
        self._ledger = ledger
        self._files = files
        self._host = host
        self._wal_dir = wal_dir
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()  # else rows that were read first could replace newer ones
        self._rows: dict[FileId, FileRow] = {}
        self._counters: dict[FileId, DurableLength] = {}
        self._unreadable: dict[FileId, StorageError] = {}
        self._seen_ns = -1

    def refresh(self) -> None:
        """Read the ledger's rows again."""
        with self._refreshing:
            self._refresh()

    def _refresh(self) -> None:
        seen_ns = self._changed_ns()
        rows = {row.file: row for row in self._ledger.files.all(self._host)}
        unreadable: dict[FileId, StorageError] = {}
        with self._lock:
            for file in [f for f in self._counters if f not in rows or rows[f].closed]:
                self._counters.pop(file).close()  # frees a file descriptor
            for file, row in rows.items():
                grows = row.kind in (FileKind.WAL, FileKind.CONTROL) and not row.is_stored and not row.closed
                if grows and file not in self._counters:
                    try:
                        counters = DurableLength.open(row.path, row.boot, self._files)
                    except StorageError as error:  # it holds up no other file
                        unreadable[file] = error
                        continue
                    if counters is not None:
                        self._counters[file] = counters
            self._rows, self._unreadable = rows, unreadable
            self._seen_ns = seen_ns

    def poll(self) -> list[Source]:
        """Return every file with its current length, by id; read the ledger only when the WAL directory changed."""
        if self._changed_ns() != self._seen_ns:
            self.refresh()
        with self._lock:
            return [Source(row, self._length(row), row.closed) for row in self._rows.values()]

    def are_control(self, files: Collection[FileId]) -> bool:
        """Whether all of these are open control logs."""
        with self._lock:
            rows = [self._rows.get(file) for file in files]
        return all(row is not None and row.kind is FileKind.CONTROL and not row.closed for row in rows)

    def check(self, file: FileId) -> None:
        """Raise StorageError when the counters of an open file cannot be read, so that its length is not known."""
        with self._lock:
            error = self._unreadable.get(file)
        if error is not None:
            raise error

    def watermark(self, row: FileRow) -> int | None:
        """The watermark of an open WAL's writer; read it before the length. None when the file has no counters."""
        with self._lock:
            counters = self._counters.get(row.file)
            return None if counters is None else counters.watermark

    def close(self) -> None:
        """Release the counters."""
        with self._lock:
            for counters in self._counters.values():
                counters.close()
            self._counters.clear()
            self._rows = {}

    def _length(self, row: FileRow) -> int:
        if row.closed:
            return row.closed_length
        counters = self._counters.get(row.file)
        published = counters.length if counters is not None else 0
        return max(row.length, published, FILE_HEADER_BYTES)

    def _changed_ns(self) -> int:
        try:
            return os.stat(self._wal_dir).st_mtime_ns
        except FileNotFoundError:
            return 0
