"""Data files that a process wrote and never committed, since it was killed: found by name and age, and deleted.

A file's name says which table it is of, and which process wrote it or had it written (``write.new_job``). So files of
other programs, of other tables in the same folder, and of this process are never touched.
"""

from __future__ import annotations

from collections.abc import Callable
from posixpath import basename

from pyarrow.fs import FileSelector, FileSystem, LocalFileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider

from replication.tables.pyiceberg.append import ADDS_NO_ROWS
from replication.tables.pyiceberg.expire import manifests_of
from replication.tables.pyiceberg.local_io import LocalFileIO, local_path
from replication.tables.pyiceberg.write import is_of_another_process, remove_files


def remove_orphans(load: Callable[[], Table], older_than: int) -> int:
    """Delete files of other processes that no snapshot names or will name; return how many.

    A file is deleted when it is older than ``older_than`` (microseconds since 1970), and than the newest commit that
    added rows: a commit that would name it was planned before that one, so it is refused. Stores that PyArrow cannot
    list are left alone.
    """
    table = load()
    upto = min(older_than, _newest_rows(table))
    found = {location for location, at in _listed(table) if at < upto}
    if not found:
        return 0
    named = _named(load())  # after the listing: whatever was listed and is committed is in it
    left = [location for location in sorted(found) if basename(location) not in named]
    remove_files(table.io, left)
    return len(left)


def _newest_rows(table: Table) -> int:
    """Return when the newest commit that added rows was made; 0 when there is none."""
    at = table.metadata.current_snapshot()
    while at is not None and (at.summary is None or at.summary.operation.value in ADDS_NO_ROWS):
        at = table.metadata.snapshot_by_id(at.parent_snapshot_id) if at.parent_snapshot_id is not None else None
    return 0 if at is None else at.timestamp_ms * 1000


def _listed(table: Table) -> list[tuple[str, int]]:
    """Return the files of other processes in the table's folder, with the times of their last changes."""
    place = load_location_provider(table.location(), table.metadata.properties).data_path
    found = _folder(table, place)
    if found is None:
        return []
    files, folder = found
    return [
        (place + info.path[len(folder) :], info.mtime_ns // 1000)
        for info in files.get_file_info(FileSelector(folder, allow_not_found=True, recursive=True))
        if info.is_file and is_of_another_process(info.base_name, table.metadata)
    ]


def _folder(table: Table, place: str) -> tuple[FileSystem, str] | None:
    if isinstance(table.io, LocalFileIO):
        return LocalFileSystem(), local_path(place)
    if not isinstance(table.io, PyArrowFileIO):
        return None
    scheme, host, path = PyArrowFileIO.parse_location(place, table.io.properties)
    return table.io.fs_by_scheme(scheme, host), path


def _named(table: Table) -> set[str]:
    """Return the names of all files in the table's manifests, those of deleted entries included."""
    return {
        basename(entry.data_file.file_path)
        for manifest in manifests_of(table.io, table.metadata.snapshots).values()
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    }
