"""Rewrite a small table without its deleted rows, mostly as one data file, without the engine.

PyIceberg has no producer of such a snapshot, so it is here. It follows version 2 of the Iceberg specification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.typedef import EMPTY_DICT

from replication.tables.pyiceberg.append import Adding, forget_older_snapshots
from replication.tables.pyiceberg.evolve import column_ids
from replication.tables.pyiceberg.row_delta import commit_once, delete_manifests, stored
from replication.tables.pyiceberg.write import FILE_BYTES, fits, remove_files, write_data_files
from replication.tables.together import together


def is_small(table: Table, limit: int) -> bool:
    """Return whether a table's files have at most ``limit`` bytes, and its rows can be rewritten here.

    False when the program that made the current snapshot counted no bytes, and when another program added columns.
    """
    snapshot = table.current_snapshot()
    summary: Mapping[str, str] = {} if snapshot is None or snapshot.summary is None else snapshot.summary
    size, by_value = summary.get("total-files-size"), summary.get("total-equality-deletes")
    plain = fits(table) and len(table.specs()) == 1 and table.metadata.format_version == 2 and by_value in (None, "0")
    own = set(column_ids(table.metadata).values())
    known = all(field.field_id in own or field.name.startswith("_") for field in table.schema().fields)
    return plain and known and size is not None and int(size) <= limit


def compact(table: Table, live_rows: Callable[[Table], Iterable[pa.RecordBatch]], min_files: int) -> int:
    """Rewrite all files of a small table when there are ``min_files``; return how many data files were replaced.

    It was just loaded, and ``is_small``. ``live_rows`` returns its rows in small batches.

    Raises:
        CommitConflictError: another commit came first. Nothing was changed.
    """
    tasks = list(table.scan().plan_files())
    deletes = {file.file_path for task in tasks for file in task.delete_files}
    if len(tasks) + len(deletes) < min_files:
        return 0
    forget_older_snapshots(table)
    written: list[DataFile] = []
    try:
        for piece in together(live_rows(table), FILE_BYTES):  # a small file can have rows that need much memory
            rows = stored(table, pa.Table.from_batches(piece))
            written += write_data_files(table.metadata, table.io.properties, rows.to_batches())
    except BaseException:
        remove_files(table.io, (file.file_path for file in written))
        raise
    commit_once(table, written, lambda transaction: _Rewrite(transaction, table.io))
    return len(tasks)


class _Rewrite(Adding):
    """A snapshot whose data files take the place of all files of the one before."""

    def __init__(self, transaction: Transaction, io: FileIO) -> None:
        super().__init__(Operation.REPLACE, transaction, io)

    def _existing_manifests(self) -> list[ManifestFile]:
        return []

    def _deleted_entries(self) -> list[ManifestEntry]:
        return self._entries[ManifestContent.DATA]

    def _manifests(self) -> list[ManifestFile]:
        return [*delete_manifests(self, self._entries[ManifestContent.DELETES]), *super()._manifests()]

    @cached_property
    def _entries(self) -> dict[ManifestContent, list[ManifestEntry]]:
        """The files of the snapshot before, by their kind, as deleted ones."""
        before = self._transaction.table_metadata.current_snapshot()
        assert before is not None, "a table that is rewritten has a snapshot"
        found: dict[ManifestContent, list[ManifestEntry]] = {content: [] for content in ManifestContent}
        for manifest in before.manifests(self._io):
            found[manifest.content] += [
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.DELETED,
                    snapshot_id=self._snapshot_id,
                    sequence_number=entry.sequence_number,
                    file_sequence_number=entry.file_sequence_number,
                    data_file=entry.data_file,
                )
                for entry in manifest.fetch_manifest_entry(self._io)
            ]
        return found

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        """PyIceberg counts no files of a rewrite: they are counted as of an overwrite."""
        removed: set[DataFile] = {entry.data_file for entries in self._entries.values() for entry in entries}
        self._operation, self._deleted_data_files = Operation.OVERWRITE, removed
        summary = super()._summary(snapshot_properties)
        self._operation, self._deleted_data_files = Operation.REPLACE, set()
        return Summary(Operation.REPLACE, **summary.additional_properties)
