"""Rows on their way into a table: streamed, written once under a batch id, as cells, or as keys to delete."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from peer.cluster import Cluster
from replication.core.mutation import Mutation
from replication.core.position import Position
from replication.core.schema import TableSpec
from replication.errors import RequestError
from replication.writer.importing import file_schema
from shell.render import Printer, bytes_text
from shell.rowfiles import batches_of

_IN_FLIGHT = 8


@dataclass(frozen=True, slots=True)
class Written:
    """Rows and bytes that are durable, and where they are; no position when there were none."""

    rows: int
    bytes: int
    position: Position | None


def write_file(
    cluster: Cluster, spec: TableSpec, source: str, form: str, printer: Printer, *, delete: bool, batch_id: str | None
) -> Written:
    """Write a file's rows, or delete the rows whose keys it holds; all durable when it returns.

    Raises:
        RequestError: no such file, or options that do not go together.
        FormatError: it cannot be read.
    """
    if delete and batch_id is not None:
        raise RequestError("--delete and --batch-id do not go together", "Deleting twice changes nothing anyway")
    if spec.kind == "cell" and batch_id is not None:
        raise RequestError("--batch-id does not go with a cell table", "walship import takes the same file only once")
    batches = _counted(batches_of(source, form, file_schema(spec)), printer)
    if spec.kind == "cell":
        return _write_cells(cluster, spec, batches, delete)
    if batch_id is not None:
        return _write_once(cluster, spec, batches, batch_id)
    return _write_stream(cluster, spec, batches, delete)


def _counted(batches: Iterator[pa.RecordBatch], printer: Printer) -> Iterator[pa.RecordBatch]:
    """The same batches, with a moving count on a terminal."""
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


def _write_stream(cluster: Cluster, spec: TableSpec, batches: Iterator[pa.RecordBatch], delete: bool) -> Written:
    rows = size = 0
    last: Position | None = None
    waiting: deque[Future[Position]] = deque()
    for batch in batches:
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if delete:
            last = _joined(last, cluster.delete(spec.name, batch))
            continue
        waiting.append(cluster.upsert_async(spec.name, batch))
        if len(waiting) >= _IN_FLIGHT:
            last = _joined(last, waiting.popleft().result())
    for future in waiting:
        last = _joined(last, future.result())
    return Written(rows, size, last)


def _write_once(cluster: Cluster, spec: TableSpec, batches: Iterator[pa.RecordBatch], batch_id: str) -> Written:
    found = list(batches)
    if not found:
        return Written(0, 0, None)
    whole = pa.Table.from_batches(found)
    position = cluster.upsert(spec.name, whole, batch_id=batch_id)
    return Written(whole.num_rows, whole.nbytes, position)


def _write_cells(cluster: Cluster, spec: TableSpec, batches: Iterator[pa.RecordBatch], delete: bool) -> Written:
    rows = size = 0
    last: Position | None = None
    for batch in batches:
        rows, size = rows + batch.num_rows, size + batch.nbytes
        last = _joined(last, cluster.apply(spec.name, (_mutation(cell, delete) for cell in batch.to_pylist())))
    return Written(rows, size, last)


def _mutation(cell: dict[str, Any], delete: bool) -> Mutation:
    mutation = Mutation(cell["row"])
    place = (cell["family"], cell["qualifier"])
    visibility, timestamp = cell.get("visibility") or "", cell.get("timestamp")
    if delete or cell.get("delete"):
        return mutation.delete(*place, visibility, timestamp)
    return mutation.put(*place, cell["value"], visibility, timestamp)


def _joined(one: Position | None, two: Position) -> Position:
    return two if one is None else one.join(two)
