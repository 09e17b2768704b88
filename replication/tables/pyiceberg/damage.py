"""Missing or damaged files of a table, reported by name with a remedy, though each reader fails differently."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import duckdb
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import FileScanTask, Table

from replication.errors import MissingFileError, ReplicationError, StorageError
from replication.tables.pyiceberg.local_io import local_path

REMEDY = "Put it back from a backup, or have peers refill this site: deploy/cookbook/returning-from-a-backup.md"


@contextmanager
def naming(location: str) -> Iterator[None]:
    """StorageError for what reading a damaged file raises; errors of the file system come as they are."""
    try:
        yield
    except (OSError, ReplicationError):
        raise
    except Exception as error:  # torn or altered bytes end in whatever error they lead to
        what = (str(error).splitlines() or [""])[0]
        raise StorageError(
            f"{local_path(location)} cannot be read: {type(error).__name__}: {what}"[:500],
            f"The file is damaged. {REMEDY}",
        ) from error


def refuse_unreadable(error: BaseException) -> None:
    """StorageError for DuckDB's when a file of a table is gone or damaged; nothing for other errors.

    What it meets after the first rows comes through Arrow, as an OSError that has no number.
    """
    message = (str(error).strip().splitlines() or [""])[0]
    streamed = isinstance(error, OSError) and error.errno is None
    if isinstance(error, duckdb.IOException) or (streamed and message.startswith("IO Error: ")):
        raise lost(f"reading failed: {message}") from None
    invalid = isinstance(error, duckdb.InvalidInputException) or (
        streamed and message.startswith("Invalid Input Error: ")
    )
    torn = "TProtocolException" in message  # of Parquet's own headers, which says no file's name
    if torn or invalid and ".parquet" in message:
        raise StorageError(f"reading failed: {message}", f"The file is damaged. {REMEDY}") from None


def lost(what: str) -> MissingFileError:
    """The error for a file that a table names and that is not there."""
    return MissingFileError(what, f"Maintenance may just have removed it: try again. Else the disk lost it. {REMEDY}")


def planned(table: Table, rows: BooleanExpression, snapshot: int | None) -> list[FileScanTask]:
    """The files of a snapshot, the current one when None, that may have such rows.

    Raises:
        StorageError: the list of its manifests, or one of them, is damaged or gone.
    """
    try:
        return list(table.scan(row_filter=rows, snapshot_id=snapshot).plan_files())
    except FileNotFoundError as error:
        raise lost(f"{error.filename} is not there, though a table names it") from error
    except Exception:
        _look_through(table, snapshot)
        raise


def _look_through(table: Table, snapshot: int | None) -> None:
    """Raise for the file that cannot be read, if it is one of a snapshot's lists."""
    found = table.current_snapshot() if snapshot is None else table.snapshot_by_id(snapshot)
    if found is None:
        return
    with naming(found.manifest_list):
        manifests = found.manifests(table.io)
    for manifest in manifests:
        with naming(manifest.manifest_path):
            manifest.fetch_manifest_entry(table.io)
