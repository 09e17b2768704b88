"""Reads rows of CSV. Arrow splits them into values, which are converted here; a bad row is found by its line."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
from pyarrow import csv as arrow_csv

from replication.files.rows.csv_values import RowError, is_from_text, typed
from replication.files.rows.quotes import Quoted

CSV_ROW_BYTES_MAX = 8 << 20  # of a block, which holds whole rows
_SHOWN_CHARACTERS = 60
# Arrow's own message: its handler of such rows prints a traceback for one that is not UTF-8
_ODD_ROW = re.compile(
    r"CSV parse error: (Row #\d+: )?Expected (?P<expected>\d+) columns, got (?P<given>\d+): (?P<text>.*)", re.DOTALL
)


def csv_batches(opened: BinaryIO, delimiter: str, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file or pipe; one batch without rows for a header alone.

    Raises:
        RowError: a value does not fit its column's type in ``schema``, or a row has too many or too few values.
        FormatError: a quote is not closed.
        ArrowInvalid: there is no header.
    """
    wanted = {} if schema is None else {field.name: field.type for field in schema}
    quoted = Quoted(opened, delimiter)
    try:
        with _opened(quoted, delimiter, wanted) as reader:
            row = 1
            for batch in reader:
                quoted.check()  # Arrow has read at least the bytes of the batch
                yield _exact(batch, row, wanted)
                row += batch.num_rows
            quoted.check()
            if row == 1:
                yield _exact(pa.RecordBatch.from_pylist([], reader.schema), row, wanted)
    except pa.ArrowInvalid as error:
        quoted.check()
        odd = _ODD_ROW.match(str(error))
        if odd is None:
            raise
        text, given = odd["text"], odd["given"]
        shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
        raise RowError(
            None,
            f" has {given} value{'' if given == '1' else 's'}, and the header {odd['expected']}: {shown}",
            "Give each row as many values as the header has; quote a value that holds the delimiter",
        ) from None


def line_of(path: Path, delimiter: str, row: int | None) -> int | None:
    """Return the line in which a row of a file begins, by its number as in ``RowError``; None when it is not found.

    A pipe is not read again: it has ended, or would wait for another writer.
    """
    if not path.is_file():
        return None
    with suppress(OSError, csv.Error), path.open(newline="", encoding="utf-8-sig", errors="replace") as lines:
        reader = csv.reader(lines, delimiter=delimiter)
        line, number, width = 1, 0, 0
        for values in reader:
            if values:  # Arrow skips empty lines
                width = width or len(values)
                if number == row or (row is None and len(values) != width):
                    return line
                number += 1
            line = reader.line_num + 1
    return None


def _opened(quoted: Quoted, delimiter: str, wanted: Mapping[str, pa.DataType]) -> arrow_csv.CSVStreamingReader:
    return arrow_csv.open_csv(
        quoted,
        read_options=arrow_csv.ReadOptions(block_size=CSV_ROW_BYTES_MAX),
        parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(
            column_types={name: _read_as(kind) for name, kind in wanted.items()},
            check_utf8=not wanted,  # typed checks it
            null_values=["", "NULL", "NA"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _exact(batch: pa.RecordBatch, row: int, wanted: Mapping[str, pa.DataType]) -> pa.RecordBatch:
    """Convert the values of a batch from text; ``row`` is its first row."""
    columns = [
        typed(column, wanted[name], name, row) if name in wanted and is_from_text(wanted[name]) else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _read_as(wanted: pa.DataType) -> pa.DataType:
    """Return text for what ``typed`` converts, and for nested types, which are refused later."""
    is_text = (is_from_text(wanted) and not pa.types.is_binary(wanted)) or pa.types.is_nested(wanted)
    return pa.string() if is_text else wanted
