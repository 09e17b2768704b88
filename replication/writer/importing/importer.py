"""Imports a file: a few threads read, check and encode it into its own WAL, which is then published as a whole.

A refused or failed import leaves nothing visible. The batch id is the SHA-256 of the file's bytes. So the same content
is imported once, even when several writers import it, or a process is killed and the import repeated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa

from replication.core.definition.schema import TableSpec
from replication.core.frame import Codec
from replication.core.position import Position
from replication.core.rows.batch import EncodedBatch, LogBatch, split
from replication.core.rows.columns import convert
from replication.core.rows.convert import cells, check_once, upserts_from_arrow
from replication.core.rows.mutation import check_history
from replication.errors import FormatError, RequestError, SchemaError
from replication.files.rows.refused import first_refused
from replication.files.rows.row_files import RowFile, place
from replication.ledger.base import Ledger
from replication.writer.importing.bulk_wals import BulkWals
from replication.writer.importing.file_digest import FileDigest, FileFingerprint, check_regular
from replication.writer.wal.batch_ids import BatchIds
from replication.writer.wal.bulk_file import BulkFile
from replication.writer.wal.commit_clock import CommitClock

ENCODERS = 2
_AHEAD = 3 * ENCODERS
_CELL_FIELDS = (pa.field("timestamp", pa.int64()), pa.field("delete", pa.bool_()))


@dataclass(frozen=True, slots=True)
class Imported:
    """The progress of one import.

    Attributes:
        rows: rows written to the WAL.
        rows_total: rows of the file; None when its format does not give the count.
        wal_bytes: bytes written to the WAL.
        position: set when the import is done and durable here.
        repeated: whether the same content had been imported before.
    """

    path: str
    file_bytes: int
    rows: int = 0
    rows_total: int | None = None
    wal_bytes: int = 0
    position: Position | None = None
    repeated: bool = False


Report = Callable[[Imported], None]


@dataclass(slots=True)
class _Import:
    """The state of one import. ``oldest`` has, per batch, the cell with the oldest user timestamp."""

    spec: TableSpec
    source: RowFile
    fingerprint: FileFingerprint
    report: Report
    done: Imported
    bulk: BulkFile | None = None
    oldest: list[dict[str, Any]] = field(default_factory=list)

    def finish(self, position: Position, *, repeated: bool = False) -> Imported:
        """Report that the import is done."""
        return self.progress(replace(self.done, position=position, repeated=repeated))

    def progress(self, done: Imported) -> Imported:
        """Report the progress."""
        self.done = done
        self.report(done)
        return done


class Importer:
    """Imports files for one writer. Safe for threads.

    Args:
        timeout_s: how long to wait while another writer imports the same content.
    """

    def __init__(
        self,
        ledger: Ledger,
        bulk: BulkWals,
        batch_ids: BatchIds,
        clock: CommitClock,
        codec: Codec,
        timeout_s: float,
    ) -> None:
        self._ledger = ledger
        self._bulk = bulk
        self._batch_ids = batch_ids
        self._clock = clock
        self._codec = codec
        self._timeout_s = timeout_s

    def run(self, spec: TableSpec, path: str | Path, form: str, report: Report, *, again: bool) -> Imported:
        """Import one file. All its rows are durable here on return. After any error none of them ever becomes visible.

        Columns are matched by name. ``form`` is by suffix when empty. ``report`` is called in this thread as rows are
        written, and with the result. ``again`` imports a file even when the same content was imported before.

        Raises:
            RequestError: the file does not exist, is a pipe, has an unknown format, or changed meanwhile; or another
                writer has been importing the same content for ``timeout_s``; or this writer is closed.
            FormatError: the file is damaged or has another format.
            SchemaError, NullKeyError: a column or value does not fit the table.
            ReadOnlyClusterError, LeaseLostError, CoordinationError, StorageError: the rows could not be written.
        """
        self._bulk.check_role()  # fail before any work when nothing may be written
        check_regular(path)
        with RowFile(path, form, file_schema(spec)) as source, ExitStack() as stack:
            fingerprint = FileFingerprint.of(source.fileno())
            digest = None if again else stack.enter_context(FileDigest(source.path))
            done = Imported(str(path), fingerprint.size, rows_total=source.row_count())
            job = _Import(spec, source, fingerprint, report, done)
            try:
                existing = self._write(job, digest)
                if existing is not None:
                    return self._repeated(job, existing)
                if job.bulk is None:  # a file without rows
                    return job.finish(Position(self._ledger.cluster))
                return self._publish(job, job.bulk, digest)
            except BaseException as error:
                if job.bulk is not None:
                    self._bulk.refuse(job.bulk, error)
                raise

    def _write(self, job: _Import, digest: FileDigest | None) -> Position | None:
        """Write the rows, not yet visibly. Return early with a position when the content was imported before."""
        is_checked = digest is None
        for rows, batches in self._encoded(job):
            if digest is not None and not is_checked and digest.is_ready:
                is_checked = True
                existing = self._batch_ids.whole(job.spec.uuid, digest.batch_id())
                if existing is not None:
                    return existing
            if job.bulk is None:
                job.bulk = self._bulk.begin()
            self._bulk.check_open()
            for batch in batches:
                job.bulk.add(batch)
            size = sum(batch.size for batch in batches)
            job.progress(replace(job.done, rows=job.done.rows + rows, wal_bytes=job.done.wal_bytes + size))
        return None

    def _publish(self, job: _Import, bulk: BulkFile, digest: FileDigest | None) -> Imported:
        """Make the file visible, unless another writer has imported the same content meanwhile."""
        if digest is None:
            self._check(job)
            return job.finish(self._bulk.publish(bulk, "", job.done.path, job.done.rows))
        table, batch_id = job.spec.uuid, digest.batch_id()
        self._batch_ids.hold(table, batch_id, self._timeout_s)
        try:
            existing = self._batch_ids.take(table, batch_id, self._timeout_s)
            self._check(job)
            if existing is not None:
                return self._repeated(job, existing)
            return job.finish(self._bulk.publish(bulk, batch_id, job.done.path, job.done.rows))
        finally:
            self._batch_ids.release(table, batch_id)

    def _check(self, job: _Import) -> None:
        """Check file, table and timestamps again before publishing: an import may take hours."""
        spec = job.spec
        job.fingerprint.check(job.source.path)
        check_history(job.oldest, spec, self._clock.now())
        if self._ledger.tables.get(spec.name).uuid != spec.uuid:
            raise RequestError(
                f"{spec.name} was dropped and created again during the import", "Import into the new table"
            )

    def _repeated(self, job: _Import, existing: Position) -> Imported:
        if job.bulk is not None:
            self._bulk.drop(job.bulk)
        return job.finish(existing, repeated=True)

    def _encoded(self, job: _Import) -> Iterator[tuple[int, Sequence[EncodedBatch]]]:
        """Yield row counts and encoded batches, in the file's order. A few threads encode ahead."""
        waiting: deque[tuple[int, Future[list[EncodedBatch]]]] = deque()
        first = 1
        encoders = ThreadPoolExecutor(ENCODERS, "import")
        try:
            for batch in job.source.batches(empty=True):
                if not batch.num_rows:
                    self._encode(job, batch, first)  # checks the columns of an empty file
                    continue
                encoded = encoders.submit(self._encode, job, batch, first)
                waiting.append((batch.num_rows, encoded))
                first += batch.num_rows
                while len(waiting) > _AHEAD or waiting and waiting[0][1].done():
                    rows, future = waiting.popleft()
                    yield rows, future.result()
            for rows, future in waiting:
                yield rows, future.result()
        finally:
            encoders.shutdown(cancel_futures=True)

    def _encode(self, job: _Import, batch: pa.RecordBatch, first: int) -> list[EncodedBatch]:
        try:
            return [EncodedBatch.encode(piece, self._codec) for log in self._logs(job, batch) for piece in split(log)]
        except (FormatError, RequestError) as error:
            refused, at = first_refused(batch, lambda rows: self._logs(job, rows)) or (error, None)
            where = "" if at is None else f", {place(job.source.path, job.source.form, first + at)}"
            raise type(refused)(f"{job.source.path}{where}: {refused.what}", refused.hint) from None

    def _logs(self, job: _Import, batch: pa.RecordBatch) -> list[LogBatch]:
        return self._cells(job, batch) if job.spec.kind == "cell" else upserts_from_arrow(batch, job.spec)

    def _cells(self, job: _Import, batch: pa.RecordBatch) -> list[LogBatch]:
        spec = job.spec
        known = [column.name for column in file_schema(spec)]
        unknown = [name for name in batch.schema.names if name not in known]
        missing = [name for name in ("row", "family", "qualifier") if name not in batch.schema.names]
        if unknown or missing:
            defect = f"has a column {unknown[0]!r}" if unknown else f"has no column {missing[0]!r}"
            raise SchemaError(
                f"the file {defect}, and {spec.name} is a cell table", f"Columns may be {', '.join(known)}"
            )
        check_once(batch.schema.names, spec)
        kinds = {field.name: field.type for field in _CELL_FIELDS}
        for at, name in enumerate(batch.schema.names):
            if name in kinds:
                batch = batch.set_column(at, name, convert(batch.column(at), kinds[name], name))
        rows = [{**cell, "visibility": cell.get("visibility") or ""} for cell in batch.to_pylist()]
        if any(cell.get("value") is None and not cell.get("delete") for cell in rows):
            raise SchemaError("a cell has neither a value nor delete", '"" in CSV is an empty value')
        dated = [cell for cell in rows if cell.get("timestamp") is not None]
        oldest = sorted(dated, key=itemgetter("timestamp"))[:1]
        check_history(oldest, spec, self._clock.now())
        job.oldest += oldest
        return cells(rows, spec)


def file_schema(spec: TableSpec) -> pa.Schema:
    """Return the columns that a file for a table may have, with their types."""
    fields = [pa.field(column.name, column.type) for column in spec.columns]
    return pa.schema([*fields, *_CELL_FIELDS] if spec.kind == "cell" else fields)
