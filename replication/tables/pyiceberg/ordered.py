"""The times in a table's metadata, which never go back, though the clock may.

PyIceberg stamps commits with the clock as it is. Iceberg's Java refuses to read a table whose snapshot log, metadata
log or last update goes back by more than a minute, so one step of a clock would keep Spark out for good.
"""

from __future__ import annotations

from typing import TypeVar

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import MetadataLogEntry, SnapshotLogEntry
from pyiceberg.table.update import AddSnapshotUpdate, TableUpdate

_Entry = TypeVar("_Entry", SnapshotLogEntry, MetadataLogEntry)


def in_order(metadata: TableMetadata) -> TableMetadata:
    """Metadata whose logs never go back: what is too early is as late as what came before. The same where none is."""
    snapshots, files = _rising(metadata.snapshot_log), _rising(metadata.metadata_log)
    newest = max([metadata.last_updated_ms, *(log[-1].timestamp_ms for log in (snapshots, files) if log)])
    if (snapshots, files, newest) == (metadata.snapshot_log, metadata.metadata_log, metadata.last_updated_ms):
        return metadata
    return metadata.model_copy(update={"snapshot_log": snapshots, "metadata_log": files, "last_updated_ms": newest})


def _rising(log: list[_Entry]) -> list[_Entry]:
    made: list[_Entry] = []
    for entry in log:
        late = bool(made) and entry.timestamp_ms < made[-1].timestamp_ms
        made.append(entry.model_copy(update={"timestamp_ms": made[-1].timestamp_ms}) if late else entry)
    return made


def not_before(newest: int, update: TableUpdate) -> TableUpdate:
    """A snapshot to be added is stamped ``newest`` at least, in milliseconds since 1970."""
    if not isinstance(update, AddSnapshotUpdate) or update.snapshot.timestamp_ms >= newest:
        return update
    return update.model_copy(update={"snapshot": update.snapshot.model_copy(update={"timestamp_ms": newest})})
