"""Reads without Spark: PyIceberg plans, DuckDB merges and filters, and the result is Arrow batches."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex, TypeVar
from uuid import UUID

import duckdb
import pyarrow as pa

from peer.tables.kept_reads import KeptReads
from peer.tables.latest import CONSISTENT_TAG, Folded, MergeQuery
from replication.config import Config
from replication.core.definition.aging import REMOVED_LATER_US, horizon
from replication.core.definition.choice import DEFAULT_NAMESPACE
from replication.core.definition.schema import TableSpec
from replication.errors import ForeignMaintenanceError, RequestError
from replication.ledger.base import Ledger
from replication.tables.base import DUCKDB, Catalog, History, open_duckdb
from replication.tables.catalog.catalog import IcebergCatalog, configured_catalog
from replication.tables.duckdb.batches import arrow_batches, fit_for_arrow
from replication.tables.duckdb.confined import confine, one_query, refusal
from replication.tables.layout import CHANGES, LATEST, TOMBSTONES, landing_name, shown_columns
from replication.tables.pyiceberg.damage import refuse_unreadable
from replication.wall_clock import now_us

T = TypeVar("T")
_SHOW_TABLES = re.compile(r"\s*show\s+tables\s*;?\s*", re.IGNORECASE)
_ROWS_MAX = 2**63 - 1  # of DuckDB


@dataclass(frozen=True, slots=True)
class Pinned:
    """Snapshots of a table's Iceberg tables to read at, None where there was none, and the fold that ``table`` has."""

    changes: int | None
    table: int | None
    tombstones: int | None
    folded: Folded = Folded()


NEWEST = Pinned(None, None, None)


def attach_latest(
    connection: duckdb.DuckDBPyConnection,
    catalog: Catalog,
    spec: TableSpec,
    view: str,
    *,
    as_of: int | None = None,
    versions: bool = False,
    pinned: Pinned | None = None,
) -> None:
    """Create ``view`` in a DuckDB connection: the rows of a table, now or as of a commit time.

    With ``versions`` the view also has each group's version columns, once replay has committed to the table. With
    ``pinned`` it reads those snapshots in place of the newest, for an ``as_of`` that they have.

    Raises:
        RequestError: ``as_of`` is before the last fold.
    """
    if not catalog.has(spec):  # replay has not created its Iceberg tables yet
        connection.register(view, spec.arrow.empty_table())
        return
    at = pinned or NEWEST
    if spec.key and pinned is None:
        changes = catalog.history(spec.name + CHANGES).current  # before the table, as in kept_reads.py
        folded, snapshot = base_of(catalog.history(spec.name), spec, as_of)
        at = Pinned(changes, snapshot, None, folded)
    merge = attach_parts(connection, catalog, spec, view, at)
    # without snapshots to read at, only a table that is read from before its first fold has none
    parts = ("changes", "table", "tombstones") if pinned is not None else ("table",) if spec.key else ()
    empty: dict[str, Any] = {
        part: f"(select * from {getattr(merge, part)} where false)" for part in parts if getattr(at, part) is None
    }
    merge = replace(merge, **empty, horizon=horizon(spec, now_us() if as_of is None else as_of))
    connection.execute(f"create or replace view {DUCKDB.name(view)} as {merge.latest(upto=as_of, versions=versions)}")


def attach_parts(
    connection: duckdb.DuckDBPyConnection, catalog: Catalog, spec: TableSpec, prefix: str, at: Pinned
) -> MergeQuery:
    """Create views of a table's Iceberg tables, at the snapshots of ``at``, for None at the newest; their query.

    Of ``__changes`` files are left out that have nothing beyond the fold of ``at``. No row is expired in the query.
    """
    parts = {name: f"{prefix} {name}" for name in ("changes", "table", "tombstones")}
    if spec.key:
        landed, deleted = spec.name + CHANGES, spec.name + TOMBSTONES
        key, where = [spec.by_name[name] for name in spec.key], at.folded.unfolded
        catalog.attach(connection, parts["changes"], landed, snapshot=at.changes, where=where, columns=spec.columns)
        catalog.attach(connection, parts["tombstones"], deleted, snapshot=at.tombstones, columns=key)
    catalog.attach(connection, parts["table"], spec.name, snapshot=at.table, columns=shown_columns(spec))
    changes, table, tombstones = map(DUCKDB.name, parts.values())
    return MergeQuery(spec, DUCKDB, changes, table, tombstones, at.folded)


