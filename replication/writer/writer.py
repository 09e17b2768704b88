"""The writer: from rows to acked positions.

Callers' threads convert rows. They also encode and hash them, except for asynchronous appends, where a few encoder
threads do. The commit thread (``group_commit.py``) writes, syncs and acks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import date
from decimal import Decimal
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from replication.coordination.session import Coordination
from replication.core.definition.schema import TableSpec
from replication.core.frame import Codec
from replication.core.position import Position
from replication.core.rows.batch import EncodedBatch, LogBatch, split
from replication.core.rows.convert import cells, log_batches
from replication.core.rows.input import copied, sliced
from replication.core.rows.mutation import Mutation, cells_of, check_history
from replication.errors import ReplicationError, RequestError, SchemaError, StorageError
from replication.files.base import Files
from replication.files.local import LocalFiles
from replication.ledger.base import Ledger
from replication.settings import WriterSection
from replication.writer.append_queue import AppendQueue
from replication.writer.group_commit import GroupCommit
from replication.writer.importing.bulk_wals import BulkWals
from replication.writer.importing.importer import Imported, Importer, Report
from replication.writer.pending import AppendStep, FewRows, PendingAppend
from replication.writer.wal.batch_ids import BatchIds, IdempotentBatch, check_batch_size
from replication.writer.wal.commit_clock import CommitClock
from replication.writer.wal.registration import LeaseTerms, WriterRegistration
from replication.writer.wal.times import DEFAULT_TIMES, WriterTimes
from replication.writer.wal.wal_series import Place, WalSeries

SMALL_ROWS = 64
SMALL_BYTES = 64 << 10
ENCODERS_MAX = 4
_FLAT = (int, float, date, Decimal)
_CODECS = {"lz4": Codec.LZ4, "zstd": Codec.ZSTD, "none": Codec.NONE}


class Writer:
    """Appends to this host's WALs. Safe for threads; close it, or use it as a context.

    A returned position is durable on this host's disk, not yet at any peer. Rows of one caller are written in the
    order of its calls. An append larger than one frame (65,536 rows, about 8 MiB) is not atomic: when it fails
    half-way, the frames written so far stay. With a batch id, repeating it adds only the missing rows.

    Args:
        place: the directory of this host's WALs, and its slot.
        lease: for how long a role is confirmed, and by whom; ``settings.lease_s``, and ZooKeeper alone, by default.

    Raises:
        ReadOnlyClusterError: the cluster is STANDBY.
        NoWorkerError: no live worker on this host.
    """

    def __init__(
        self,
        ledger: Ledger,
        coordination: Coordination,
        place: Place,
        settings: WriterSection,
        *,
        files: Files | None = None,
        times: WriterTimes = DEFAULT_TIMES,
        lease: LeaseTerms | None = None,
    ) -> None:
        files = files or LocalFiles()
        self._timeout_s = settings.append_timeout_s
        self._codec = codec = _CODECS[settings.codec]
        lease = lease or LeaseTerms(settings.lease_s)
        registration = WriterRegistration(ledger, coordination, files, place, lease)
        self._registration = registration
        self._clock = clock = CommitClock(ledger, place.host, registration.floor, times.now)
        try:
            sizes = (settings.wal_bytes_max, settings.wal_age_max_s)
            series = WalSeries(ledger, files, registration.place, registration, clock, *sizes, times)
            queue = AppendQueue(settings.buffer_bytes_max, self._timeout_s)
            self._commit = GroupCommit(ledger.cluster, series, codec, queue, times.idle_tick_s)
        except BaseException:
            registration.close(clean=False)
            raise
        self._encoders = ThreadPoolExecutor(min(ENCODERS_MAX, os.cpu_count() or 1), "encoder")
        self._batch_ids = BatchIds(ledger, files, registration.place)
        self._bulk = BulkWals(ledger, files, registration, clock, series.ended, times.heartbeat_s)
        self._importer = Importer(ledger, self._bulk, self._batch_ids, clock, codec, self._timeout_s)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The writer's registered id."""
        return self._registration.place.writer

    def upsert(self, spec: TableSpec, rows: object, batch_id: str | None = None) -> Position:
        """Append rows (see ``core/rows/input.py`` for their types) and wait until they are durable here.

        Columns left out of a touched group become NULL; untouched groups keep their values. A repeated ``batch_id``
        adds only the missing rows. A batch with an id is held in memory, and has at most ``BATCH_BYTES_MAX`` (256 MiB).

        After an error, earlier frames of an append of several frames may be written. Its other rows never will be,
        except after WaitTimeoutError.

        Raises:
            SchemaError, NullKeyError: a value or column does not fit the table.
            BatchConflictError: the batch id was used for other rows; nothing was written.
            RequestError: the batch is too large for a batch id; nothing was written.
            BackpressureError: the buffer stayed full for ``append_timeout_s``.
            ReadOnlyClusterError, CoordinationError, LeaseLostError, StorageError: the frame was not published.
            WaitTimeoutError: no ack within ``append_timeout_s``; the outcome is unknown.
        """
        return self._append(PendingAppend(), spec, rows, batch_id).result(self._timeout_s)

    def upsert_async(self, spec: TableSpec, rows: object, batch_id: str | None = None) -> Future[Position]:
        """As ``upsert``, but return when the rows are queued; the future gets the position or the error.

        The future cannot be cancelled: queued rows are written. The caller may change ``rows`` after the call. The
        future's callbacks run in the commit thread: a callback that blocks delays all appends.
        """
        future = _future()
        self._append(PendingAppend(future), spec, copied(rows), batch_id)
        return future

    def delete(self, spec: TableSpec, keys: object) -> Position:
        """Append row deletes, in every group, and wait until they are durable here.

        Raises:
            SchemaError: the table has no key, or ``keys`` does not have exactly the key columns; otherwise as
                ``upsert``.
        """
        return self._append(PendingAppend(), spec, keys, delete=True).result(self._timeout_s)

    def delete_async(self, spec: TableSpec, keys: object) -> Future[Position]:
        """As ``delete``, with a future as of ``upsert_async``."""
        future = _future()
        self._append(PendingAppend(future), spec, copied(keys), delete=True)
        return future

    def apply(self, spec: TableSpec, mutations: Mutation | Iterable[Mutation]) -> Position:
        """Append mutations of a cell table and wait until they are durable here.

        Raises:
            ConditionalMutationError: a mutation has a condition.
            HistoryError: a timestamp is older than the table's ``history_s``.
            SchemaError: the table is not a cell table; otherwise as ``upsert``.
        """
        return self._apply(PendingAppend(), spec, mutations).result(self._timeout_s)

    def apply_async(self, spec: TableSpec, mutations: Mutation | Iterable[Mutation]) -> Future[Position]:
        """As ``apply``, with a future as of ``upsert_async``."""
        future = _future()
        self._apply(PendingAppend(future), spec, mutations)
        return future

    def derive(self, spec: TableSpec, logs: Iterable[LogBatch], batch_id: str) -> Position:
        """Write a batch of a derived table, whole or not at all. Do nothing when the batch id exists.

        ``logs`` are the rows of its only group, no key twice. Only the deriving process uses ``batch_id``.

        Raises:
            RequestError: another writer has held the batch id for ``append_timeout_s``; otherwise as ``upsert``.
        """
        self._batch_ids.hold(spec.uuid, batch_id, self._timeout_s)
        with ExitStack() as release:
            release.callback(self._batch_ids.release, spec.uuid, batch_id)
            existing = self._batch_ids.take(spec.uuid, batch_id, self._timeout_s)
            if existing is not None:
                return existing
            pieces = (piece for log in logs for piece in split(log))
            first = list(islice(pieces, 2))
            if len(first) == 1:
                append = PendingAppend()
                append.on_done = release.pop_all().close
                encoded = EncodedBatch.encode(first[0], self._codec, batch_id)
                return self._queue(append, [AppendStep(append, encoded.size, encoded)]).result(self._timeout_s)
            batches = (EncodedBatch.encode(piece, self._codec) for piece in chain(first, pieces))
            return self._bulk.publish_all(batches, batch_id)

    def derived(self, spec: TableSpec, batch_id: str) -> Position | None:
        """Return the position of a derived table's batch.

        None when the batch does not exist; this writer then holds its id, so no other writer can add it.

        Raises:
            RequestError: another writer has held the batch id for ``append_timeout_s``.
        """
        return self._batch_ids.take(spec.uuid, batch_id, self._timeout_s)

    def restate(self, logs: Iterable[LogBatch], commit: int) -> Position:
        """Write rows under an earlier commit time, all or none, so that they win over versions up to that time only.

        What was read as of a time between ``commit`` and now changes by it. Only for rows that every cluster should
        have had then: those that stand in place of lost writes.

        Raises: as ``derive``.
        """
        pieces = (piece for log in logs for piece in split(log))
        return self._bulk.publish_all((EncodedBatch.encode(piece, self._codec) for piece in pieces), "", commit)

    def import_file(
        self, spec: TableSpec, path: str | Path, form: str, report: Report, *, again: bool = False
    ) -> Imported:
        """Import a whole Parquet, Arrow, ORC or CSV file, under one commit time; see ``Importer.run``."""
        refuse_derived(spec)
        return self._importer.run(spec, path, form, report, again=again)

    def flush(self) -> None:
        """Wait until every earlier append, of any thread, is durable or has failed."""
        append = PendingAppend()
        self._commit.submit(AppendStep(append, 0, None, is_last=True))
        append.result(self._timeout_s)

    def check_may_close(self) -> None:
        """Raise RequestError in a future's callback."""
        self._commit.check_may_close()

    def close(self) -> None:
        """Write queued appends, abort imports under way, close the WAL and unregister the writer. Idempotent."""
        self._bulk.close()
        clean = self._commit.close()
        self._encoders.shutdown()
        self._registration.close(clean=clean)

    def _append(
        self, append: PendingAppend, spec: TableSpec, rows: object, batch_id: str | None = None, *, delete: bool = False
    ) -> PendingAppend:
        refuse_derived(spec)
        if batch_id is not None:
            return self._append_once(append, spec, rows, batch_id)
        if few := _few_rows(append, spec, rows, delete=delete):
            self._commit.submit(few)
            return append
        return self._queue(append, self._encoded(append, log_batches(rows, spec, delete=delete)))

    def _apply(self, append: PendingAppend, spec: TableSpec, mutations: Mutation | Iterable[Mutation]) -> PendingAppend:
        refuse_derived(spec)
        if spec.kind != "cell":
            raise SchemaError(f"{spec.name} is not a cell table", "Use upsert and delete")
        return self._queue(append, self._encoded(append, self._cells(spec, mutations)))

    def _cells(self, spec: TableSpec, mutations: Mutation | Iterable[Mutation]) -> Iterator[LogBatch]:
        for piece in sliced([mutations] if isinstance(mutations, Mutation) else mutations):
            rows = cells_of(piece, spec.name)
            check_history(rows, spec, self._clock.now())
            yield from cells(rows, spec)

    def _append_once(self, append: PendingAppend, spec: TableSpec, rows: object, batch_id: str) -> PendingAppend:
        """Queue the missing parts of a batch. Its id is held from before the lookup until the ack."""
        logs: list[LogBatch] = []
        size = 0
        for log in log_batches(rows, spec):
            size += log.batch.nbytes
            check_batch_size(batch_id, size)
            logs.append(log)
        ids = self._batch_ids
        ids.hold(spec.uuid, batch_id, self._timeout_s)
        append.on_done = partial(ids.release, spec.uuid, batch_id)
        try:
            missing, existing = ids.missing(spec.uuid, IdempotentBatch(batch_id, logs), self._codec, self._timeout_s)
        except BaseException:
            append.on_done()
            raise
        if existing.sequences:
            append.reached(existing)
        return self._queue(append, [AppendStep(append, encoded.size, encoded) for encoded in missing])

    def _encoded(self, append: PendingAppend, logs: Iterable[LogBatch]) -> Iterator[AppendStep]:
        """Yield the steps of an append. Large log batches are encoded here, or by encoder threads if asynchronous."""
        for log in logs:
            for piece in split(log):
                size = int(piece.batch.nbytes)
                if piece.batch.num_rows <= SMALL_ROWS and size <= SMALL_BYTES:
                    yield AppendStep(append, size, piece)
                elif append.future is not None:
                    yield AppendStep(append, size, self._encode_ahead(piece))
                else:
                    encoded = EncodedBatch.encode(piece, self._codec)
                    yield AppendStep(append, encoded.size, encoded)

    def _encode_ahead(self, piece: LogBatch) -> Future[EncodedBatch]:
        try:
            return self._encoders.submit(EncodedBatch.encode, piece, self._codec)
        except RuntimeError:
            raise RequestError("the writer is closed", "Connect again") from None

    def _queue(self, append: PendingAppend, steps: Iterable[AppendStep]) -> PendingAppend:
        """Queue the steps of one append; the last step finishes it."""
        try:
            last: AppendStep | None = None
            for step in steps:
                if last is not None:
                    self._commit.submit(last)
                last = step
            self._commit.submit(replace(last or AppendStep(append, 0, None), is_last=True))
        except ReplicationError as error:
            self._commit.cut_short(append, error)
            raise
        except BaseException as error:  # also Ctrl-C while the queue is full
            self._commit.cut_short(append, StorageError(f"the append was aborted: {error!r}"))
            raise
        return append


