"""Importing a file: read, checked and encoded by a few threads into a WAL of its own, then published whole.

A file that is refused, or fails, leaves nothing that anybody sees. The batch id is the SHA-256 of the file's bytes, so
that the same content is there once however often it is imported, by whomever, and after a kill at any moment.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import structlog

from replication.core.definition.schema import TableSpec
from replication.core.frame import Codec
from replication.core.position import Position
from replication.core.rows.batch import LogBatch, cells, split, upserts_from_arrow
from replication.core.rows.encoded import EncodedBatch
from replication.core.rows.mutation import check_history
from replication.errors import (
    CoordinationError,
    FormatError,
    NoSpaceError,
    RequestError,
    SchemaError,
    StorageError,
)
from replication.files.base import Files
from replication.files.rows.row_files import RowFile
from replication.ledger.base import FileKind, Ledger
from replication.writer.importing.file_digest import FileDigest, FileFingerprint
from replication.writer.wal.batch_ids import BatchIds
from replication.writer.wal.bulk_file import BulkFile
from replication.writer.wal.commit_clock import CommitClock
from replication.writer.wal.registration import WriterRegistration
from replication.writer.wal.wal_file import make
from replication.writer.wal.wal_series import EndedWal

ENCODERS = 2
_AHEAD = 3 * ENCODERS
_CELL_FIELDS = (pa.field("timestamp", pa.int64()), pa.field("delete", pa.bool_()))
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Imported:
    """How far one file is: ``rows`` and ``wal_bytes`` are in the WAL, of ``rows_total`` where the file says that.

    With a ``position`` it is done, all of it durable here; ``repeated``: this very content had been imported before.
    """

    path: str
    file_bytes: int
    rows: int = 0
    rows_total: int | None = None
    wal_bytes: int = 0
    position: Position | None = None
    repeated: bool = False


Report = Callable[[Imported], None]


class Importer:
    """Imports files for one writer. Safe for threads.

    Args:
        clock: gives commit times, the same as for the writer's appends.
        adopt: takes a WAL of which the ledger could not be told.
        now: the wall clock in microseconds since 1970.
        timeout_s: how long to wait while another writer imports the same content.
    """

    def __init__(
        self,
        ledger: Ledger,
        files: Files,
        registration: WriterRegistration,
        clock: CommitClock,
        batch_ids: BatchIds,
        codec: Codec,
        adopt: Callable[[EndedWal], None],
        now: Callable[[], int],
        timeout_s: float,
    ) -> None:
        self._ledger = ledger
        self._files = files
        self._registration = registration
        self._clock = clock
        self._batch_ids = batch_ids
        self._codec = codec
        self._adopt = adopt
        self._now = now
        self._timeout_s = timeout_s
        self._beginning = threading.Lock()
        self._is_closed = False

    def close(self) -> None:
        """Let no import begin a file any more; one that has is refused when it comes to its next rows."""
        with self._beginning:
            self._is_closed = True

    def run(self, spec: TableSpec, path: str | Path, form: str, report: Report, *, again: bool) -> Imported:
        """Import one file; when this returns all its rows are durable here, and other clusters follow.

        Args:
            spec: the table; columns are matched by name.
            path: a Parquet, Arrow, ORC or CSV file.
            form: its format; by suffix when empty.
            report: called from this thread as rows are written, and with what is returned.
            again: import it though the same content was imported before.

        Raises:
            RequestError: no such file, its format cannot be told, it changed while it was read, another writer has
                been importing the same content for ``timeout_s``, or this writer is closed.
            FormatError: it is damaged or not of its format. SchemaError, NullKeyError: a column or value does not fit.
            ReadOnlyClusterError, LeaseLostError, CoordinationError, StorageError: it could not be written.
            After any of them nothing of the file is visible anywhere, nor will be.
        """
        self._registration.epoch()  # refuses before any work where nothing may be written
        with RowFile(path, form, file_schema(spec)) as source, ExitStack() as stack:
            stamp = FileFingerprint.of(source.fileno())
            digest = None if again else stack.enter_context(FileDigest(source.path))
            done = Imported(str(path), stamp.size, rows_total=source.row_count())
            bulk: BulkFile | None = None
            oldest: list[dict[str, Any]] = []
            check = partial(self._check, spec, source, stamp, oldest)
            try:
                looked = digest is None
                for rows, parts in self._encoded(spec, source, oldest):
                    if digest is not None and not looked and digest.is_ready:
                        looked = True
                        there = self._batch_ids.whole(spec.uuid, digest.batch_id())
                        if there is not None:
                            return self._repeated(bulk, done, there, report)
                    if bulk is None:
                        bulk = self._begin()
                    self._check_open()
                    for part in parts:
                        bulk.add(part)
                    size = sum(part.size for part in parts)
                    done = replace(done, rows=done.rows + rows, wal_bytes=done.wal_bytes + size)
                    report(done)
                if bulk is None:  # a file without rows
                    done = replace(done, position=Position(self._ledger.cluster))
                    report(done)
                    return done
                return self._finish(spec, bulk, digest, check, done, report)
            except BaseException as error:
                if bulk is not None:
                    self._refuse(bulk, error)
                raise

    def publish(self, parts: Iterable[EncodedBatch], batch_id: str) -> Position:
        """Write parts, in order, as a file of their own under one commit time: all of them or none; the id is held.

        Raises:
            ReadOnlyClusterError, LeaseLostError, CoordinationError, StorageError: as ``run``, and whatever ``parts``
                raises; nothing is visible then.
        """
        self._registration.epoch()
        bulk = self._begin()
        try:
            rows = 0
            for part in parts:
                bulk.add(part)
                rows += part.row_count
            done = self._publish(bulk, batch_id, Imported("", 0, rows), lambda _: None)
        except BaseException as error:
            self._refuse(bulk, error)
            raise
        assert done.position is not None, "what is published is somewhere"
        return done.position

    def _begin(self) -> BulkFile:
        place = self._registration.place
        with self._beginning:  # what closes the writer looks for files afterwards
            self._check_open()
            row = self._ledger.files.allocate(place.host, FileKind.WAL, place.directory, place.boot, place.writer)
        handle, counters = make(self._files, row, self._now(), self._clock.last)
        _log.info("import_opened", file=str(row.file), path=row.path)
        return BulkFile(row, handle, counters, self._clock)

    def _check_open(self) -> None:
        if self._is_closed:
            raise RequestError("the writer is closed", "Connect again")

    def _encoded(
        self, spec: TableSpec, source: RowFile, oldest: list[dict[str, Any]]
    ) -> Iterator[tuple[int, Sequence[EncodedBatch]]]:
        """Row counts and parts, batch by batch in the file's order, encoded ahead by a few threads.

        ``oldest`` gets the cell of each batch that has the oldest user timestamp.
        """
        waiting: deque[tuple[int, Future[list[EncodedBatch]]]] = deque()
        first = 0
        encoders = ThreadPoolExecutor(ENCODERS, "import")
        try:
            for batch in source.batches(empty=True):
                if not batch.num_rows:
                    self._encode(spec, batch, str(source.path), oldest)  # for its columns, which must be the table's
                    continue
                encoded = encoders.submit(self._encode, spec, batch, f"{source.path}, from row {first:,}", oldest)
                waiting.append((batch.num_rows, encoded))
                first += batch.num_rows
                while len(waiting) > _AHEAD or waiting and waiting[0][1].done():
                    rows, future = waiting.popleft()
                    yield rows, future.result()
            for rows, future in waiting:
                yield rows, future.result()
        finally:
            encoders.shutdown(cancel_futures=True)

    def _encode(
        self, spec: TableSpec, batch: pa.RecordBatch, where: str, oldest: list[dict[str, Any]]
    ) -> list[EncodedBatch]:
        try:
            logs = self._cells(spec, batch, oldest) if spec.kind == "cell" else upserts_from_arrow(batch, spec)
            return [EncodedBatch.encode(piece, self._codec) for log in logs for piece in split(log)]
        except (FormatError, RequestError) as error:
            raise type(error)(f"{where}: {error.what}", error.hint) from None

    def _cells(self, spec: TableSpec, batch: pa.RecordBatch, oldest: list[dict[str, Any]]) -> list[LogBatch]:
        known = [field.name for field in file_schema(spec)]
        unknown = [name for name in batch.schema.names if name not in known]
        missing = [name for name in ("row", "family", "qualifier") if name not in batch.schema.names]
        if unknown or missing:
            odd = f"has a column {unknown[0]!r}" if unknown else f"has no column {missing[0]!r}"
            raise SchemaError(f"the file {odd}, and {spec.name} is a cell table", f"Columns may be {', '.join(known)}")
        rows = [{**cell, "visibility": cell.get("visibility") or ""} for cell in batch.to_pylist()]
        dated = [cell for cell in rows if cell.get("timestamp") is not None]
        first = sorted(dated, key=itemgetter("timestamp"))[:1]
        check_history(first, spec, max(self._now(), self._clock.last))
        oldest += first
        return cells(rows, spec)

    def _check(
        self, spec: TableSpec, source: RowFile, stamp: FileFingerprint, oldest: Sequence[Mapping[str, Any]]
    ) -> None:
        """What must hold at the end of what may have taken hours: file, table and timestamps are still good."""
        stamp.check(source.path)
        check_history(oldest, spec, max(self._now(), self._clock.last))
        if self._ledger.tables.get(spec.name).uuid != spec.uuid:
            raise RequestError(f"{spec.name} was dropped and made anew meanwhile", "Import into the new one")

    def _finish(
        self,
        spec: TableSpec,
        bulk: BulkFile,
        digest: FileDigest | None,
        check: Callable[[], None],
        done: Imported,
        report: Report,
    ) -> Imported:
        batch_id = "" if digest is None else digest.batch_id()
        if not batch_id:
            check()
            return self._publish(bulk, batch_id, done, report)
        self._batch_ids.hold(spec.uuid, batch_id, self._timeout_s)
        try:
            there = self._batch_ids.take(spec.uuid, batch_id, self._timeout_s)
            check()
            if there is not None:
                return self._repeated(bulk, done, there, report)
            return self._publish(bulk, batch_id, done, report)
        finally:
            self._batch_ids.release(spec.uuid, batch_id)

    def _publish(self, bulk: BulkFile, batch_id: str, done: Imported, report: Report) -> Imported:
        position = bulk.publish(batch_id, self._registration)
        _log.info("file_imported", file=str(bulk.file), path=done.path, rows=done.rows, end=bulk.published)
        self._end(bulk)
        done = replace(done, position=position)
        report(done)
        return done

    def _repeated(self, bulk: BulkFile | None, done: Imported, there: Position, report: Report) -> Imported:
        if bulk is not None:
            self._drop(bulk, keep=False)
        done = replace(done, position=there, repeated=True)
        report(done)
        return done

    def _refuse(self, bulk: BulkFile, error: BaseException) -> None:
        if bulk.ended:
            return  # published, or dropped: what failed came after
        _log.warning("import_refused", file=str(bulk.file), error=str(error))
        failed = isinstance(error, StorageError) and not isinstance(error, NoSpaceError)  # a full disk wants its room
        self._drop(bulk, keep=failed)

    def _drop(self, bulk: BulkFile, *, keep: bool) -> None:
        try:
            bulk.refuse(keep=keep)
        except StorageError as error:
            _log.warning("import_left_behind", file=str(bulk.file), error=str(error))
        self._end(bulk)

    def _end(self, bulk: BulkFile) -> None:
        try:
            bulk.close(self._ledger)
        except CoordinationError:
            self._adopt(bulk)


def file_schema(spec: TableSpec) -> pa.Schema:
    """The columns that a file for a table may have, with their types."""
    fields = [pa.field(column.name, column.type) for column in spec.columns]
    return pa.schema([*fields, *_CELL_FIELDS] if spec.kind == "cell" else fields)
