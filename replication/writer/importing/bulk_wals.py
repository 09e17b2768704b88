"""WALs that become visible whole: begun, then published or dropped, then closed in the ledger."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import structlog

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

_log = structlog.get_logger(__name__)


class BulkWals:
    """Those of one writer. Safe for threads.

    Args:
        ledger: gives their numbers.
        files: of this host.
        registration: of the writer.
        clock: gives commit times, the same as for the writer's appends.
        ended: takes a WAL that the ledger could not close yet.
        heartbeat_s: how often the watermark of one in the making rises.
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
        """Let none be begun any more."""
        with self._beginning:
            self._is_closed = True

    def check_open(self) -> None:
        """Raise RequestError when the writer is closed."""
        if self._is_closed:
            raise RequestError("the writer is closed", "Connect again")

    def check_role(self) -> None:
        """Raise ReadOnlyClusterError or CoordinationError where nothing may be written now."""
        self._registration.epoch()

    def begin(self) -> BulkFile:
        """Make the file, durably.

        Raises:
            RequestError: the writer is closed. CoordinationError, StorageError: there is no file.
        """
        place = self._registration.place
        with self._beginning:  # what closes the writer looks for files afterwards
            self.check_open()
            row = self._ledger.files.allocate(place.host, FileKind.WAL, place.directory, place.boot, place.writer)
        handle, counters = make(self._files, row, self._clock.wall(), self._clock.last)
        _log.info("import_opened", file=str(row.file), path=row.path)
        return BulkFile(row, handle, counters, self._clock, self._heartbeat_s)

    def publish(self, bulk: BulkFile, batch_id: str, path: str, rows: int) -> Position:
        """As ``BulkFile.publish``, then close it in the ledger; ``path`` and ``rows`` are for the log."""
        position = bulk.publish(batch_id, self._registration)
        _log.info("file_imported", file=str(bulk.file), path=path, rows=rows, end=bulk.published)
        self._end(bulk)
        return position

    def publish_all(self, batches: Iterable[EncodedBatch], batch_id: str) -> Position:
        """Write batches, in order, as a file of their own under one commit time: all or none; the id is held.

        Raises:
            ReadOnlyClusterError, LeaseLostError, CoordinationError, StorageError: and whatever ``batches`` raises;
                nothing is visible then.
        """
        self.check_role()
        bulk = self.begin()
        try:
            rows = 0
            for batch in batches:
                bulk.add(batch)
                rows += batch.row_count
            return self.publish(bulk, batch_id, "", rows)
        except BaseException as error:
            self.refuse(bulk, error)
            raise

    def refuse(self, bulk: BulkFile, error: BaseException) -> None:
        """Drop a file because of ``error``, unless it was published or dropped before."""
        if bulk.ended:
            return
        _log.warning("import_refused", file=str(bulk.file), error=str(error))
        failed = isinstance(error, StorageError) and not isinstance(error, NoSpaceError)  # a full disk wants its room
        self.drop(bulk, keep=failed)

    def drop(self, bulk: BulkFile, *, keep: bool = False) -> None:
        """Nothing of a file counts; its bytes stay with ``keep``."""
        try:
            bulk.refuse(keep=keep)
        except StorageError as error:
            _log.warning("import_left_behind", file=str(bulk.file), error=str(error))
        self._end(bulk)

    def _end(self, bulk: BulkFile) -> None:
        try:
            bulk.close(self._ledger)
        except CoordinationError:
            self._ended.add(bulk)
