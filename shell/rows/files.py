"""Reads rows of files and standard input as Arrow batches of bounded size."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from replication.errors import FormatError, RequestError
from replication.files.rows import row_files
from replication.files.rows.row_files import RowFile
from shell.rows.json import json_batches

FORMATS = (*row_files.FORMATS, "json")
_JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")


def batches_of(source: str, form: str = "", schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
    """Rows of a file, or of standard input if ``source`` is ``-``. A CSV header alone is one empty batch.

    Args:
        source: a path, or ``-``.
        form: ``parquet``, ``arrow``, ``orc``, ``csv`` or ``json`` (a JSON object a line); by the file's suffix when
            empty.
        schema: types to read columns as, where they are named in the file; guessed when None.

    Raises:
        RequestError: no such file, or its format is unknown.
        FormatError: it is not of that format, or a value is not of its column's type.
    """
    suffix = Path(source).suffix.lower()
    chosen = form or ("json" if suffix in _JSON_SUFFIXES else row_files.SUFFIXES.get(suffix, ""))
    if chosen and chosen not in FORMATS:
        raise RequestError(f"{chosen!r} is not a format", f"Use --format {'|'.join(FORMATS)}")
    if source != "-" and Path(source).is_dir():
        raise RequestError(f"{source} is a folder", "Name a file")
    if not chosen:
        raise RequestError(f"the format of {source!r} is unknown", f"Use --format {'|'.join(FORMATS)}")
    if source != "-" and chosen != "json" and (chosen == "csv" or not Path(source).is_fifo()):
        with RowFile(source, chosen, schema) as file:
            yield from file.batches(empty=True)
        return
    try:
        opened: BinaryIO = sys.stdin.buffer if source == "-" else Path(source).open("rb")  # noqa: SIM115  closed below
    except OSError as error:
        raise RequestError(f"{source} cannot be read: {error.strerror}", "Check the path") from None
    name = name_of(source)
    with nullcontext() if source == "-" else opened:  # standard input stays open for others
        try:
            yield from json_batches(opened.read(), schema) if chosen == "json" else _piped(opened, chosen, schema)
        except FormatError as error:
            raise FormatError(f"{name}, {error.what}", error.hint) from None
        except (pa.ArrowInvalid, pa.ArrowTypeError, OSError, UnicodeEncodeError) as error:  # the last: of a name
            raise FormatError(
                f"{name} is not readable as {chosen}: {error}", "Use --format, or correct the file"
            ) from None


def name_of(source: str) -> str:
    """What messages call a source of rows."""
    return "standard input" if source == "-" else source


def place_in(source: str, form: str, row: int) -> str:
    """Say where a row of ``batches_of`` is, by its number from 1: the line of a CSV file, else the row."""
    if source == "-":
        return f"{name_of(source)}, row {row}"
    path = Path(source)
    return f"{source}, {row_files.place(path, form or row_files.SUFFIXES.get(path.suffix.lower(), ''), row)}"


def schema_of(file: Path) -> pa.Schema:
    """The columns of a sample file, with the types of its first rows."""
    suffixes = (*row_files.SUFFIXES, *_JSON_SUFFIXES)
    if not file.is_dir() and file.suffix.lower() not in suffixes:
        raise RequestError(f"the format of '{file}' is unknown", f"Name a file that ends in {', '.join(suffixes)}")
    for batch in batches_of(str(file)):
        if batch.num_rows:
            return batch.schema
    raise FormatError(f"{file} has no rows to take columns from", "Give the schema as text")


def _piped(opened: BinaryIO, form: str, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    streams = form == "csv" or opened.seekable()
    yield from row_files.read(opened if streams else io.BytesIO(opened.read()), form, schema=schema)
