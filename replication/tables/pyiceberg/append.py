"""Appends: data files that were written before (``write.py``) are committed by compare-and-swap.

The commit requires that ``main`` is still at the expected snapshot. So PyIceberg's own retries, which would append
after other commits, are turned off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _MergeAppendFiles

from replication.errors import CommitConflictError
from replication.tables.base import Decode
from replication.tables.pyiceberg.evolve import check_columns
from replication.tables.pyiceberg.write import WriteFiles, new_job, remove_files

_COMMITS = 5
#: Operations of snapshots that add no rows.
ADDS_NO_ROWS = ("replace", "delete")


def plan_write(table: Table, name: str, rows: Decode) -> WriteFiles:
    """Return what decodes ``rows`` and writes them as data files of ``table``: just loaded, and not partitioned.

    Raises:
        CommitConflictError: the table's columns are not called as those of ``rows`` that carry a uuid.
    """
    check_columns(table.metadata, name, rows.schema)
    return WriteFiles(
        _without_older_snapshots(table.metadata), _for_files(table.io.properties), rows, new_job(table.metadata)
    )


def _for_files(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that files need: not the address of the catalog's database, which has a password."""
    return {key: value for key, value in properties.items() if key != "uri" or value.startswith("http")}


def append_files(table: Table, expect: int | None, files: Sequence[DataFile], summary: Mapping[str, str]) -> int | None:
    """Append data files to a table; return the snapshot's id, or None without files.

    The files are those of ``plan_write``; they are deleted when the commit is refused or never sent.

    Raises:
        CommitConflictError: rows were added since snapshot ``expect`` (None: at all), or maintenance commits came first
            several times. Nothing was changed.
    """
    name = ".".join(table.name()[-2:])
    try:
        _check_only_maintenance(table, name, expect)
        forget_older_snapshots(table)
        return _commit(table, name, expect, files, summary) if files else None
    except CommitConflictError:
        remove_files(table.io, (file.file_path for file in files))
        raise


class Adding(_MergeAppendFiles):
    """A snapshot that adds data files. Its files stay when the commit was refused because it has landed already.

    A proxy before the catalog may repeat a commit whose reply was lost; the repetition is refused.
    """

    has_landed = False

    def _clean_all_uncommitted(self) -> None:
        """Delete the snapshot's files; PyIceberg calls it when a commit was refused."""
        table = self._transaction._table
        table.refresh()
        self.has_landed = table.metadata.snapshot_by_id(self.snapshot_id) is not None
        if not self.has_landed:
            super()._clean_all_uncommitted()


def _commit(table: Table, name: str, expect: int | None, files: Sequence[DataFile], summary: Mapping[str, str]) -> int:
    """Commit data files. Try again when only maintenance came in between, with the same files."""
    properties = dict(summary)
    for left in reversed(range(_COMMITS)):
        try:
            return committed(
                table, files, lambda t: Adding(Operation.APPEND, t, table.io, snapshot_properties=properties)
            )
        except CommitFailedException as error:
            if not left:
                raise CommitConflictError(f"{name} was changed by another commit: {error}") from None
        table.refresh()
        _check_only_maintenance(table, name, expect)
        forget_older_snapshots(table)
    raise AssertionError("the last attempt returns or raises")


def committed(table: Table, written: Sequence[DataFile], produce: Callable[[Transaction], Adding]) -> int:
    """Commit a snapshot with the data files among ``written``; return its id.

    Files in ``written`` are removed when the commit was never sent. Once sent, it may have landed even without a reply.

    Raises:
        CommitFailedException: another commit came first. The files stay.
    """
    table.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"  # only in this copy of the metadata
    transaction = table.transaction()
    snapshot = produce(transaction)
    is_sent = False
    try:
        with transaction:
            for file in written:
                if file.content == DataFileContent.DATA:
                    snapshot.append_data_file(file)
            snapshot.commit()
            is_sent = True
    except CommitFailedException:
        if not snapshot.has_landed:
            raise
    except BaseException:
        if not is_sent:  # a disk is full, for instance
            remove_files(table.io, (file.file_path for file in written))
        raise
    return snapshot.snapshot_id


def forget_older_snapshots(table: Table) -> None:
    """Leave only the current snapshot in this copy of the metadata: PyIceberg searches it many times per append.

    The commit loads the whole metadata again and checks that ``main`` has not moved. The metadata log stays, since
    PyIceberg deletes superseded metadata files by it.
    """
    table.metadata = _without_older_snapshots(table.metadata)


def _without_older_snapshots(metadata: TableMetadata) -> TableMetadata:
    current = metadata.current_snapshot()
    main = {name: ref for name, ref in metadata.refs.items() if name == MAIN_BRANCH}
    return metadata.model_copy(
        update={
            "snapshots": [current] if current is not None else [],
            "snapshot_log": [],
            "refs": main,
            "properties": dict(metadata.properties),
        }
    )


def _check_only_maintenance(table: Table, name: str, expect: int | None) -> None:
    at = table.metadata.current_snapshot_id
    while at not in (None, -1, expect):
        snapshot = table.metadata.snapshot_by_id(at)
        if snapshot is None:
            raise CommitConflictError(f"snapshot {expect} of {name} is not an ancestor of the current one")
        if snapshot.summary is None or snapshot.summary.operation.value not in ADDS_NO_ROWS:
            raise CommitConflictError(f"rows were added to {name} since snapshot {expect}, by snapshot {at}")
        at = snapshot.parent_snapshot_id
    if expect is not None and at != expect:
        raise CommitConflictError(f"snapshot {expect} of {name} is not an ancestor of the current one")