def base_of(history: History, spec: TableSpec, as_of: int | None) -> tuple[Folded, int | None]:
    """The fold to start from, and its snapshot of ``<table>``. RequestError when ``as_of`` is before it."""
    folded = Folded.newest(history)
    if as_of is None or (folded.known and folded.upto <= as_of):
        return folded, history.current
    if folded.known and (folded.held_replay, folded.held_upto) == (0, -1):
        return Folded(), None
    if folded.known and folded.held_upto <= as_of and CONSISTENT_TAG in history.tags:
        # position from the newest fold's summary, since the tagged snapshot's fold may have expired
        held = Folded(folded.held_replay, folded.held_upto, folded.held_replay, folded.held_upto)
        return held, history.tags[CONSISTENT_TAG]
    if not folded.known:
        raise RequestError(
            f"it is not known how far {spec.name} is folded, since another program has expired its snapshots",
            "Read it without a time; or, once newer rows are folded, as of a later one",
        )
    raise RequestError(
        f"{spec.name} is folded up to {folded.upto}, so it cannot be read as of {as_of}",
        "Read as of a later commit time (microseconds since 1970)",
    )


def earliest(catalog: Catalog, ledger: Ledger, spec: TableSpec) -> int | None:
    """The earliest commit time that the table can be read as of; None when only its newest rows can be read."""
    if not catalog.has(spec):
        return 0
    if not spec.key:  # expired rows are removed, as of this time or an earlier one
        replicated = min((reached.t for reached in ledger.time.replicated(spec.uuid).values()), default=0)
        removed = min(replicated, now_us()) - REMOVED_LATER_US
        return 0 if horizon(spec, removed) is None else removed
    return earliest_of(catalog.history(spec.name))


def earliest_of(history: History) -> int | None:
    """The same, by the history of ``<table>``."""
    folded = Folded.newest(history)
    if not folded.known:
        return None
    if (folded.held_replay, folded.held_upto) == (0, -1):
        return 0
    return min(folded.upto, folded.held_upto) if CONSISTENT_TAG in history.tags else folded.upto


def has_rows(catalog: Catalog, ledger: Ledger, spec: TableSpec) -> bool:
    """Whether replay has committed to a table's Iceberg tables.

    Raises:
        ForeignMaintenanceError: it has by the ledger, but the catalog has none of it: the catalog was lost.
    """
    checkpoint = ledger.replay.checkpoint(spec.uuid)  # before the catalog, to which replay commits first
    if catalog.has(spec) and catalog.history(landing_name(spec)).current is not None:
        return True
    if checkpoint is not None and checkpoint.commit:
        raise ForeignMaintenanceError(
            f"the catalog of {ledger.cluster.name} has lost {spec.name}: the rows that replay committed are not in it",
            "Restore the catalog from a backup. Without one, move the ledger away, then: walship rebuildledger; what"
            " files here do not have, peers send again: deploy/cookbook/returning-from-a-backup.md",
        )
    return False


