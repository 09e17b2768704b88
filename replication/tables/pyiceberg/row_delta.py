"""Replace or delete a few rows in one commit, without the engine: position deletes and new rows, through PyIceberg.

PyIceberg writes no delete files, so this file has the producer of such a snapshot. It follows version 2 of the Iceberg
specification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.typedef import EMPTY_DICT

from replication.errors import CommitConflictError
from replication.tables.pyiceberg.append import Adding, committed, forget_older_snapshots
from replication.tables.pyiceberg.write import new_job, remove_files, write_data_files, write_deletes


def replace_rows(
    table: Table,
    places: Callable[[Table, Sequence[str], pa.Table], pa.Table],
    key: Sequence[str],
    gone: pa.Table,
    rows: pa.Table,
    expect: int | None,
    summary: Mapping[str, str],
) -> int:
    """Delete the rows with the keys ``gone`` and append ``rows`` in one snapshot; return its id.

    The table was just loaded, is of format version 2 and not partitioned; it may lack some of the keys. ``expect`` is
    the snapshot that must be current; None when the table must have none.

    Raises:
        CommitConflictError: another snapshot is current. Nothing was changed.
    """
    _check_at(table, expect)
    forget_older_snapshots(table)
    written = write_data_files(table.metadata, table.io.properties, stored(table, rows).to_batches())
    try:
        written += _write_deletes(table, places(table, key, gone))
    except BaseException:
        _remove(table, written)
        raise
    return _replace(table, written, summary)


def replace_files(table: Table, written: Sequence[DataFile], expect: int | None, summary: Mapping[str, str]) -> int:
    """Add data files and delete files in one snapshot; return its id. They are removed when the commit is refused.

    ``written`` is of ``plan_write``. ``expect`` is the snapshot that must be current, whose rows the files delete; None
    when the table must have none.

    Raises:
        CommitConflictError: another snapshot is current. Nothing was changed.
    """
    try:
        _check_at(table, expect)
    except CommitConflictError:
        _remove(table, written)
        raise
    forget_older_snapshots(table)
    return _replace(table, written, summary)


def _check_at(table: Table, expect: int | None) -> None:
    if table.metadata.current_snapshot_id != expect:
        raise CommitConflictError(f"{'.'.join(table.name()[-2:])} is no longer at snapshot {expect}")


def _replace(table: Table, written: Sequence[DataFile], summary: Mapping[str, str]) -> int:
    deletes = [file for file in written if file.content != DataFileContent.DATA]
    return commit_once(table, written, lambda t: _RowDelta(Operation.OVERWRITE, t, table.io, deletes, dict(summary)))


def delete_places(table: Table, places: pa.Table) -> int:
    """Delete rows in one snapshot; return its id. ``places`` are those of live rows, sorted, and not empty.

    Raises:
        CommitConflictError: another commit came first. Nothing was changed.
    """
    forget_older_snapshots(table)
    deletes = _write_deletes(table, places)
    return commit_once(table, deletes, lambda t: _RowDelta(Operation.DELETE, t, table.io, deletes, {}))


def commit_once(table: Table, written: Sequence[DataFile], produce: Callable[[Transaction], Adding]) -> int:
    """Commit a snapshot with the data files among ``written``; return its id.

    Files in ``written`` are removed when the commit was refused or never sent.

    Raises:
        CommitConflictError: another commit came first. Nothing was changed.
    """
    try:
        return committed(table, written, produce)
    except CommitFailedException as error:
        _remove(table, written)
        name = ".".join(table.name()[-2:])
        raise CommitConflictError(f"{name} was changed by another commit: {error}") from None


def _remove(table: Table, files: Iterable[DataFile]) -> None:
    remove_files(table.io, (file.file_path for file in files))


def stored(table: Table, rows: pa.Table) -> pa.Table:
    """Return rows with the columns of a table, in its order and types, in one chunk."""
    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    return pa.Table.from_arrays([_column(rows, field) for field in schema], schema=schema).combine_chunks()


def _column(rows: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    """Return a column of ``rows``, or NULLs for a column that another program added to the Iceberg table."""
    if field.name not in rows.column_names:
        return pa.nulls(rows.num_rows, field.type)
    return rows.column(field.name).cast(field.type)


def _write_deletes(table: Table, positions: pa.Table) -> list[DataFile]:
    path = table.location_provider().new_data_location(f"00000-0-{new_job(table.metadata)}-deletes.parquet")
    return write_deletes(table.metadata, table.io, path, positions.to_batches())


class _DeletesWriter(ManifestWriterV2):
    """A manifest of delete files."""

    def content(self) -> ManifestContent:
        """What the manifest lists."""
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def delete_manifests(snapshot: Adding, entries: Sequence[ManifestEntry]) -> list[ManifestFile]:
    """Write the manifest of a new snapshot's entries of delete files; none without entries."""
    if not entries:
        return []
    spec, output = snapshot._transaction.table_metadata.spec(), snapshot.new_manifest_output()
    with _DeletesWriter(spec, snapshot.schema(), output, snapshot._snapshot_id, snapshot._compression) as writer:
        for entry in entries:
            writer.add_entry(entry)
    return [writer.to_manifest_file()]


class _RowDelta(Adding):
    """A snapshot that adds delete files, and data files if it has any."""

    def __init__(
        self,
        operation: Operation,
        transaction: Transaction,
        io: FileIO,
        deletes: Sequence[DataFile],
        properties: dict[str, str],
    ) -> None:
        super().__init__(operation, transaction, io, snapshot_properties=properties)
        self._deletes = deletes

    def _manifests(self) -> list[ManifestFile]:
        added = [
            ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, data_file=file)
            for file in self._deletes
        ]
        return [*delete_manifests(self, added), *super()._manifests()]

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        added = self._added_data_files
        self._added_data_files = [*added, *self._deletes]  # the summary counts each by its content
        try:
            return super()._summary(snapshot_properties)
        finally:
            self._added_data_files = added
