"""Reads rows of Parquet, Arrow, ORC and CSV files as record batches of bounded size.

At most one Parquet row group, Arrow record batch or ORC stripe, or a few blocks of CSV, are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from replication.errors import FormatError, RequestError
from replication.files.rows.csv_rows import CSV_ROW_BYTES_MAX, csv_batches, line_of
from replication.files.rows.csv_values import RowError

FORMATS = ("parquet", "arrow", "orc", "csv")
BATCH_ROWS = 65_536
SUFFIXES = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".orc": "orc",
    ".csv": "csv",
    ".tsv": "csv",
}
_ARROW_FILE_MAGIC = b"ARROW1"


class RowFile:
    """An open file of rows. Use it as a context manager. The schema has types for CSV columns, by name.

    Raises:
        RequestError: the file cannot be opened, or its format is unknown.
    """

    def __init__(self, path: str | Path, form: str = "", schema: pa.Schema | None = None) -> None:
        self.path = Path(path)
        self.form = form_of(self.path, form)
        self._schema = schema
        try:
            self._opened: BinaryIO = self.path.open("rb")
        except OSError as error:
            raise RequestError(f"{path} cannot be read: {error.strerror}", "Check the path") from None

    def __enter__(self) -> RowFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """The open file's descriptor."""
        return self._opened.fileno()

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._opened.close()

    def batches(self, *, empty: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the rows, in order, at most ``BATCH_ROWS`` a batch. With ``empty``, yield empty batches too.

        Raises:
            FormatError: the file has another format, is damaged or truncated, or a CSV value does not fit its column.
        """
        try:
            for batch in read(self._opened, self.form, tabs=_has_tabs(self.path), schema=self._schema):
                for begin in range(0, max(batch.num_rows, int(empty)), BATCH_ROWS):
                    yield batch.slice(begin, BATCH_ROWS)
        except RowError as error:
            raise FormatError(f"{self.path}, {place(self.path, self.form, error.row)}{error.why}", error.hint) from None
        except FormatError as error:
            raise FormatError(f"{self.path}, {error.what}", error.hint) from None
        except (pa.ArrowException, OSError, ValueError) as error:
            what = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            if "straddl" in what:
                raise FormatError(
                    f"{self.path} has a row of more than {CSV_ROW_BYTES_MAX >> 20} MiB", "Write it as Parquet"
                ) from None
            raise FormatError(
                f"{self.path} is not readable as {self.form}: {what}", "Name the format, or correct the file"
            ) from None

    def row_count(self) -> int | None:
        """Return the row count in the file's metadata; None for CSV and Arrow."""
        try:
            if self.form == "parquet":
                return int(pq.ParquetFile(self._opened).metadata.num_rows)
            if self.form == "orc":
                return int(orc.ORCFile(self._opened).nrows)
        except (pa.ArrowException, OSError):
            pass  # reading the rows raises the error
        return None


def form_of(path: Path, form: str = "") -> str:
    """Return one of ``FORMATS``: ``form`` if given, else by suffix. Raises RequestError if it is unknown."""
    if path.is_dir():
        raise RequestError(f"{path} is a folder", "Name a file")
    chosen = form or SUFFIXES.get(path.suffix.lower(), "")
    if chosen not in FORMATS:
        raise RequestError(
            f"the format of {str(path)!r} is unknown", f"Use --format {'|'.join(FORMATS)}; walship write reads JSON"
        )
    return chosen


def place(path: Path, form: str, row: int | None) -> str:
    """Say where a row is, by its number as in ``RowError``: the line of a CSV file, the row of another."""
    line = line_of(path, "\t" if _has_tabs(path) else ",", row) if form == "csv" else None
    if line is not None:
        return f"line {line}"
    return "a row" if row is None else f"row {row}"


def read(
    opened: BinaryIO, form: str, *, tabs: bool = False, schema: pa.Schema | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield record batches of a seekable file; CSV may come from a pipe. Raises pyarrow's errors, and FormatError."""
    if form == "parquet":
        yield from pq.ParquetFile(opened).iter_batches(BATCH_ROWS)
    elif form == "arrow":
        yield from _arrow(opened)
    elif form == "orc":
        file = orc.ORCFile(opened)
        for stripe in range(file.nstripes):
            yield file.read_stripe(stripe)
    else:
        yield from csv_batches(opened, "\t" if tabs else ",", schema)


def _arrow(opened: BinaryIO) -> Iterator[pa.RecordBatch]:
    begin = opened.read(len(_ARROW_FILE_MAGIC))
    opened.seek(0)
    if begin == _ARROW_FILE_MAGIC:
        with pa.ipc.open_file(opened) as file:
            for number in range(file.num_record_batches):
                yield file.get_batch(number)
        return
    with pa.ipc.open_stream(opened) as stream:
        yield from stream


def _has_tabs(path: Path) -> bool:
    return path.suffix.lower() == ".tsv"
