"""Importing a file: read, checked and encoded by a few threads into a WAL of its own, then published whole.

A file that is refused, or fails, leaves nothing that anybody sees. The batch id is the SHA-256 of the file's bytes, so
that the same content is there once however often it is imported, by whomever, and after a kill at any moment.
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
from replication.core.rows.convert import cells, upserts_from_arrow
from replication.core.rows.mutation import check_history
from replication.errors import FormatError, RequestError, SchemaError
from replication.files.rows.row_files import RowFile
from replication.ledger.base import Ledger
from replication.writer.importing.bulk_wals import BulkWals
from replication.writer.importing.file_digest import FileDigest, FileFingerprint
from replication.writer.wal.batch_ids import BatchIds
from replication.writer.wal.bulk_file import BulkFile
from replication.writer.wal.commit_clock import CommitClock

ENCODERS = 2
_AHEAD = 3 * ENCODERS
_CELL_FIELDS = (pa.field("timestamp", pa.int64()), pa.field("delete", pa.bool_()))


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


@dataclass(slots=True)
class _Import:
    """One import as it goes on.

    ``oldest`` is the cell of each batch that has the oldest user timestamp.
    """

    spec: TableSpec
    source: RowFile
    fingerprint: FileFingerprint
    report: Report
    done: Imported
    bulk: BulkFile | None = None
    oldest: list[dict[str, Any]] = field(default_factory=list)

    def ends(self, position: Position, *, repeated: bool = False) -> Imported:
        """Report that it is done."""
        return self.goes_on(replace(self.done, position=position, repeated=repeated))

    def goes_on(self, done: Imported) -> Imported:
        """Report how far it is."""
        self.done = done
        self.report(done)
        return done


class Importer:
    """Imports files for one writer. Safe for threads.

    Args:
        ledger: knows the tables.
        bulk: the WALs that files are imported into.
        batch_ids: what has been imported before.
        clock: gives commit times.
        codec: how frames are compressed.
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
        self._bulk.check_role()  # refuses before any work where nothing may be written
        with RowFile(path, form, file_schema(spec)) as source, ExitStack() as stack:
            fingerprint = FileFingerprint.of(source.fileno())
            digest = None if again else stack.enter_context(FileDigest(source.path))
            done = Imported(str(path), fingerprint.size, rows_total=source.row_count())
            one = _Import(spec, source, fingerprint, report, done)
            try:
                there = self._write(one, digest)
                if there is not None:
                    return self._repeated(one, there)
                if one.bulk is None:  # a file without rows
                    return one.ends(Position(self._ledger.cluster))
                return self._publish(one, one.bulk, digest)
            except BaseException as error:
                if one.bulk is not None:
                    self._bulk.refuse(one.bulk, error)
                raise

    def _write(self, one: _Import, digest: FileDigest | None) -> Position | None:
        """Write the rows, not yet visibly; where they are, as soon as it shows that they were imported before."""
        looked = digest is None
        for rows, batches in self._encoded(one):
            if digest is not None and not looked and digest.is_ready:
                looked = True
                there = self._batch_ids.whole(one.spec.uuid, digest.batch_id())
                if there is not None:
                    return there
            if one.bulk is None:
                one.bulk = self._bulk.begin()
            self._bulk.check_open()
            for batch in batches:
                one.bulk.add(batch)
            size = sum(batch.size for batch in batches)
            one.goes_on(replace(one.done, rows=one.done.rows + rows, wal_bytes=one.done.wal_bytes + size))
        return None

    def _publish(self, one: _Import, bulk: BulkFile, digest: FileDigest | None) -> Imported:
        """Make it visible, unless somebody else has imported the same content meanwhile."""
        if digest is None:
            self._check(one)
            return one.ends(self._bulk.publish(bulk, "", one.done.path, one.done.rows))
        table, batch_id = one.spec.uuid, digest.batch_id()
        self._batch_ids.hold(table, batch_id, self._timeout_s)
        try:
            there = self._batch_ids.take(table, batch_id, self._timeout_s)
            self._check(one)
            if there is not None:
                return self._repeated(one, there)
            return one.ends(self._bulk.publish(bulk, batch_id, one.done.path, one.done.rows))
        finally:
            self._batch_ids.release(table, batch_id)

    def _check(self, one: _Import) -> None:
        """What must hold at the end of what may have taken hours: file, table and timestamps are still good."""
        spec = one.spec
        one.fingerprint.check(one.source.path)
        check_history(one.oldest, spec, self._clock.now())
        if self._ledger.tables.get(spec.name).uuid != spec.uuid:
            raise RequestError(f"{spec.name} was dropped and made anew meanwhile", "Import into the new one")

    def _repeated(self, one: _Import, there: Position) -> Imported:
        if one.bulk is not None:
            self._bulk.drop(one.bulk)
        return one.ends(there, repeated=True)

    def _encoded(self, one: _Import) -> Iterator[tuple[int, Sequence[EncodedBatch]]]:
        """Row counts and encoded batches, in the file's order, encoded ahead by a few threads."""
        waiting: deque[tuple[int, Future[list[EncodedBatch]]]] = deque()
        first, path = 0, one.source.path
        encoders = ThreadPoolExecutor(ENCODERS, "import")
        try:
            for batch in one.source.batches(empty=True):
                if not batch.num_rows:
                    self._encode(one, batch, str(path))  # for its columns, which must be the table's
                    continue
                encoded = encoders.submit(self._encode, one, batch, f"{path}, from row {first:,}")
                waiting.append((batch.num_rows, encoded))
                first += batch.num_rows
                while len(waiting) > _AHEAD or waiting and waiting[0][1].done():
                    rows, future = waiting.popleft()
                    yield rows, future.result()
            for rows, future in waiting:
                yield rows, future.result()
        finally:
            encoders.shutdown(cancel_futures=True)

    def _encode(self, one: _Import, batch: pa.RecordBatch, where: str) -> list[EncodedBatch]:
        try:
            logs = self._cells(one, batch) if one.spec.kind == "cell" else upserts_from_arrow(batch, one.spec)
            return [EncodedBatch.encode(piece, self._codec) for log in logs for piece in split(log)]
        except (FormatError, RequestError) as error:
            raise type(error)(f"{where}: {error.what}", error.hint) from None

    def _cells(self, one: _Import, batch: pa.RecordBatch) -> list[LogBatch]:
        spec = one.spec
        known = [column.name for column in file_schema(spec)]
        unknown = [name for name in batch.schema.names if name not in known]
        missing = [name for name in ("row", "family", "qualifier") if name not in batch.schema.names]
        if unknown or missing:
            odd = f"has a column {unknown[0]!r}" if unknown else f"has no column {missing[0]!r}"
            raise SchemaError(f"the file {odd}, and {spec.name} is a cell table", f"Columns may be {', '.join(known)}")
        rows = [{**cell, "visibility": cell.get("visibility") or ""} for cell in batch.to_pylist()]
        dated = [cell for cell in rows if cell.get("timestamp") is not None]
        first = sorted(dated, key=itemgetter("timestamp"))[:1]
        check_history(first, spec, self._clock.now())
        one.oldest += first
        return cells(rows, spec)


def file_schema(spec: TableSpec) -> pa.Schema:
    """The columns that a file for a table may have, with their types."""
    fields = [pa.field(column.name, column.type) for column in spec.columns]
    return pa.schema([*fields, *_CELL_FIELDS] if spec.kind == "cell" else fields)