def _future() -> Future[Position]:
    future: Future[Position] = Future()
    future.set_running_or_notify_cancel()  # it cannot be cancelled
    return future


def refuse_derived(spec: TableSpec) -> None:
    """Raise RequestError for a derived table: only its hook writes to it."""
    if spec.derived:
        raise RequestError(
            f"{spec.name} is derived from another table at cluster {spec.derived}; only its hook writes to it",
            f"Write to the table it is derived from (walship status at {spec.derived} shows which)",
        )


def _few_rows(append: PendingAppend, spec: TableSpec, rows: object, *, delete: bool) -> AppendStep | None:
    """Return an append of a few rows as one step, which is converted together with others; None for more rows."""
    if isinstance(rows, list) and 0 < len(rows) <= SMALL_ROWS and all(type(row) is dict for row in rows):
        size = _size(rows)
        if size <= SMALL_BYTES:
            if append.future is None:  # after a time-out the caller may change them before they are converted
                rows = [row.copy() for row in rows]
            values = len(rows) + sum(map(len, rows))
            return AppendStep(append, size, FewRows(spec, rows, delete), is_last=True, values=values)
    return None


def _size(rows: Sequence[Mapping[str, Any]]) -> int:
    """Estimate the bytes of a few rows; more than ``SMALL_BYTES`` when a value has another type."""
    size = 0
    for row in rows:
        for value in row.values():
            if isinstance(value, bytes | str):
                size += len(value)
            elif value is None or isinstance(value, _FLAT):
                size += 8
            else:
                return SMALL_BYTES + 1
    return size
