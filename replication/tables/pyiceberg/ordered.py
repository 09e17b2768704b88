"""Keep the times in a table's metadata ascending, even when the clock goes back.

PyIceberg stamps commits with the wall clock. Iceberg's Java library refuses a table whose snapshot log, metadata log or
last update goes back by more than a minute. So after one step of the clock Spark could never read the table again.
"""

from __future__ import annotations

from typing import TypeVar

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import MetadataLogEntry, SnapshotLogEntry
from pyiceberg.table.update import AddSnapshotUpdate, TableUpdate

_Entry = TypeVar("_Entry", SnapshotLogEntry, MetadataLogEntry)


def in_order(metadata: TableMetadata) -> TableMetadata:
    """Return metadata with ascending logs: an earlier time is raised to the one before. Unchanged if in order."""
    snapshots, files = _rising(metadata.snapshot_log), _rising(metadata.metadata_log)
    newest = max([metadata.last_updated_ms, *(log[-1].timestamp_ms for log in (snapshots, files) if log)])
    if (snapshots, files, newest) == (metadata.snapshot_log, metadata.metadata_log, metadata.last_updated_ms):
        return metadata
    return metadata.model_copy(update={"snapshot_log": snapshots, "metadata_log": files, "last_updated_ms": newest})


def _rising(log: list[_Entry]) -> list[_Entry]:
    rising: list[_Entry] = []
    for entry in log:
        goes_back = bool(rising) and entry.timestamp_ms < rising[-1].timestamp_ms
        rising.append(entry.model_copy(update={"timestamp_ms": rising[-1].timestamp_ms}) if goes_back else entry)
    return rising


def not_before(newest: int, update: TableUpdate) -> TableUpdate:
    """Raise the time of an added snapshot to at least ``newest``, in milliseconds since 1970."""
    if not isinstance(update, AddSnapshotUpdate) or update.snapshot.timestamp_ms >= newest:
        return update
    return update.model_copy(update={"snapshot": update.snapshot.model_copy(update={"timestamp_ms": newest})})
