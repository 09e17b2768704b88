"""The writer: from rows to acked positions.

Callers' threads convert, encode and hash (for those that wait only for futures, a few encoder threads do); the commit
thread (``group_commit.py``) writes, syncs and acks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import date
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from replication.coordination.session import Coordination
from replication.core.definition.schema import TableSpec
from replication.core.frame import Codec
from replication.core.position import Position
from replication.core.rows.batch import (
    FRAME_ROWS_MAX,
    LogBatch,
    cells,
    deletes,
    split,
    upserts_from_arrow,
    upserts_from_rows,
)
from replication.core.rows.encoded import EncodedBatch
from replication.core.rows.input import given, kept, sliced
from replication.core.rows.mutation import Mutation, cells_of, check_history
from replication.errors import ReplicationError, RequestError, SchemaError, StorageError
from replication.files.base import Files
from replication.files.boot import boot_id
from replication.files.local import LocalFiles
from replication.ledger.base import Ledger
from replication.settings import WriterSection
from replication.writer.group_commit import GroupCommit
from replication.writer.importing.importer import Imported, Importer, Report
from replication.writer.pending import AppendStep, FewRows, PendingAppend
from replication.writer.wal.batch_ids import BatchIds, check_batch_size
from replication.writer.wal.commit_clock import CommitClock
from replication.writer.wal.idempotent import IdempotentBatch
from replication.writer.wal.registration import WriterRegistration
from replication.writer.wal.wal_series import WalSeries

SMALL_ROWS = 64
SMALL_BYTES = 64 << 10
ENCODERS_MAX = 4
_FLAT = (int, float, date, Decimal)
_CODECS = {"lz4": Codec.LZ4, "zstd": Codec.ZSTD, "none": Codec.NONE}


def _now_us() -> int:
    return time.time_ns() // 1000


class Writer:
    """Appends to this host's WALs. Safe for threads; close it, or use it as a context.

    A position that is returned is durable on this host's disk, not yet at any peer. Rows of one caller are written in
    the order of its calls. An append larger than one frame (65,536 rows, about 8 MiB) is not one atomic step: when it
    fails half-way, what was written stays; with a batch id, repeating it adds what is missing.

    Args:
        directory: where the WALs lie.
        host: this host's slot.
        settings: sizes, ages and time-outs.
        now: the wall clock in microseconds since 1970.

    Raises:
        ReadOnlyClusterError: the cluster is STANDBY.
        NoWorkerError: no live worker on this host.
    """

    def __init__(
        self,
        ledger: Ledger,
        coordination: Coordination,
        directory: str,
        host: str,
        settings: WriterSection,
        *,
        files: Files | None = None,
        boot: str | None = None,
        now: Callable[[], int] = _now_us,
    ) -> None:
        files, boot = files or LocalFiles(), boot or boot_id()
        self._timeout_s = settings.append_timeout_s
        self._codec = _CODECS[settings.codec]
        self._now = now
        registration = WriterRegistration(ledger, coordination, files, directory, host, boot, settings.lease_s)
        self._registration = registration

        clock = CommitClock(ledger, host, registration.floor, now)

        def series() -> WalSeries:
            sizes = (settings.wal_bytes_max, settings.wal_age_max_s)
            return WalSeries(ledger, files, registration.place, registration, clock, *sizes, now)

        try:
            self._commit = GroupCommit(ledger.cluster, series, self._codec, settings.buffer_bytes_max, self._timeout_s)
        except BaseException:
            registration.close(clean=False)
            raise
        self._encoders = ThreadPoolExecutor(min(ENCODERS_MAX, os.cpu_count() or 1), "encoder")
        self._batch_ids = BatchIds(ledger.cluster, ledger, files, registration.place)
        self._importer = Importer(
            ledger,
            files,
            registration,
            clock,
            self._batch_ids,
            self._codec,
            self._commit.adopt,
            now,
            settings.append_timeout_s,
        )

    def __enter__(self) -> Writer:
        """The writer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    @property
    def name(self) -> str:
        """The id under which the writer is registered."""
        return self._registration.place.writer

    @property
    def waiting(self) -> int:
        """How many appends, or parts of large ones, wait for the disk; for metrics."""
        return self._commit.waiting

    def upsert(self, spec: TableSpec, rows: object, batch_id: str | None = None) -> Position:
        """Append rows (see ``core/given.py`` for what they may be) and wait until they are durable here.

        Columns left out of a touched group become NULL; untouched groups keep their values. A repeated ``batch_id``
        adds only what is missing; such a batch is held in memory, and may be ``BATCH_BYTES_MAX`` large (256 MiB).

        Raises:
            SchemaError, NullKeyError: a value or column does not fit; nothing was written of rows that did not stream
                in before.
            BatchConflictError: the batch id was used for other rows.
            RequestError: the batch is too large for a batch id; nothing was written.
            BackpressureError: what waits for the disk filled the buffer for ``append_timeout_s``; earlier frames of an
                append of several may have been written.
            ReadOnlyClusterError, CoordinationError, LeaseLostError, StorageError: nothing that was not acked is
                published, but
                earlier frames of an append of several may have been.
            WaitTimeoutError: no ack within ``append_timeout_s``; the outcome is unknown.
        """
        return self._upsert(spec, rows, batch_id).result(self._timeout_s)

    def upsert_async(self, spec: TableSpec, rows: object, batch_id: str | None = None) -> Future[Position]:
        """The same, but return as soon as the rows are queued; the future has the position or the error.

        It cannot be cancelled: what is queued is written. The rows are the caller's again at once. Callbacks of the
        future run in the commit thread: one that waits, as for an append, holds everybody up.
        """
        future = _future()
        self._upsert(spec, kept(rows), batch_id, future)
        return future

    def delete(self, spec: TableSpec, keys: object) -> Position:
        """Append row deletes, in every group, and wait until they are durable here.

        Raises:
            SchemaError: the table has no key, or ``keys`` does not name exactly the key; otherwise as ``upsert``.
        """
        return self._delete(spec, keys).result(self._timeout_s)

    def delete_async(self, spec: TableSpec, keys: object) -> Future[Position]:
        """The same, with a future as of ``upsert_async``."""
        future = _future()
        self._delete(spec, kept(keys), future)
        return future

    def apply(self, spec: TableSpec, mutations: Mutation | Iterable[Mutation]) -> Position:
        """Append mutations of a cell table and wait until they are durable here.

        Raises:
            ConditionalMutationError: a mutation has a condition.
            HistoryError: a timestamp is older than the table's ``history_s``.
            SchemaError: it is not a cell table; otherwise as ``upsert``.
        """
        return self._apply(spec, mutations).result(self._timeout_s)

    def apply_async(self, spec: TableSpec, mutations: Mutation | Iterable[Mutation]) -> Future[Position]:
        """The same, with a future as of ``upsert_async``."""
        future = _future()
        self._apply(spec, mutations, future)
        return future

    def derive(self, spec: TableSpec, logs: Iterable[LogBatch], batch_id: str) -> Position:
        """Write a derived table's batch, whole or not at all; when one of that id is there it is left as it is.

        Args:
            spec: the table.
            logs: of its only group; no key twice.
            batch_id: only to be used by who derives the table.

        Raises:
            RequestError: another writer has been at that batch for ``append_timeout_s``; otherwise as ``upsert``.
        """
        self._batch_ids.hold(spec.uuid, batch_id, self._timeout_s)
        with ExitStack() as held:
            held.callback(self._batch_ids.release, spec.uuid, batch_id)
            there = self._batch_ids.take(spec.uuid, batch_id, self._timeout_s)
            if there is not None:
                return there
            pieces = (piece for log in logs for piece in split(log))
            first = list(islice(pieces, 2))
            if len(first) == 1:
                part = EncodedBatch.encode(first[0], self._codec, batch_id)
                ticket = PendingAppend(on_done=held.pop_all().close)
                return self._submit(iter([part]), ticket).result(self._timeout_s)
            parts = (EncodedBatch.encode(piece, self._codec) for piece in chain(first, pieces))
            return self._importer.publish(parts, batch_id)

    def derived(self, spec: TableSpec, batch_id: str) -> Position | None:
        """Where a derived table's batch is; None: it is not there, and by nobody else will it ever be.

        Raises:
            RequestError: another writer has been at it for ``append_timeout_s``.
        """
        return self._batch_ids.take(spec.uuid, batch_id, self._timeout_s)

    def import_file(
        self, spec: TableSpec, path: str | Path, form: str, report: Report, *, again: bool = False
    ) -> Imported:
        """Import a Parquet, Arrow, ORC or CSV file whole, under one commit time; as ``Importer.run``."""
        refuse_derived(spec)
        return self._importer.run(spec, path, form, report, again=again)

    def flush(self) -> None:
        """Wait until everything appended before, by any thread, is durable or has failed."""
        ticket = PendingAppend()
        self._commit.submit(AppendStep(ticket, 0, True, None))
        ticket.result(self._timeout_s)

    def close(self) -> None:
        """Write what waits, refuse imports that are not done, close the WAL, leave. Idempotent."""
        self._importer.close()
        clean = self._commit.close()
        self._encoders.shutdown()
        self._registration.close(clean=clean)

    def _upsert(
        self, spec: TableSpec, rows: object, batch_id: str | None, future: Future[Position] | None = None
    ) -> PendingAppend:
        refuse_derived(spec)
        if batch_id is None:
            return self._start(spec, rows, PendingAppend(future), delete=False)
        batch = self._whole(spec, rows, batch_id)
        ids = self._batch_ids
        ids.hold(spec.uuid, batch_id, self._timeout_s)
        ticket = PendingAppend(future, on_done=lambda: ids.release(spec.uuid, batch_id))
        try:
            missing, there = ids.missing(spec.uuid, batch, self._codec, self._timeout_s)
        except BaseException:
            ids.release(spec.uuid, batch_id)
            raise
        ticket.reached(there)
        return self._submit(iter(missing), ticket)

    def _delete(self, spec: TableSpec, keys: object, future: Future[Position] | None = None) -> PendingAppend:
        refuse_derived(spec)
        return self._start(spec, keys, PendingAppend(future), delete=True)

    def _apply(
        self, spec: TableSpec, mutations: Mutation | Iterable[Mutation], future: Future[Position] | None = None
    ) -> PendingAppend:
        refuse_derived(spec)
        if spec.kind != "cell":
            raise SchemaError(f"{spec.name} is not a cell table", "Use upsert and delete")
        return self._submit(self._cells(spec, mutations), PendingAppend(future))

    def _whole(self, spec: TableSpec, rows: object, batch_id: str) -> IdempotentBatch:
        logs: list[LogBatch] = []
        size = 0
        for log in self._upserts(spec, rows):
            size += log.batch.nbytes
            check_batch_size(batch_id, size)
            logs.append(log)
        return IdempotentBatch(batch_id, logs)

    def _start(self, spec: TableSpec, rows: object, ticket: PendingAppend, *, delete: bool) -> PendingAppend:
        if isinstance(rows, list) and 0 < len(rows) <= SMALL_ROWS and all(type(row) is dict for row in rows):
            size = _size(rows)
            if size <= SMALL_BYTES:
                self._commit.submit(AppendStep(ticket, size, True, FewRows(spec, rows, delete)))
                return ticket
        return self._submit(self._logs(spec, rows, deletes, deletes) if delete else self._upserts(spec, rows), ticket)

    def _upserts(self, spec: TableSpec, rows: object) -> Iterator[LogBatch]:
        return self._logs(spec, rows, upserts_from_arrow, upserts_from_rows)

    def _logs(
        self,
        spec: TableSpec,
        rows: object,
        from_arrow: Callable[[pa.Table, TableSpec], list[LogBatch]],
        from_rows: Callable[[Sequence[Mapping[str, Any]], TableSpec], list[LogBatch]],
    ) -> Iterator[LogBatch]:
        for piece in given(rows):
            made: list[LogBatch] = []
            size = piece.num_rows if isinstance(piece, pa.Table) else len(piece)
            for begin in range(0, size, FRAME_ROWS_MAX):
                if isinstance(piece, pa.Table):
                    made += from_arrow(piece.slice(begin, FRAME_ROWS_MAX), spec)
                else:
                    made += from_rows(piece[begin : begin + FRAME_ROWS_MAX], spec)
            yield from made

    def _cells(self, spec: TableSpec, mutations: Mutation | Iterable[Mutation]) -> Iterator[LogBatch]:
        for piece in sliced([mutations] if isinstance(mutations, Mutation) else mutations):
            rows = cells_of(piece, spec.name)
            check_history(rows, spec, max(self._now(), self._commit.newest))
            yield from cells(rows, spec)

    def _submit(self, contents: Iterator[LogBatch | EncodedBatch], ticket: PendingAppend) -> PendingAppend:
        """Queue the steps of one append; the last one lets the ticket finish."""
        try:
            waiting: AppendStep | None = None
            for content in contents:
                for size, step in self._steps(content, ahead=ticket.is_future):
                    if waiting is not None:
                        self._commit.submit(waiting)
                    waiting = AppendStep(ticket, size, False, step)
            self._commit.submit(
                AppendStep(ticket, waiting.size, True, waiting.content)
                if waiting
                else AppendStep(ticket, 0, True, None)
            )
        except BaseException as error:  # Ctrl-C while it waits for room, too
            told = (
                error if isinstance(error, ReplicationError) else StorageError(f"the append was cut short: {error!r}")
            )
            self._commit.give_up(ticket, told)
            raise
        return ticket

    def _encode_ahead(self, piece: LogBatch) -> Future[EncodedBatch]:
        try:
            return self._encoders.submit(EncodedBatch.encode, piece, self._codec)
        except RuntimeError:
            raise RequestError("the writer is closed", "Connect again") from None

    def _steps(
        self, content: LogBatch | EncodedBatch, *, ahead: bool
    ) -> Iterator[tuple[int, LogBatch | EncodedBatch | Future[EncodedBatch]]]:
        if isinstance(content, EncodedBatch):
            yield content.size, content
            return
        for piece in split(content):
            size = int(piece.batch.nbytes)
            if piece.batch.num_rows <= SMALL_ROWS and size <= SMALL_BYTES:
                yield size, piece
            elif ahead:
                yield size, self._encode_ahead(piece)
            else:
                part = EncodedBatch.encode(piece, self._codec)
                yield part.size, part


def _future() -> Future[Position]:
    future: Future[Position] = Future()
    future.set_running_or_notify_cancel()  # it cannot be cancelled
    return future


def refuse_derived(spec: TableSpec) -> None:
    """Raise RequestError for a table that only a hook writes to."""
    if spec.derived:
        raise RequestError(
            f"{spec.name} is derived from another table at cluster {spec.derived}, so nobody else writes to it",
            f"Write to the table it is derived from (walship status at {spec.derived} says which)",
        )


def _size(rows: Sequence[Mapping[str, Any]]) -> int:
    """About how many bytes a few rows take; more than ``SMALL_BYTES`` where only Arrow can tell."""
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
