"""Bulk WALs: each becomes visible as a whole or not at all. Begin one, publish or drop it, then close it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress

from replication import log
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.position import Position
from replication.core.rows.batch import EncodedBatch
from replication.errors import CoordinationError, NoSpaceError, RequestError, StorageError
from replication.files.base import Files
from replication.ledger.base import FileKind, Ledger
from replication.writer.wal.bulk_file import BulkFile
from replication.writer.wal.commit_clock import CommitClock
from replication.writer.wal.ended import EndedWals
from replication.writer.wal.registration import WriterRegistration
from replication.writer.wal.wal_file import make

_log = log.get(__name__)


class BulkWals:
    """The bulk WALs of one writer. Safe for threads.

    Args:
        clock: the commit clock, shared with the writer's appends.
        ended: closes WALs that could not be closed in the ledger at once.
        heartbeat_s: how often the watermark of an unfinished bulk WAL rises.
    """

    def __init__(
        self,
        ledger: Ledger,
        files: Files,
        registration: WriterRegistration,
        clock: CommitClock,
        ended: EndedWals,
        heartbeat_s: float,
    ) -> None:
        self._ledger = ledger
        self._files = files
        self._registration = registration
        self._clock = clock
        self._ended = ended
        self._heartbeat_s = heartbeat_s
        self._beginning = threading.Lock()
        self._is_closed = False

    def close(self) -> None:
        """Refuse ``begin`` from now on."""
        with self._beginning:
            self._is_closed = True

    def check_open(self) -> None:
        """Raise RequestError when the writer is closed."""
        if self._is_closed:
            raise RequestError("the writer is closed", "Connect again")

    def check_role(self) -> None:
        """Raise ReadOnlyClusterError or CoordinationError when nothing may be written now."""
        self._registration.epoch()

    def begin(self) -> BulkFile:
        """Create the file; its name and header are durable on return.

        Raises:
            RequestError: the writer is closed.
            CoordinationError, StorageError: the file was not created.
        """
        place = self._registration.place
        with self._beginning:  # closing the writer lists its open files afterwards
            self.check_open()
            row = self._ledger.files.allocate(place.host, FileKind.WAL, place.directory, place.boot, place.writer)
        try:
            handle, counters = make(self._files, row, self._clock.wall(), self._clock.last)
        except BaseException:
            with suppress(CoordinationError):  # else recovery closes it, once this writer has ended
                self._ledger.files.close(row.file, FILE_HEADER_BYTES)
            raise
        _log.info("import_opened", file=str(row.file), path=row.path)
        return BulkFile(row, handle, counters, self._clock, self._heartbeat_s)

    def publish(self, bulk: BulkFile, batch_id: str, path: str, rows: int, commit: int = 0) -> Position:
        """As ``BulkFile.publish``, then close the file in the ledger; ``path`` and ``rows`` are for the log."""
        position = bulk.publish(batch_id, self._registration, commit)
        _log.info("file_imported", file=str(bulk.file), path=path, rows=rows, end=bulk.published)
        self._end(bulk)
        return position

    def publish_all(self, batches: Iterable[EncodedBatch], batch_id: str, commit: int = 0) -> Position:
        """Write batches, in order, as one file under one commit time, all or none. The caller holds the batch id.

        ``commit`` is that time; 0 for a new one.

        Raises:
            ReadOnlyClusterError, LeaseLostError, CoordinationError, StorageError: nothing is visible. The same holds
                for any error that ``batches`` raises.
        """
        self.check_role()
        bulk = self.begin()
        try:
            rows = 0
            for batch in batches:
                bulk.add(batch)
                rows += batch.row_count
            return self.publish(bulk, batch_id, "", rows, commit)
        except BaseException as error:
            self.refuse(bulk, error)
            raise

    def refuse(self, bulk: BulkFile, error: BaseException) -> None:
        """Drop a file because of ``error``, unless it was published or dropped before."""
        if bulk.ended:
            return
        _log.warning("import_refused", file=str(bulk.file), error=str(error))
        failed = isinstance(error, StorageError) and not isinstance(error, NoSpaceError)  # a full disk needs the space
        self.drop(bulk, keep=failed)

    def drop(self, bulk: BulkFile, *, keep: bool = False) -> None:
        """Refuse and close a file that is not published; ``keep`` leaves its bytes on the disk."""
        try:
            bulk.refuse(keep=keep)
        except StorageError as error:
            _log.warning("import_left_behind", file=str(bulk.file), error=str(error))
        self._end(bulk)

    def _end(self, bulk: BulkFile) -> None:
        try:
            self._ledger.files.close(bulk.file, bulk.published)
        except CoordinationError:
            self._ended.add(bulk)
        else:
            bulk.release()