class Reader:
    """Reads one cluster's tables. Safe for threads; each read uses its own snapshot.

    Args:
        config: names the catalog.
        ledger: the caller closes it.
    """

    def __init__(self, config: Config, ledger: Ledger) -> None:
        self._config = config
        self._ledger = ledger
        self._lock = threading.Lock()
        self._catalog: IcebergCatalog | None = None
        self._kept: KeptReads | None = None
        self._with_rows: set[UUID] = set()

    @property
    def catalog(self) -> IcebergCatalog:
        """The Iceberg catalog, opened when first used."""
        with self._lock:
            if self._catalog is None:
                properties = configured_catalog(self._config)
                self._catalog = IcebergCatalog(properties)
            return self._catalog

    def read(
        self,
        spec: TableSpec,
        where: str | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        as_of: int | None = None,
    ) -> pa.RecordBatchReader:
        """Return the live rows: the newest version of each key; arguments as of ``Cluster.read``.

        Raises:
            RequestError: the condition or a column does not fit the table, which may have none, ``as_of`` is before the
                last fold or before rows expired that are removed, or this cluster keeps no tables.
            ForeignMaintenanceError: the catalog has lost the table.
        """
        _check_columns(spec)
        catalog = self.catalog
        if not self._check(spec) or as_of is not None:
            _check_asked(columns, limit, as_of)
            if as_of is not None and not spec.key and as_of < (since := earliest(catalog, self._ledger, spec) or 0):
                raise RequestError(
                    f"rows of {spec.name} that have expired by now are removed, so it cannot be read as of {as_of}",
                    f"Read as of {since} or later (microseconds since 1970)",
                )
            return read(catalog, spec, where, columns, limit, as_of)
        with self._lock:
            kept = self._kept = self._kept or KeptReads(catalog)
        _check_asked(columns, limit)
        try:
            connection, rows = kept.latest(spec)
        except duckdb.Error as error:
            refuse_unreadable(error)
            raise
        query = f"with latest as ({rows}) {_query(spec, where, columns, limit)}"
        return query_result(connection, query)

    def sql(self, query: str, specs: Sequence[TableSpec]) -> pa.RecordBatchReader:
        """Run a DuckDB query over the tables ``specs``, named ``ops.flights`` or ``ops.flights__latest``.

        Tables of the namespace ``default`` are named without it: ``default`` is a keyword of SQL. Tables in ``system``,
        ``temp`` and ``memory`` are named ``walship.system.…``. Those in DuckDB's own ``information_schema`` and
        ``pg_catalog`` can only be read with ``read``.

        Raises:
            RequestError: DuckDB refuses the query.
            ForeignMaintenanceError: as ``read``.
        """
        if _SHOW_TABLES.fullmatch(query):
            return pa.table({"name": [spec.name for spec in specs]}).to_reader()
        connection = open_named()
        try:
            for spec in named_in(query, specs):
                self._check(spec)
                attach_latest(connection, self.catalog, spec, spec.name)
                name_view(connection, spec)
            confine(connection, self.catalog.warehouse)
            return query_result(connection, query)
        except BaseException as error:
            connection.close()
            refuse_unreadable(error)
            raise

    def _check(self, spec: TableSpec) -> bool:
        """Whether the table's Iceberg tables exist."""
        exists = self.catalog.has(spec)
        if not (exists and spec.uuid in self._with_rows) and has_rows(self.catalog, self._ledger, spec):
            self._with_rows.add(spec.uuid)
        if not self._config.replay.enabled and not exists:
            raise RequestError(
                f"{self._ledger.cluster.name} keeps no rows of {spec.name}: [replay] enabled is false here",
                "Read it on a cluster or host that keeps tables",
            )
        return exists

    def close(self) -> None:
        """Close the catalog."""
        with self._lock:
            if self._kept is not None:
                self._kept.close()
            self._kept = None
            if self._catalog is not None:
                self._catalog.close()
            self._catalog = None


def open_named() -> duckdb.DuckDBPyConnection:
    """Open a DuckDB in which ``name_view`` gives tables their names."""
    connection = open_duckdb()
    home = f"walship.{DUCKDB.name(DEFAULT_NAMESPACE)}"
    connection.execute(f"attach ':memory:' as walship; create schema {home}; use {home}")  # as in Spark
    return connection


def name_view(connection: duckdb.DuckDBPyConnection, spec: TableSpec) -> None:
    """Give a view that was attached under a table's full name the names that ``Reader.sql`` documents."""
    namespace, _, name = spec.name.partition(".")
    schema = f"walship.{DUCKDB.name(namespace)}"
    with suppress(duckdb.CatalogException):  # information_schema and pg_catalog are DuckDB's own
        connection.execute(f"create schema if not exists {schema}")
        for shown in (name, name + LATEST):
            target = f"{schema}.{DUCKDB.name(shown)}"
            connection.execute(f"create or replace view {target} as select * from {DUCKDB.name(spec.name)}")


