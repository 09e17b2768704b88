"""Writes rows to a table: streamed, once under a batch id, as cells, or as keys to delete."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from peer.client.cluster import Cluster
from replication.core.definition.schema import TableSpec
from replication.core.position import Position
from replication.core.rows.columns import convert
from replication.core.rows.convert import log_batches
from replication.core.rows.mutation import Mutation
from replication.errors import NullKeyError, RequestError, SchemaError
from replication.files.rows.refused import first_refused
from replication.writer.importing.importer import file_schema
from replication.writer.wal.batch_ids import check_batch_size
from shell.cli.render import Printer, bytes_text
from shell.rows.files import batches_of, name_of, place_in

_IN_FLIGHT = 8
_PLACE = ("row", "family", "qualifier")
_CELL_HINT = 'A cell has row, family, qualifier and, unless it deletes, value; "" in CSV is an empty one'

Place = Callable[[int], str]


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
    durable, place = _Durable(printer), partial(place_in, source, form)
    if spec.kind == "cell":
        return _write_cells(cluster, spec, batches, durable, place, delete=delete)
    if batch_id is not None:
        return _write_once(cluster, spec, batches, batch_id, durable, place)
    return _write_stream(cluster, spec, batches, durable, place, delete=delete)


class _Durable:
    """Counts durable rows, for the message after Ctrl-C."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._rows = 0
        self.add(0)

    def add(self, rows: int) -> None:
        """Count more rows."""
        self._rows += rows
        self._printer.so_far = f"{self._rows:,} row{'' if self._rows == 1 else 's'} durable by then"


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
    if printer.as_json or not sys.stderr.isatty():
        yield from batches
        return
    layout = (
        TextColumn("{task.fields[rows]:,} rows"),
        BarColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    with Progress(*layout, console=printer.err, transient=True) as progress:
        task = progress.add_task("rows", total=None, rows=0, rate="")
        rows = size = 0
        began = time.monotonic()
        for batch in batches:
            yield batch
            rows, size = rows + batch.num_rows, size + batch.nbytes
            rate = size / max(time.monotonic() - began, 1e-6)
            progress.update(task, rows=rows, rate=f"{bytes_text(rate)}/s")


@contextmanager
def _placed(
    rows: pa.RecordBatch | pa.Table, spec: TableSpec, first: int, place: Place, *, delete: bool = False
) -> Iterator[None]:
    """Say in errors which row does not fit the table; ``first`` is the number of the first one."""
    try:
        yield
    except (SchemaError, NullKeyError):
        refused = first_refused(rows, lambda few: list(log_batches(few, spec, delete=delete)))
        if refused is None:
            raise
        error, at = refused
        raise type(error)(f"{place(first + at)}: {error.what}", error.hint) from None


def _write_stream(
    cluster: Cluster,
    spec: TableSpec,
    batches: Iterator[pa.RecordBatch],
    durable: _Durable,
    place: Place,
    *,
    delete: bool,
) -> WriteResult:
    rows = size = 0
    last: Position | None = None
    waiting: deque[Future[Position]] = deque()
    for batch in batches:
        with _placed(batch, spec, rows + 1, place, delete=delete):
            begun = cluster.delete_async(spec.name, batch) if delete else cluster.upsert_async(spec.name, batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        waiting.append(_counted_when_done(begun, batch.num_rows, durable))
        if len(waiting) >= _IN_FLIGHT:
            last = _joined(last, waiting.popleft().result())
    for future in waiting:
        last = _joined(last, future.result())
    return WriteResult(rows, size, last)


def _counted_when_done(future: Future[Position], rows: int, durable: _Durable) -> Future[Position]:
    def done(ended: Future[Position]) -> None:
        if not ended.cancelled() and ended.exception() is None:
            durable.add(rows)

    future.add_done_callback(done)
    return future


def _write_once(
    cluster: Cluster,
    spec: TableSpec,
    batches: Iterator[pa.RecordBatch],
    batch_id: str,
    durable: _Durable,
    place: Place,
) -> WriteResult:
    found: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        size += batch.nbytes
        check_batch_size(batch_id, size)
        found.append(batch)
    if not found:
        return WriteResult(0, 0, None)
    whole = pa.Table.from_batches(found)
    with _placed(whole, spec, 1, place):
        position = cluster.upsert(spec.name, whole, batch_id=batch_id)
    durable.add(whole.num_rows)
    return WriteResult(whole.num_rows, whole.nbytes, position)


def _write_cells(
    cluster: Cluster,
    spec: TableSpec,
    batches: Iterator[pa.RecordBatch],
    durable: _Durable,
    place: Place,
    *,
    delete: bool,
) -> WriteResult:
    rows = size = 0
    last: Position | None = None
    for batch in batches:
        cells = _cells(batch, spec, rows + 1, place, delete)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        last = _joined(last, cluster.apply(spec.name, cells))
        durable.add(batch.num_rows)
    return WriteResult(rows, size, last)


def _cells(batch: pa.RecordBatch, spec: TableSpec, first: int, place: Place, delete: bool) -> list[Mutation]:
    """A batch's mutations; ``first`` is the number of its first row."""
    types = {field.name: field.type for field in file_schema(spec)}
    found = {name: convert(batch.column(name), types[name], name) for name in batch.schema.names}
    whole = delete or "delete" in found
    for name in _PLACE if whole else (*_PLACE, "value"):
        if name not in found:
            raise SchemaError(f"there is no column {name!r}, and {spec.name} is a cell table", _CELL_HINT)
    rows = pa.RecordBatch.from_arrays(list(found.values()), names=list(found)).to_pylist()
    return [_mutation(cell, first + at, place, delete) for at, cell in enumerate(rows)]


def _mutation(cell: dict[str, Any], row: int, where: Place, delete: bool) -> Mutation:
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
