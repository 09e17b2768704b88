"""Tags of snapshots, which keep them from expiring."""

from __future__ import annotations

from collections.abc import Callable

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table, TableProperties

from replication.errors import CommitConflictError
from replication.retries import repeated_on


@repeated_on(CommitConflictError, times=20, pause_s=0.2)
def set_tag(load: Callable[[], Table], tag: str, snapshot: int | None) -> None:
    """Create, move or (with None) remove a tag. Removing one that does not exist does nothing.

    Raises:
        CommitConflictError: other commits came first many times, or the snapshot has expired.
    """
    table = load()
    if snapshot is None and tag not in table.metadata.refs:
        return
    if snapshot is not None and table.snapshot_by_id(snapshot) is None:
        raise CommitConflictError(f"snapshot {snapshot}, to be tagged {tag}, has expired")
    once = {**table.metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": once})  # parsed metadata is shared
    try:
        with table.manage_snapshots() as changed:
            if snapshot is None:
                changed.remove_tag(tag)
            else:
                changed.create_tag(snapshot, tag)
    except (CommitFailedException, ValueError) as error:  # a ValueError if the snapshot has just expired
        raise CommitConflictError(f"{'.'.join(table.name()[-2:])} was changed by another commit: {error}") from None
