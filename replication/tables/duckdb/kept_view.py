"""A view of an Iceberg table that stays in a DuckDB database and follows the table from commit to commit.

For reads of a few keys, which would else plan the table, create views and open every small file each time. Manifests
and data files never change. So a new commit costs its own files only: their rows are added to those in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.expressions.parser import parse as parse_filter
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import FileScanTask, Table

from replication.core.definition.schema import Column
from replication.tables.base import DUCKDB
from replication.tables.duckdb.views import Shown, attach, shown
from replication.tables.pyiceberg.damage import planned, planning

#: Files up to this size are read into memory, the smallest first, up to this many bytes of files in all.
_SMALL_BYTES, _MEMORY_BYTES = 256 << 10, 4 << 20


class KeptView:
    """The view ``name`` of one table: its rows, ``_file`` and ``_pos``. Not safe for threads.

    Args:
        name: of the view; others in the database do not begin with it.
        columns: in place of the table's user columns, as for ``shown``.

    Attributes:
        fields: its columns.
        is_empty: whether the last ``follow`` found no files.
    """

    def __init__(self, name: str, columns: Sequence[Column]) -> None:
        self.name = name
        self._columns = columns
        self._state: tuple[str, str] | None = None
        self.fields: list[Shown] = []
        self.is_empty = True
        self._in_memory: set[str] = set()
        self._planned_for: tuple[int, str] | None = None
        self._tasks: dict[str, list[FileScanTask]] = {}

    def follow(self, connection: duckdb.DuckDBPyConnection, table: Table, where: str = "") -> None:
        """Bring the view up to date with a table that was just loaded. Call it within a transaction.

        Files without rows that match ``where``, an Iceberg filter, are left out; other rows may not match. Connection
        and table are the same in each call.

        Raises:
            StorageError: a manifest is damaged or missing. duckdb.Error: a data file is.
        """
        state = (table.metadata_location, where)
        if state == self._state:
            return
        self._state = None
        fields = shown(table, self._columns)
        if fields != self.fields:
            self.fields, self._in_memory = fields, set()
        tasks = self._plan(table, where)
        small = _small(tasks)
        self._read(connection, small)
        parts = ["rows"]
        if large := [task for task in tasks if task.file.file_path not in small]:
            attach(connection, self._part("files"), fields, large)
            parts.append("files")
        every = " union all ".join(f"select * from {DUCKDB.name(self._part(part))}" for part in parts)
        connection.execute(f"create or replace view {DUCKDB.name(self.name)} as {every}")
        self._state, self.is_empty = state, not tasks

    def forget(self) -> None:
        """Start anew with the next ``follow``, after a failed one was rolled back."""
        self._state, self._planned_for = None, None
        self._in_memory = set()

    def drop(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Remove the view and its rows from the database."""
        for view in (self.name, self._part("files"), self._part("new")):
            connection.execute(f"drop view if exists {DUCKDB.name(view)}")
        connection.execute(f"drop table if exists {DUCKDB.name(self._part('rows'))}")
        self.forget()

    def _part(self, name: str) -> str:
        return f"{self.name} {name}"

    def _read(self, connection: duckdb.DuckDBPyConnection, small: dict[str, FileScanTask]) -> None:
        """Make the rows in memory those of the files ``small``."""
        rows, new = DUCKDB.name(self._part("rows")), DUCKDB.name(self._part("new"))
        here = self._in_memory
        missing = [task for path, task in small.items() if path not in here]
        if missing or not here:
            attach(connection, self._part("new"), self.fields, missing)
        if not here:
            connection.execute(f"create or replace table {rows} as from {new}")
        else:
            if here - small.keys():  # a new table: deleted rows would stay in memory
                paths = ", ".join(map(DUCKDB.text, here & small.keys())) or "''"
                connection.execute(f"create or replace table {rows} as from {rows} where _file in ({paths})")
            if missing:
                connection.execute(f"insert into {rows} from {new}")
        self._in_memory = set(small)

    def _plan(self, table: Table, where: str) -> list[FileScanTask]:
        """The files that may have matching rows. Manifests that were read before are not read again."""
        snapshot = table.current_snapshot()
        if snapshot is None:
            return []
        condition = parse_filter(where) if where else AlwaysTrue()
        with planning(table):
            manifests = snapshot.manifests(table.io)
            if any(manifest.content == ManifestContent.DELETES for manifest in manifests):
                return planned(table, condition, None)
            planned_for = table.metadata.current_schema_id, where
            known = self._tasks if planned_for == self._planned_for else {}
            self._planned_for, self._tasks = None, {}
            may_match = _InclusiveMetricsEvaluator(table.schema(), condition).eval
            for manifest in manifests:
                path = manifest.manifest_path
                self._tasks[path] = (
                    known[path]
                    if path in known
                    else [
                        FileScanTask(entry.data_file)
                        for entry in manifest.fetch_manifest_entry(table.io)
                        if may_match(entry.data_file)
                    ]
                )
            self._planned_for = planned_for
        return [task for tasks in self._tasks.values() for task in tasks]


def _small(tasks: Sequence[FileScanTask]) -> dict[str, FileScanTask]:
    """The files that are read into memory, by path."""
    left, small = _MEMORY_BYTES, {}
    for task in sorted(tasks, key=lambda task: task.file.file_size_in_bytes):
        size = task.file.file_size_in_bytes
        if size > min(left, _SMALL_BYTES):
            break
        if not task.delete_files:
            small[task.file.file_path] = task
            left -= size
    return small