def named_in(query: str, specs: Sequence[TableSpec]) -> list[TableSpec]:
    """Return the tables whose names are in a query; all that have columns when the query has no such name.

    Raises:
        RequestError: one that it names has no columns.
    """
    words = {word.removesuffix(LATEST) for word in re.findall(r"\w+", query.casefold())}
    found = [spec for spec in specs if spec.name.rpartition(".")[2].casefold() in words]
    for spec in found:
        _check_columns(spec)
    return found or [spec for spec in specs if spec.columns]


def _check_columns(spec: TableSpec) -> None:
    if not spec.columns:
        raise RequestError(
            f"{spec.name} has no columns: its last ones were dropped on two clusters at once",
            f"Add one: walship altertable {spec.name} --add 'NAME TYPE'",
        )


def read(
    catalog: Catalog,
    spec: TableSpec,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
    as_of: int | None = None,
) -> pa.RecordBatchReader:
    """Return the live rows of a table in any catalog, as ``Reader.read`` does."""
    _check_asked(columns, limit, as_of)
    connection = open_duckdb()
    try:
        attach_latest(connection, catalog, spec, "latest", as_of=as_of)
        return query_result(connection, _query(spec, where, columns, limit))
    except BaseException as error:
        connection.close()
        refuse_unreadable(error)
        raise


def _check_asked(columns: Sequence[str] | None, limit: int | None, as_of: int | None = None) -> None:
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns or ()):
        raise RequestError(f"columns={columns!r} is not a list of names", "Give names, for instance ['id', 'name']")
    if limit is not None and not (isinstance(limit, SupportsIndex) and 0 <= int(limit) <= _ROWS_MAX):
        raise RequestError(f"limit={limit!r} is not a number of rows", "Give a whole number, 0 or more")
    if as_of is not None and not isinstance(as_of, SupportsIndex):
        raise RequestError(f"as_of={as_of!r} is not a commit time", "Give microseconds since 1970, a whole number")


def _query(spec: TableSpec, where: str | None, columns: Sequence[str] | None, limit: int | None) -> str:
    wanted = ", ".join(map(DUCKDB.name, columns if columns is not None else [c.name for c in spec.columns]))
    query = f"select {wanted} from latest"
    query += f" where {where}\n" if where else ""  # a condition may end with a comment
    return query + (f" limit {int(limit)}" if limit is not None else "")


def query_result(connection: duckdb.DuckDBPyConnection, query: str | duckdb.Statement) -> pa.RecordBatchReader:
    """The rows of one query, or of a statement of any kind, in pieces; or RequestError with DuckDB's message."""
    statement = one_query(connection, query) if isinstance(query, str) else query
    try:
        with _ended_if_left(connection):
            rows = _stoppable(connection, lambda: arrow_batches(fit_for_arrow(connection.sql(statement))))
            return pa.RecordBatchReader.from_batches(rows.schema, _batches(connection, rows))
    except duckdb.Error as error:
        refuse_unreadable(error)
        raise refusal(error) from None


def _stoppable(connection: duckdb.DuckDBPyConnection, work: Callable[[], T]) -> T:
    """Do work of DuckDB's beside the main thread, so that Ctrl-C stops it at once: DuckDB itself looks only rarely."""
    if threading.current_thread() is not threading.main_thread():  # it gets no signals
        return work()
    with ThreadPoolExecutor(1, "query") as beside:
        try:
            return beside.submit(work).result()
        except KeyboardInterrupt:
            ended = beside.submit(lambda: None)  # begins once the work has ended
            while not wait([ended], 0.05).done:  # DuckDB forgets what comes before its query begins
                connection.interrupt()
            raise


@contextmanager
def _ended_if_left(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """End the query if its rows are not all read; else who drops them waits until DuckDB has run all of it."""
    try:
        yield
    except BaseException:
        with suppress(duckdb.ConnectionException):  # it is closed
            connection.interrupt()
        raise


def _batches(connection: duckdb.DuckDBPyConnection, rows: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    try:
        with _ended_if_left(connection):
            while (batch := _stoppable(connection, lambda: next(rows, None))) is not None:
                yield batch
    except OSError as error:  # damage, or a value that the query refuses, after the first rows
        refuse_unreadable(error)
        if error.errno is not None:
            raise
        raise refusal(error) from None
