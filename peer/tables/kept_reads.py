"""The newest rows of tables that are read again and again: views in one DuckDB database that follow their tables."""

from __future__ import annotations

import threading
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from uuid import UUID

import duckdb
from cachetools import LRUCache

from peer.tables.latest import Folded, MergeQuery
from replication.core.definition.aging import horizon
from replication.core.definition.schema import TableSpec
from replication.tables.base import DUCKDB, open_duckdb
from replication.tables.catalog.catalog import IcebergCatalog, history_of
from replication.tables.duckdb.confined import confine
from replication.tables.duckdb.kept_view import KeptView
from replication.tables.layout import CHANGES, TOMBSTONES, shown_columns
from replication.wall_clock import now_us

_TABLES_MAX = 8


class KeptReads:
    """Views of the last few tables that were read. Safe for threads. ``close`` releases the database.

    Args:
        catalog: the caller closes it.
    """

    def __init__(self, catalog: IcebergCatalog) -> None:
        self._catalog = catalog
        self._lock = threading.Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._tables: MutableMapping[UUID, _KeptTable] = LRUCache(_TABLES_MAX)

    def latest(self, spec: TableSpec) -> tuple[duckdb.DuckDBPyConnection, str]:
        """Return a connection of the caller's own, and a query of a table's live rows for it.

        The rows are those of the table's Iceberg tables as they are at the call, whatever other threads read meanwhile.

        Raises:
            UnknownTableError: replay has not created them yet.
            StorageError, duckdb.Error: a file of them is damaged or missing.
        """
        with self._lock:
            try:
                return self._latest(spec)
            except duckdb.FatalException:  # an error of an earlier query has ended the database
                self._close()
                return self._latest(spec)

    def _latest(self, spec: TableSpec) -> tuple[duckdb.DuckDBPyConnection, str]:
        if self._connection is None:
            self._connection = open_duckdb()
            confine(self._connection, self._catalog.warehouse)
        kept = self._kept(self._connection, spec)
        with _transaction(self._connection, kept):
            query = kept.follow(self._connection, self._catalog)
        return kept.pinned(self._connection), query

    def close(self) -> None:
        """Close the database. Idempotent."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._tables.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(duckdb.Error):  # another thread reads: it is closed after that
                connection.close()

    def _kept(self, connection: duckdb.DuckDBPyConnection, spec: TableSpec) -> _KeptTable:
        kept = self._tables.get(spec.uuid)
        if kept is None or kept.spec != spec:
            if kept is None and len(self._tables) >= _TABLES_MAX:
                _, kept = self._tables.popitem()
            if kept is not None:
                kept.drop(connection)
            kept = self._tables[spec.uuid] = _KeptTable(spec)
        return kept


class _KeptTable:
    """The views of one table's Iceberg tables. For one thread at a time."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        key = [spec.by_name[name] for name in spec.key]
        columns = {CHANGES: spec.columns, "": shown_columns(spec), TOMBSTONES: key}
        self._views = {
            suffix: KeptView(f"{spec.uuid}{suffix}", columns[suffix]) for suffix in (columns if spec.key else [""])
        }
        self._latest = DUCKDB.name(f"{spec.uuid} latest")
        self._shown: object = None  # what the view ``latest`` shows

    def follow(self, connection: duckdb.DuckDBPyConnection, catalog: IcebergCatalog) -> str:
        """Bring the views up to date; return the query of the live rows."""
        spec = self.spec
        # The changes before the table: a fold moves them into it, and then they may be trimmed.
        loaded = {suffix: catalog.load_for_reading(spec.name + suffix) for suffix in self._views}
        folded = Folded.newest(history_of(loaded[""].metadata)) if spec.key else Folded()
        for suffix, view in self._views.items():
            view.follow(connection, loaded[suffix], folded.unfolded if suffix == CHANGES else "")
        named = {suffix: DUCKDB.name(view.name) for suffix, view in self._views.items()}
        changes, tombstones, oldest = named.get(CHANGES, ""), named.get(TOMBSTONES, ""), horizon(spec, now_us())
        merge = MergeQuery(spec, DUCKDB, changes, named[""], tombstones, folded, oldest)
        query = merge.latest()
        if spec.key and self._views[CHANGES].is_empty:  # nothing has come since the fold
            query = f"select {', '.join(DUCKDB.name(c.name) for c in spec.columns)} from {merge.young()}"
        return query if oldest is not None else self._view(connection, query)  # a horizon is another with each call

    def _view(self, connection: duckdb.DuckDBPyConnection, query: str) -> str:
        """Return a short query with the rows of a long one, which each read would have parsed three times."""
        if self._shown != (shown := (query, [view.fields for view in self._views.values()])):
            self._shown = None
            connection.execute(f"create or replace view {self._latest} as {query}")
            self._shown = shown
        return f"from {self._latest}"

    def pinned(self, connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
        """Return a new connection, in a transaction for which the views stay as they are."""
        cursor = connection.cursor()
        cursor.begin()
        cursor.sql(f"from {DUCKDB.name(self._views[''].name)}")  # a transaction begins with its first statement
        return cursor

    def forget(self) -> None:
        """Start anew with the next ``follow``."""
        self._shown = None
        for view in self._views.values():
            view.forget()

    def drop(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Remove the views from the database."""
        connection.execute(f"drop view if exists {self._latest}")
        for view in self._views.values():
            view.drop(connection)


@contextmanager
def _transaction(connection: duckdb.DuckDBPyConnection, kept: _KeptTable) -> Iterator[None]:
    """Other connections see all changes of the views at once, or none of them."""
    connection.begin()
    try:
        yield
        connection.commit()
    except BaseException:
        kept.forget()
        connection.rollback()
        raise
