"""Writes rows to a table: streamed, once under a batch id, as cells, or as keys to delete."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from peer.client.cluster import Cluster
from replication.core.definition.schema import TableSpec
from replication.core.position import Position
from replication.core.rows.columns import convert
from replication.core.rows.convert import check_once, deletes, upserts_from_arrow
from replication.core.rows.mutation import Mutation
from replication.error_text import counted
from replication.errors import NullKeyError, ReplicationError, RequestError, SchemaError
from replication.files.rows.refused import first_refused
from replication.writer.importing.importer import file_schema
from replication.writer.wal.batch_ids import check_batch_size
from shell.cli.render import Printer, bytes_text
from shell.rows.files import batches_of, name_of, place_in

_IN_FLIGHT = 8
_PLACE = ("row", "family", "qualifier")
_CELL_HINT = 'A cell has row, family, qualifier and, unless it deletes, value; "" in CSV is an empty one'


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Rows and bytes that are durable, and their position; None without rows."""

    rows: int
    bytes: int
    position: Position | None


def write_file(
    cluster: Cluster, spec: TableSpec, source: str, form: str, printer: Printer, *, delete: bool, batch_id: str | None
) -> WriteResult:
    """Write a file's rows, or delete the rows whose keys it holds; all durable when it returns.

    Raises:
        RequestError: no such file, or options that cannot be combined.
        FormatError: it cannot be read.
    """
    if delete and batch_id is not None:
        raise RequestError("--delete and --batch-id cannot be combined", "A delete may be repeated without --batch-id")
    if spec.kind == "cell" and batch_id is not None:
        raise RequestError(
            "--batch-id cannot be used with a cell table", "walship import takes the same file only once"
        )
    batches = _counted(_known(batches_of(source, form, file_schema(spec)), spec, source), printer)
    writing = _Writing(cluster, spec, printer, (source, form), delete=delete)
    if spec.kind == "cell":
        return writing.cells(batches)
    return writing.stream(batches) if batch_id is None else writing.once(batches, batch_id)


def _known(batches: Iterator[pa.RecordBatch], spec: TableSpec, source: str) -> Iterator[pa.RecordBatch]:
    """The batches that have rows; SchemaError for a column that the table does not have, also without rows."""
    known = file_schema(spec).names
    for batch in batches:
        odd = [name for name in batch.schema.names if name not in known]
        if odd:
            what = f"{name_of(source)} has a column {odd[0]!r}, which {spec.name} does not have"
            raise SchemaError(what, f"It has {', '.join(known)}")
        if batch.num_rows:
            yield batch


def _counted(batches: Iterator[pa.RecordBatch], printer: Printer) -> Iterator[pa.RecordBatch]:
    """The same batches, with a progress count on a terminal."""
    layout = (TextColumn("{task.fields[rows]:,} rows"), BarColumn(), TextColumn("{task.fields[rate]}"))
    with printer.bar(*layout, TimeElapsedColumn()) as progress:
        task = progress.add_task("rows", total=None, rows=0, rate="")
        rows = size = 0
        began = time.monotonic()
        for batch in batches:
            yield batch
            rows, size = rows + batch.num_rows, size + batch.nbytes
            rate = size / max(time.monotonic() - began, 1e-6)
            progress.update(task, rows=rows, rate=f"{bytes_text(rate)}/s")


