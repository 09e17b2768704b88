"""Prints rows, or saves them as CSV or Parquet."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain, count
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv

from replication.core.rows.escaped import escaped_column
from replication.core.rows.years import check_years
from replication.error_text import counted
from replication.errors import NoSpaceError, RequestError, SchemaError
from shell.cli.render import Printer, to_json

_SHOWN_ROWS = 1000


@contextmanager
def _in_text() -> Iterator[None]:
    """Say of a value that has no text, such as a date after year 9999, what to do."""
    try:
        yield
    except (OverflowError, ValueError, pa.ArrowNotImplementedError, SchemaError) as error:
        what = error.what if isinstance(error, SchemaError) else str(error).strip().splitlines()[0]
        raise RequestError(
            f"a value cannot be printed: {what}",
            "Cast it in the query, for instance COLUMN::varchar",
        ) from None


@_in_text()
def print_rows(printer: Printer, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
    """Print rows: at most 1,000 as a table on a terminal, tab-separated elsewhere, or one JSON object per line."""
    shown = 0
    batches = map(_named_once, batches)
    if printer.as_json:
        for batch in batches:
            for row in batch.to_pylist():
                printer.value(row)
        return
    if not sys.stdout.isatty():
        first = next(batches, None)
        for number, batch in enumerate(chain((_no_rows(schema) if first is None else first,), batches)):
            options = csv.WriteOptions(include_header=number == 0, delimiter="\t")
            csv.write_csv(_flat(batch), sys.stdout.buffer, options)
        return
    rows: list[dict[str, Any]] = []
    names: list[str] = []
    for batch in batches:
        names = batch.schema.names
        rows += batch.slice(0, max(0, _SHOWN_ROWS - len(rows))).to_pylist()
        shown += batch.num_rows
    printer.rows(rows, names, "no rows", verbatim=True)
    if not shown:
        return
    more = f", of which {_SHOWN_ROWS:,} are shown; --json or -o FILE gives all" if shown > _SHOWN_ROWS else ""
    printer.line(f"{counted(shown, 'row')}{more}")


@_in_text()
def save_rows(output: Path, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> int:
    """Write rows of a schema to a file, by its suffix; returns how many."""
    rows = 0
    kind = output.suffix.lower()
    if kind not in (".csv", ".parquet"):
        raise RequestError(f"{output} is neither .csv nor .parquet", "Give the file one of these suffixes")
    batches = map(_named_once, batches)
    first = next(batches, None)
    if first is None:
        first = _no_rows(schema)
    head = _flat(first) if kind == ".csv" else first
    with writing_to(output), whole(output, _writer(output, kind, head.schema)) as writer:
        for batch in chain((first,), batches):
            writer.write_batch(_flat(batch) if kind == ".csv" else batch)
            rows += batch.num_rows
    return rows


@contextmanager
def whole(output: Path, writer: Any) -> Iterator[Any]:
    """A file's writer, which is closed at the end; an incomplete file does not stay."""
    try:
        with writer:
            yield writer
    except BaseException:
        if output.is_file():
            output.unlink()
        raise


@contextmanager
def writing_to(output: Path) -> Iterator[None]:
    """Say of a file that cannot be written why, and what to do."""
    try:
        yield
    except UnicodeEncodeError:
        raise RequestError(f"{output} cannot be written: its name is not UTF-8", "Give it another name") from None
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        if error.errno == errno.ENOSPC:
            raise NoSpaceError(f"{output} cannot be written: {why}", "Make room, or write elsewhere") from None
        raise RequestError(
            f"{output} cannot be written: {why}", "Name a file in a folder that you may write to"
        ) from None


def _named_once(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rename columns of the same name: the second ``x`` is ``x_1``."""
    names: list[str] = []
    for name in batch.schema.names:
        others = {*names, *batch.schema.names}
        number = count(1)
        names.append(name if name not in names else next(n for n in (f"{name}_{i}" for i in number) if n not in others))
    return batch.rename_columns(names)


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return _named_once(pa.RecordBatch.from_pylist([], schema))


def _flat(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Binary columns as text that ``write`` reads, nested ones as JSON: CSV has no form for them."""
    times = [each.name for each in batch.schema if pa.types.is_date32(each.type) or pa.types.is_timestamp(each.type)]
    check_years(batch.select(times))  # Arrow writes others wrongly, or a remark in their place
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if pa.types.is_nested(field.type):
            column = pa.array([None if v is None else to_json(v) for v in column.to_pylist()], pa.string())
        elif _holds_bytes(field.type):
            column = escaped_column(column)
        elif not _arrow_prints(field.type):
            column = pa.array([None if v is None else str(v) for v in column.to_pylist()], pa.string())
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


@lru_cache(maxsize=256)
def _arrow_prints(kind: pa.DataType) -> bool:
    try:
        pa.nulls(0, kind).cast(pa.string())
    except pa.ArrowNotImplementedError:
        return False
    return True


def _holds_bytes(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind) or t.is_fixed_size_binary(kind))


def parquet_writer(output: Path, schema: pa.Schema) -> Any:
    """A writer of a file on this host; a relative name such as ``a:b`` pyarrow would take for a URI."""
    import pyarrow.parquet as pq  # 0.3 s to import, with Arrow's datasets

    return pq.ParquetWriter(output.absolute(), schema)


def _writer(output: Path, kind: str, schema: pa.Schema) -> Any:
    if kind == ".csv":
        return csv.CSVWriter(output, schema)
    import pyarrow.parquet as pq

    for field in schema:
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
        except pa.ArrowNotImplementedError:
            raise RequestError(
                f"Parquet has no type for column {field.name!r}, which is an {field.type}",
                f"Cast it in the query, for instance {field.name}::varchar, or write CSV",
            ) from None
    return parquet_writer(output, schema)
