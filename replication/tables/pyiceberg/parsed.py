"""A cache of parsed metadata files.

Each commit loads its table three times and writes a new metadata file. Parsing them took a quarter of a commit's time
on a busy table. A metadata file never changes, so a cached one is valid while the file has the same size and time.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict

from pyiceberg.io import FileIO
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata

from replication.tables.pyiceberg.damage import naming_damaged_file
from replication.tables.pyiceberg.local_io import LocalFileIO, local_path

#: The maximum size of all cached files; parsed, they take about ten times as much memory.
_KEPT_BYTES = 4 << 20
_cache: OrderedDict[tuple[str, int, int], TableMetadata] = OrderedDict()
_lock = threading.Lock()


def read_metadata(io: FileIO, location: str) -> TableMetadata:
    """Read a metadata file. The result is shared and must not be changed in place.

    Raises:
        StorageError: the file is damaged.
        FileNotFoundError: the file does not exist.
    """
    identity = _identity(io, location)
    with _lock:
        if identity is not None and identity in _cache:
            _cache.move_to_end(identity)
            return _cache[identity]
    with naming_damaged_file(location):
        metadata = FromInputFile.table_metadata(io.new_input(location))
    if identity is not None:
        _keep(identity, metadata)
    return metadata


def note_written(io: FileIO, location: str, metadata: TableMetadata) -> None:
    """Cache the metadata of a file that was just written."""
    identity = _identity(io, location)
    if identity is not None:
        _keep(identity, metadata)


def _identity(io: FileIO, location: str) -> tuple[str, int, int] | None:
    """Return the cache key of a file: location, size and time. None for remote files, which are not cached."""
    if not isinstance(io, LocalFileIO):
        return None
    at = os.stat(local_path(location))
    return location, at.st_size, at.st_mtime_ns


def _keep(identity: tuple[str, int, int], metadata: TableMetadata) -> None:
    with _lock:
        _cache[identity] = metadata
        while sum(size for _, size, _ in _cache) > _KEPT_BYTES and len(_cache) > 1:
            _cache.popitem(last=False)
