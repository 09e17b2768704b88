"""Tables in memory, for tests and simulations: snapshots of Arrow tables, compare-and-swap, injected failures.

``fail`` is called with a step's name and may raise: with ``append ops.t`` before anything is changed, with ``appended
ops.t`` after the commit. SQL runs in DuckDB.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import count
from uuid import UUID
from weakref import finalize

import duckdb
import pyarrow as pa

from replication.core.definition.evolution import carried_uuids
from replication.core.definition.schema import Column, TableSpec
from replication.core.ids import NIL_UUID
from replication.errors import CommitConflictError, ReplicationError, SchemaError, UnknownTableError
from replication.tables.base import DUCKDB, LABEL, Decode, History, Rows, Snapshot, Staged
from replication.tables.layout import LATEST, layouts
from replication.tables.shared_duckdb import scratch_duckdb
from replication.tables.work import WorkDone


@dataclass(slots=True)
class _Table:
    schema: pa.Schema
    columns: dict[UUID, str]
    current: int | None = None
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    rows: dict[int, pa.Table] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RowsOfTable:
    """Implements ``base.TableSource``."""

    rows: pa.Table

    @property
    def size(self) -> int:
        return int(self.rows.nbytes)

    def __call__(self, connection: duckdb.DuckDBPyConnection, view: str) -> None:
        connection.register(view, self.rows)


_NUMBERS = count()


@cache
def _shared_duckdb() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(":memory:", config={"threads": 1})


def _closed(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    with closing(connection), suppress(duckdb.Error):
        connection.execute(f"use memory; detach {name}")


class MemoryTables:
    """A warehouse in this process, shared by all users of the object."""

    dialect = DUCKDB
    ui = engine = ""
    parallel = background_parallel = 2
    round_bytes = 128 << 20

    def __init__(self, fail: Callable[[str], None] = lambda step: None) -> None:
        self.fail = fail
        self.work = WorkDone()
        self._tables: dict[str, _Table] = {}
        self._specs: dict[str, TableSpec] = {}
        self._views: dict[str, str] = {}
        self._ids = count(1)
        self._lock = threading.RLock()

    @cached_property
    def _duckdb(self) -> duckdb.DuckDBPyConnection:
        """A database of its own in one DuckDB for all: another takes twenty times as long to open."""
        connection, name = _shared_duckdb().cursor(), f"tables_{next(_NUMBERS)}"
        connection.execute(f"attach ':memory:' as {name}; use {name}; set timezone = 'UTC'")
        finalize(self, _closed, connection, name).atexit = False
        return connection

    def create(self, spec: TableSpec, was_dropped: Callable[[UUID], bool] = lambda table: False) -> None:
        with self._lock:
            before = self._specs.get(spec.name, spec)
            if before.uuid != spec.uuid and spec.name in self._tables:
                if not was_dropped(before.uuid):
                    raise SchemaError(f"the table {spec.name} is another one, {before.uuid}")
                for layout in layouts(before):
                    self._tables[f"{layout.name}__dropped_{before.uuid.hex[:8]}"] = self._tables.pop(layout.name)
            self._specs[spec.name] = spec
            for layout in layouts(spec):
                columns = {uuid: name for name, uuid in layout.column_uuids.items()}
                table = self._tables.setdefault(layout.name, _Table(layout.schema, columns))
                if ahead := table.columns.keys() - columns.keys() - layout.dropped:
                    names = ", ".join(sorted(table.columns[uuid] for uuid in ahead))
                    raise SchemaError(f"{layout.name} has {names}, which the definition here does not have yet")
                before_names = {columns[uuid]: name for uuid, name in table.columns.items() if uuid in columns}
                user = set(columns.values())
                for snapshot, rows in table.rows.items():
                    pairs = [(n, before_names.get(n) if n in user else n) for n in layout.schema.names]
                    kept = {name: rows.column(old) for name, old in pairs if old in rows.column_names}
                    table.rows[snapshot] = _shaped(kept, layout.schema, rows.num_rows)
                table.schema, table.columns = layout.schema, columns

    def fits(self, spec: TableSpec) -> bool:
        return all(
            layout.name in self._tables
            and self._tables[layout.name].columns == {uuid: name for name, uuid in layout.column_uuids.items()}
            and set(layout.schema.names) <= set(self._tables[layout.name].schema.names)
            for layout in layouts(spec)
        )

    def exists(self, name: str) -> bool:
        return name in self._tables

    def has(self, spec: TableSpec) -> bool:
        return spec.name in self._tables and self._specs[spec.name].uuid == spec.uuid

    def specs(self) -> list[TableSpec]:
        return [self._specs[name] for name in sorted(self._specs) if name in self._tables]

    def history(self, name: str) -> History:
        with self._lock:
            table = self._get(name)
            return History(table.current, dict(table.snapshots), dict(table.tags))

    def scratch_duckdb(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        return scratch_duckdb()

    def attach(
        self,
        connection: duckdb.DuckDBPyConnection,
        view: str,
        name: str,
        *,
        snapshot: int | None = None,
        where: str = "",
        columns: Sequence[Column] | None = None,
    ) -> None:
        with self._lock:
            table, rows = self._get(name), self._rows(name, snapshot)
            if columns is not None:
                here = {c.name: rows.column(table.columns[c.uuid]) for c in columns if c.uuid in table.columns}
                own = [column.name for column in columns if column.uuid == NIL_UUID]
                here |= {name: rows.column(name) for name in own if name in rows.column_names}
                system = [f for f in table.schema if f.name not in table.columns.values() and f.name not in own]
                here |= {field.name: rows.column(field.name) for field in system}
                shown = pa.schema([*(pa.field(c.name, c.type) for c in columns), *system])
                rows = _shaped(here, shown, rows.num_rows)
        connection.register(view, rows)

    def source(self, name: str, *, snapshot: int | None = None, where: str = "") -> RowsOfTable:
        with self._lock:
            return RowsOfTable(self._rows(name, snapshot))

    def may_have(self, name: str, where: str) -> bool:
        self._get(name)
        return bool(self.query(f"select 1 from {self.ref(name)} where {where} limit 1").num_rows)

    def near(self, name: str) -> str:
        return self.ref(name)

    def show(self, spec: TableSpec, query: str) -> None:
        if not {column.name for column in spec.columns} <= set(self._get(spec.name).schema.names):
            raise CommitConflictError(f"{spec.name} was altered by another commit")
        with self._lock:
            self._views[spec.name + LATEST] = query

    def ref(self, name: str) -> str:
        """Return a table's name in DuckDB's SQL."""
        return DUCKDB.name(name)

    def stage(self, work: Sequence[tuple[str, Decode]], title: str = "") -> list[Staged]:
        staged = []
        for name, rows in work:
            try:
                staged.append(Staged(name, rows, _decoded(rows)))
            except ReplicationError as error:
                staged.append(Staged(name, rows, error=error))
        return staged

    def append(
        self,
        name: str,
        rows: Staged | Decode | Rows,
        expect: int | None,
        summary: Mapping[str, str],
        shape: TableSpec | None = None,
    ) -> int | None:
        self.fail(f"append {name}")
        staged = self.stage([(name, rows)])[0] if isinstance(rows, Decode) else rows
        added = _rows_of_staged(staged) if isinstance(staged, Staged) else self._rows_of(staged)
        if isinstance(staged, Staged) and not added.num_rows:
            return None
        with self._lock:
            table = self._get(name)
            self._check_unmoved(name, table, expect)
            self._check_shape(name, shape)
            if isinstance(staged, Staged):
                for uuid, column in carried_uuids(staged.rows.schema).items():
                    if table.columns.get(uuid) != column:
                        raise CommitConflictError(f"{name} has been altered: it has no column {column}")
            appended = pa.concat_tables([self._rows(name, None), _shaped_table(added, table.schema)])
            snapshot = self._commit(table, appended, "append", summary)
        self.fail(f"appended {name}")
        return snapshot

    def replace(
        self,
        name: str,
        key: Sequence[str],
        gone: Rows,
        rows: Decode | Rows,
        expect: int | None,
        summary: Mapping[str, str],
        shape: TableSpec | None = None,
    ) -> int:
        self.fail(f"replace {name}")
        with self._lock:
            table = self._get(name)
            if table.current != expect:
                raise CommitConflictError(f"{name} is no longer at snapshot {expect}")
            self._check_shape(name, shape)
            columns = ", ".join(DUCKDB.name(column) for column in key)
            self._duckdb.register("gone keys", self._rows_of(gone))
            kept = self.query(
                f'select * from {self.ref(name)} where ({columns}) not in (select ({columns}) from "gone keys")'
            )
            self._duckdb.unregister("gone keys")
            given = _decoded(rows) if isinstance(rows, Decode) else self._rows_of(rows)
            added = _shaped_table(given, table.schema)
            replaced = pa.concat_tables([_shaped_table(kept, table.schema), added])
            snapshot = self._commit(table, replaced, "append", summary)
        self.fail(f"replaced {name}")
        return snapshot

    def delete(self, name: str, where: str, engine_where: str = "") -> None:
        with self._lock:
            table = self._get(name)
            kept = self.query(f"select * from {self.ref(name)} where not coalesce({where}, false)")
            self._commit(table, _shaped_table(kept, table.schema), "delete", {})

    def query(self, sql: str) -> pa.Table:
        with self._lock:
            views = {name: query for name, query in self._views.items() if name in sql}
            for name in self._tables:
                if any(name in text for text in (sql, *views.values())):
                    self._duckdb.register(name, self._rows(name, None))
            for name, query in views.items():
                self._duckdb.execute(f"create or replace view {self.ref(name)} as {query}")
            return self._duckdb.sql(sql).to_arrow_table()

    def tag(self, name: str, tag: str, snapshot: int) -> None:
        self._get(name).tags[tag] = snapshot

    def untag(self, name: str, tag: str) -> None:
        self._get(name).tags.pop(tag, None)

    def drop_scratch(self, prefix: str, kept: Container[str]) -> list[str]:
        """See ``base.Catalog``; there are none in memory."""
        return []

    def expire(self, name: str, older_than: int, keep: int) -> None:
        """Expire snapshots older than a time, except the last ``keep`` and tagged ones."""
        with self._lock:
            table = self._get(name)
            kept = [snapshot.id for snapshot in self.history(name).chain()][:keep]
            for snapshot in list(table.snapshots.values()):
                if snapshot.id not in kept and snapshot.id not in table.tags.values() and snapshot.at < older_than:
                    del table.snapshots[snapshot.id], table.rows[snapshot.id]

    def make_durable(self, name: str) -> None:
        """They go with the process."""

    def compact(self, name: str, min_files: int) -> int:
        """Commit a snapshot with the same rows and no summary, as a rewrite of files does."""
        with self._lock:
            table = self._get(name)
            if table.current is None:
                return 0
            self._commit(table, table.rows[table.current], "replace", {})
            return min_files

    def remove_orphans(self, name: str, older_than: int) -> int:
        """See ``base.Tables``; there are none in memory."""
        return 0

    def rollback(self, name: str, snapshot: int) -> None:
        """Make an earlier snapshot current, as an operator may."""
        table = self._get(name)
        assert snapshot in table.snapshots
        table.current = snapshot

    def copy_to(self, other: MemoryTables) -> None:
        """Copy this warehouse's tables into another one, as a backup does."""
        with self._lock:
            for name, table in self._tables.items():
                copied = replace(table, snapshots=dict(table.snapshots), rows=dict(table.rows), tags=dict(table.tags))
                other._tables[name] = copied
            other._specs = dict(self._specs)
            other._ids = count(max((s for t in self._tables.values() for s in t.snapshots), default=0) + 1)

    def close(self) -> None:
        """Do nothing; the tables stay."""

    def _rows_of(self, rows: Rows) -> pa.Table:
        return self.query(rows) if isinstance(rows, str) else rows

    def _get(self, name: str) -> _Table:
        if name not in self._tables:
            raise UnknownTableError(f"there is no table {name}")
        return self._tables[name]

    def _rows(self, name: str, snapshot: int | None) -> pa.Table:
        table = self._get(name)
        at = table.current if snapshot is None else snapshot
        return table.schema.empty_table() if at is None else table.rows[at]

    def _commit(self, table: _Table, rows: pa.Table, operation: str, summary: Mapping[str, str]) -> int:
        number = next(self._ids)
        table.snapshots[number] = Snapshot(number, table.current, operation, dict(summary), number)
        table.rows[number] = rows
        table.current = number
        return number

    def _check_shape(self, name: str, shape: TableSpec | None) -> None:
        if shape is not None and not self.fits(shape):
            raise CommitConflictError(f"{name} was altered by another commit")

    def _check_unmoved(self, name: str, table: _Table, expect: int | None) -> None:
        for snapshot in History(table.current, table.snapshots).chain():
            if snapshot.id == expect:
                return
            if snapshot.operation == "append":
                raise CommitConflictError(f"rows were added to {name} since snapshot {expect}")
        if expect is not None:
            raise CommitConflictError(f"snapshot {expect} of {name} is not among its current ancestors")


def _rows_of_staged(staged: Staged) -> pa.Table:
    if staged.error is not None:
        raise staged.error
    return staged.content


def _decoded(rows: Decode) -> pa.Table:
    table = pa.Table.from_batches(list(rows.run(iter(rows.tasks.to_batches()))), rows.schema)
    labels = table.column(LABEL).to_pylist() if rows.label_columns else []
    for at, column in enumerate(rows.label_columns):
        table = table.append_column(column, pa.array([rows.labels[label][at] for label in labels], pa.string()))
    for column, value in rows.constants.items():
        table = table.append_column(column, pa.repeat(pa.scalar(value, pa.int64()), table.num_rows))
    return table.drop_columns([LABEL]) if LABEL in table.column_names else table


def _shaped_table(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    return _shaped({name: rows.column(name) for name in rows.column_names}, schema, rows.num_rows)


def _shaped(rows: Mapping[str, pa.ChunkedArray], schema: pa.Schema, count: int) -> pa.Table:
    columns = [rows[f.name].cast(f.type) if f.name in rows else pa.nulls(count, f.type) for f in schema]
    return pa.Table.from_arrays(columns, schema=schema)