class _Writing:
    """Rows on their way to one table. Counts those that are durable, for the message after Ctrl-C.

    ``source`` is a path or ``-``, and its format.
    """

    def __init__(
        self, cluster: Cluster, spec: TableSpec, printer: Printer, source: tuple[str, str], *, delete: bool
    ) -> None:
        self._cluster, self._spec, self._printer = cluster, spec, printer
        self._name, self._place = name_of(source[0]), partial(place_in, *source)
        self._delete = delete
        self._durable = 0
        self._add_durable(0)

    def stream(self, batches: Iterator[pa.RecordBatch]) -> WriteResult:
        """Write batches as they come, some at a time."""
        rows = size = 0
        last: Position | None = None
        waiting: deque[tuple[int, Future[Position]]] = deque()
        try:
            for batch in batches:
                write = self._cluster.delete_async if self._delete else self._cluster.upsert_async
                with self._placed(batch, rows + 1):
                    begun = write(self._spec.name, batch)
                rows, size = rows + batch.num_rows, size + batch.nbytes
                begun.add_done_callback(partial(self._done, batch.num_rows))
                waiting.append((batch.num_rows, begun))
                if len(waiting) >= _IN_FLIGHT:
                    last = _joined(last, waiting[0][1].result())
                    waiting.popleft()
            while waiting:
                last = _joined(last, waiting[0][1].result())
                waiting.popleft()
        except ReplicationError:
            self._note_written(rows - sum(count for count, begun in waiting if begun.exception() is not None))
            raise
        return WriteResult(rows, size, last)

    def once(self, batches: Iterator[pa.RecordBatch], batch_id: str) -> WriteResult:
        """Write all batches under a batch id."""
        found: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            size += batch.nbytes
            check_batch_size(batch_id, size)
            found.append(batch)
        if not found:
            return WriteResult(0, 0, None)
        whole = pa.Table.from_batches(found)
        with self._placed(whole, 1):
            position = self._cluster.upsert(self._spec.name, whole, batch_id=batch_id)
        self._add_durable(whole.num_rows)
        return WriteResult(whole.num_rows, whole.nbytes, position)

    def cells(self, batches: Iterator[pa.RecordBatch]) -> WriteResult:
        """Write batches of cells, one after the other."""
        rows = size = 0
        last: Position | None = None
        try:
            for batch in batches:
                mutations = _mutations(batch, self._spec, rows + 1, self._place, self._delete)
                last = _joined(last, self._cluster.apply(self._spec.name, mutations))
                rows, size = rows + batch.num_rows, size + batch.nbytes
                self._add_durable(batch.num_rows)
        except ReplicationError:
            self._note_written(rows)
            raise
        return WriteResult(rows, size, last)

    def _note_written(self, rows: int) -> None:
        """Tell, before an error, of rows that are written: of a table without a key they would be written twice."""
        if rows:
            written = f"{counted(rows, 'row')} of {self._name} {'is' if rows == 1 else 'are'} written"
            self._printer.note(f"{written}; walship import takes a file whole or not at all")

    @contextmanager
    def _placed(self, rows: pa.RecordBatch | pa.Table, first: int) -> Iterator[None]:
        """Say in errors which row does not fit the table; ``first`` is the number of the first one."""
        convert_rows = deletes if self._delete else upserts_from_arrow
        try:
            yield
        except (SchemaError, NullKeyError) as error:
            whole = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
            refused = first_refused(whole, lambda few: convert_rows(few, self._spec))
            if refused is None:  # its columns do not fit
                raise type(error)(f"{self._name}: {error.what}", error.hint) from None
            found, at = refused
            raise type(found)(f"{self._place(first + at)}: {found.what}", found.hint) from None

    def _done(self, rows: int, ended: Future[Position]) -> None:
        if not ended.cancelled() and ended.exception() is None:
            self._add_durable(rows)

    def _add_durable(self, rows: int) -> None:
        self._durable += rows
        self._printer.so_far = f"{counted(self._durable, 'row')} durable by then"


def _mutations(
    batch: pa.RecordBatch, spec: TableSpec, first: int, place: Callable[[int], str], delete: bool
) -> list[Mutation]:
    """A batch's mutations; ``first`` is the number of its first row."""
    check_once(batch.schema.names, spec)
    types = {field.name: field.type for field in file_schema(spec)}
    found = {name: convert(batch.column(name), types[name], name) for name in batch.schema.names}
    whole = delete or "delete" in found
    for name in _PLACE if whole else (*_PLACE, "value"):
        if name not in found:
            raise SchemaError(f"there is no column {name!r}, and {spec.name} is a cell table", _CELL_HINT)
    rows = pa.RecordBatch.from_arrays(list(found.values()), names=list(found)).to_pylist()
    return [_mutation(cell, first + at, place, delete) for at, cell in enumerate(rows)]


def _mutation(cell: dict[str, Any], row: int, where: Callable[[int], str], delete: bool) -> Mutation:
    deletes = delete or bool(cell.get("delete"))
    for name in _PLACE if deletes else (*_PLACE, "value"):
        if cell.get(name) is None:
            raise NullKeyError(f"{where(row)} has no {name}", _CELL_HINT)
    mutation = Mutation(cell["row"])
    place = (cell["family"], cell["qualifier"])
    visibility, timestamp = cell.get("visibility") or "", cell.get("timestamp")
    if deletes:
        return mutation.delete(*place, visibility, timestamp)
    return mutation.put(*place, cell["value"], visibility, timestamp)


def _joined(one: Position | None, two: Position) -> Position:
    return two if one is None else one.join(two)
