"""The rows of a dataset's files in Arrow. A file's last batch is given only after the files were checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.dataset as ds

from peer.timeline.listing import opened_root
from peer.timeline.reading.instant import ReadInstant
from replication.core.timeline.instants import FileVersion
from replication.errors import ChangedFileError, FormatError, RequestError, StorageError

_FORMATS = ("parquet", "arrow", "orc", "csv", "json")


def check_format(format: str) -> str:
    """The format; RequestError if it is none that can be read."""
    if format not in _FORMATS:
        raise RequestError(f"{format!r} is not a format", f"Choose of {', '.join(_FORMATS)}")
    return format


def schema_of(read: ReadInstant, versions: Sequence[FileVersion], format: str) -> pa.Schema:
    """The schema of the first file. RequestError if there is none, FormatError if it is not of that format."""
    if not versions:
        raise RequestError(f"{read.dataset} has no files as of {read.instant}, so no schema", "Give the schema")
    with _naming(read, versions[:1], format):
        return _opened(read, versions[0], check_format(format)).schema


def reader_of(read: ReadInstant, versions: Sequence[FileVersion], format: str) -> pa.RecordBatchReader:
    """All rows; see ``DatasetSnapshot.rows``."""
    if not versions:
        return pa.RecordBatchReader.from_batches(pa.schema([]), [])
    schema = schema_of(read, versions, format)
    return pa.RecordBatchReader.from_batches(schema, batches(read, versions, format, schema))


def batches(
    read: ReadInstant, versions: Sequence[FileVersion], format: str, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The batches of files, with the columns of ``schema``; the last one after the files were checked.

    Raises:
        ChangedFileError: a file was written over or deleted while it was read.
        FormatError: a file cannot be read as that format, or lacks a column.
    """
    last: pa.RecordBatch | None = None
    with _naming(read, versions, format):
        for version in versions:
            for batch in _opened(read, version, format).to_batches(columns=schema.names):
                if last is not None:
                    yield last
                last = batch.cast(schema) if batch.schema != schema else batch
    read.check({version.key for version in versions})
    if last is not None:
        yield last


@contextmanager
def _naming(read: ReadInstant, versions: Sequence[FileVersion], format: str) -> Iterator[None]:
    """Raise what reading files raises as an error that names their dataset."""
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        read.check({version.key for version in versions})
        raise FormatError(f"a file of {read.dataset} cannot be read as {format}: {error}"[:500]) from error


def _opened(read: ReadInstant, version: FileVersion, format: str) -> ds.Dataset:
    address = read.address(version)
    fs, root = opened_root(read.root, read.options)
    path = f"{root}/{version.path}"  # a name below may look like an address
    try:
        if (size := fs.size(path)) != version.size:
            read.check({version.key})
            raise ChangedFileError(
                f"{address} has {size} bytes, and the timeline says {version.size}",
                "Something other than walship changed it: copy it again",
            )
        return ds.dataset([path], format=check_format(format), filesystem=fs)
    except FileNotFoundError:
        read.check({version.key})
        raise StorageError(f"{address} is gone, and no instant removed it", "Copy it again") from None
