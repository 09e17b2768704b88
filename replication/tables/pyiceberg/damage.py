"""Report missing or damaged files of a table by name, with a remedy, whatever error the reader raised."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import FileScanTask, Table

from replication.errors import MissingFileError, ReplicationError, StorageError
from replication.tables.pyiceberg.local_io import local_path

REMEDY = "Restore it from a backup, or let peers send the rows again: deploy/cookbook/returning-from-a-backup.md"

#: DuckDB reads tables only; it writes no file but its own temporary ones.
_SPILLING = re.compile("duckdb_temp_|Could not write|Failed to create directory")


@contextmanager
def naming_damaged_file(location: str) -> Iterator[None]:
    """Turn errors from reading a damaged file into StorageError. Errors of the file system are not changed."""
    try:
        yield
    except (OSError, ReplicationError):
        raise
    except Exception as error:  # damaged bytes can raise any error
        what = (str(error).splitlines() or [""])[0]
        raise StorageError(
            f"{local_path(location)} cannot be read: {type(error).__name__}: {what}"[:500],
            f"The file is damaged. {REMEDY}",
        ) from error


def refuse_unreadable(error: BaseException) -> None:
    """Raise StorageError when DuckDB's error is about a missing or damaged file, or a full disk; return for others.

    After the first rows DuckDB's errors come through Arrow, as OSError without a number.
    """
    message = (str(error).strip().splitlines() or [""])[0]
    streamed = isinstance(error, OSError) and error.errno is None
    if isinstance(error, duckdb.IOException) or (streamed and message.startswith("IO Error: ")):
        if _SPILLING.search(message):
            raise StorageError(
                f"what does not fit into memory cannot be written: {message.removeprefix('IO Error: ')}",
                "Free space on that disk, or start it in a folder that can be written; the table is sound",
            ) from None
        raise lost(f"reading failed: {message}") from None
    invalid = isinstance(error, duckdb.InvalidInputException) or (
        streamed and message.startswith("Invalid Input Error: ")
    )
    torn = "TProtocolException" in message  # from Parquet headers; this message has no file name
    if torn or invalid and ".parquet" in message:
        raise StorageError(f"reading failed: {message}", f"The file is damaged. {REMEDY}") from None


@contextmanager
def refusing_unreadable() -> Iterator[None]:
    """Turn DuckDB's errors about missing or damaged files into StorageError, also those that come through Arrow."""
    try:
        yield
    except (duckdb.Error, OSError) as error:
        refuse_unreadable(error)
        raise


def lost(what: str) -> MissingFileError:
    """Return the error for a missing file of a table."""
    return MissingFileError(
        what, f"Maintenance may just have removed it: try again. If the error stays, the disk lost it. {REMEDY}"
    )


def planned(table: Table, rows: BooleanExpression, snapshot: int | None) -> list[FileScanTask]:
    """Return the files of a snapshot that may have matching rows; None means the current snapshot.

    Raises:
        StorageError: its manifest list or a manifest is damaged or missing.
    """
    with planning(table, snapshot):
        return list(table.scan(row_filter=rows, snapshot_id=snapshot).plan_files())


@contextmanager
def planning(table: Table, snapshot: int | None = None) -> Iterator[None]:
    """Turn errors from damaged or missing manifests of a snapshot into StorageError, as ``planned``."""
    try:
        yield
    except FileNotFoundError as error:
        raise lost(f"{error.filename} is missing, though a table has it") from error
    except Exception:
        _check_manifests(table, snapshot)
        raise


def _check_manifests(table: Table, snapshot: int | None) -> None:
    """Raise StorageError when a snapshot's manifest list or a manifest cannot be read."""
    checked = table.current_snapshot() if snapshot is None else table.snapshot_by_id(snapshot)
    if checked is None:
        return
    with naming_damaged_file(checked.manifest_list):
        manifests = checked.manifests(table.io)
    for manifest in manifests:
        with naming_damaged_file(manifest.manifest_path):
            manifest.fetch_manifest_entry(table.io)
