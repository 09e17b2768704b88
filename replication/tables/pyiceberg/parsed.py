"""Tables' metadata, parsed once for as long as its file stays as it is.

Each commit looks at its table three times and writes a new metadata file: parsing those of a busy table anew took a
quarter of what a commit costs. A metadata file never changes, so a parsed one serves whoever names the same file, as
long as the file is there with the same size and time.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict

from pyiceberg.io import FileIO
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata

from replication.tables.pyiceberg.damage import naming
from replication.tables.pyiceberg.local_io import LocalFileIO, local_path

#: Of metadata files; parsed they take some ten times that.
_KEPT_BYTES = 4 << 20
_cache: OrderedDict[tuple[str, int, int], TableMetadata] = OrderedDict()
_lock = threading.Lock()


def read_metadata(io: FileIO, location: str) -> TableMetadata:
    """What a metadata file says. Shared by all who ask: never to be changed in place.

    Raises:
        StorageError: the file is damaged.
        FileNotFoundError: it is not there.
    """
    identity = _identity(io, location)
    with _lock:
        if identity is not None and identity in _cache:
            _cache.move_to_end(identity)
            return _cache[identity]
    with naming(location):
        metadata = FromInputFile.table_metadata(io.new_input(location))
    if identity is not None:
        _keep(identity, metadata)
    return metadata


def note_written(io: FileIO, location: str, metadata: TableMetadata) -> None:
    """The same for a file just written."""
    identity = _identity(io, location)
    if identity is not None:
        _keep(identity, metadata)


def _identity(io: FileIO, location: str) -> tuple[str, int, int] | None:
    """What tells a file from others and from what it was; None where that costs as much as reading it."""
    if not isinstance(io, LocalFileIO):
        return None
    at = os.stat(local_path(location))
    return location, at.st_size, at.st_mtime_ns


def _keep(identity: tuple[str, int, int], metadata: TableMetadata) -> None:
    with _lock:
        _cache[identity] = metadata
        while sum(size for _, size, _ in _cache) > _KEPT_BYTES and len(_cache) > 1:
            _cache.popitem(last=False)
