"""The Iceberg catalog through PyIceberg and DuckDB: create, inspect, open for reading. Needs neither Spark nor Java.

Loading a table takes about 2 ms here, and 70 to 140 ms through Spark's metadata tables. So commits read positions
here, too.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import duckdb
from pyiceberg.catalog import Catalog as PyCatalog
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.expressions.parser import parse as parse_filter
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from replication import log
from replication.config import Config
from replication.core.definition.schema import Column, TableSpec
from replication.error_text import one_line
from replication.errors import (
    CommitConflictError,
    ConfigError,
    CoordinationError,
    MissingFileError,
    SchemaError,
    UnknownTableError,
)
from replication.settings import sqlite_url
from replication.tables.base import SPARK, History, Snapshot
from replication.tables.catalog.shared_catalog import SCHEMA, make_schema, shared_catalog
from replication.tables.catalog.sql_lookup import SqlLookup
from replication.tables.duckdb.views import FilesOfTable, shown
from replication.tables.layout import CHANGES, LATEST, OWNER, SPEC, TOMBSTONES, Layout, landing_name, layouts
from replication.tables.partition import parse_partition, partition_name
from replication.tables.pyiceberg.damage import planned, refusing_unreadable
from replication.tables.pyiceberg.evolve import evolve, has_columns, note_columns, set_sort
from replication.tables.pyiceberg.scratch_tables import ScratchTables
from replication.tables.pyiceberg.tags import set_tag
from replication.tables.shared_duckdb import SharedDuckDB

CATALOG = "walship"
_SQL_CATALOG = "replication.tables.pyiceberg.ordered_catalog.OrderedCatalog"
_LOCAL_IO = "replication.tables.pyiceberg.local_io.LocalFileIO"
_log = log.get(__name__)


@dataclass(frozen=True, slots=True)
class CatalogProperties:
    """The settings of one catalog, for Spark and for PyIceberg."""

    spark: Mapping[str, str]
    pyiceberg: Mapping[str, str]


def catalog_properties(
    data_dir: Path,
    spark: Mapping[str, str] | None = None,
    pyiceberg: Mapping[str, str] | None = None,
    warehouse: str = "",
) -> CatalogProperties:
    """Return the configured catalog, or the default: ``catalog.db`` and files under ``warehouse/`` in ``data_dir``.

    Raises:
        ConfigError: only one of ``spark`` and ``pyiceberg`` is set.
    """
    if bool(spark) != bool(pyiceberg):
        raise ConfigError(
            "only one of [catalog.spark] and [catalog.pyiceberg] is set", "Set both to the same catalog, or neither"
        )
    if spark and pyiceberg:
        return CatalogProperties(dict(spark), dict(pyiceberg))
    database = data_dir / "catalog.db"
    warehouse = warehouse or f"file://{data_dir / 'warehouse'}"  # not escaped: Iceberg does not unescape it
    return CatalogProperties(
        {
            "type": "jdbc",
            "uri": f"jdbc:sqlite:{database}?busy_timeout=30000",
            "jdbc.schema-version": "V1",
            "warehouse": warehouse,
            "cache-enabled": "false",
        },
        {"type": "sql", "uri": f"{sqlite_url(database)}?timeout=30", "warehouse": warehouse},
    )


def configured_catalog(config: Config) -> CatalogProperties:
    """Return the configured catalog, or the default one beside the ledger.

    Raises:
        ConfigError: only one of [catalog.spark] and [catalog.pyiceberg] is set, or the ledger's address has no host.
    """
    section = config.catalog
    if section.spark or section.pyiceberg or not config.shares_ledger:
        return catalog_properties(config.data_dir, section.spark, section.pyiceberg, section.warehouse)
    spark, pyiceberg = shared_catalog(config.ledger_url, config.warehouse)
    return CatalogProperties(spark, pyiceberg)


class IcebergCatalog:
    """An Iceberg catalog: reads and creates tables."""

    def __init__(self, properties: CatalogProperties) -> None:
        self.properties = properties
        url = properties.pyiceberg.get("uri", "")
        if f"search_path%3D{SCHEMA}" in url:
            make_schema(url, lambda: load_catalog(CATALOG, **properties.pyiceberg).close())
        if url.startswith("sqlite:///"):
            _prepare_sqlite(Path(make_url(url).database or ""))
        durable = _with_local_io(properties.pyiceberg)
        self._duckdb = SharedDuckDB()
        self._opening = threading.Lock()
        self._opened: PyCatalog | None = None
        self._lookup = SqlLookup(CATALOG, durable) if SqlLookup.serves(durable) else None

    @property
    def warehouse(self) -> str:
        """Where the tables' files are; "" when the configured catalog does not say."""
        return self.properties.pyiceberg.get("warehouse", "")

    @property
    def _catalog(self) -> PyCatalog:
        """PyIceberg's catalog, opened when first used. Reads do not use it when there is a lookup."""
        with self._opening:
            if self._opened is None:
                self._opened = _open(_with_local_io(self.properties.pyiceberg))
            return self._opened

    def create(self, spec: TableSpec, was_dropped: Callable[[UUID], bool] = lambda table: False) -> None:
        self._make_namespace(spec.name.split(".")[0])
        self._rename_dropped(spec, was_dropped)
        for layout in reversed(layouts(spec)):  # the one of ``landing_name`` comes last: then all exist
            if not self.exists(layout.name):
                try:
                    self._make(layout)
                    continue
                except (TableAlreadyExistsError, CommitFailedException):  # another process has just created it
                    if not self.exists(layout.name):
                        raise
            if evolve(self.load(layout.name), layout):
                _log.info("table_evolved", table=layout.name)

    def fits(self, spec: TableSpec) -> bool:
        try:
            return all(has_columns(self.load(layout.name).metadata, layout) for layout in layouts(spec))
        except UnknownTableError:
            return False

    def has(self, spec: TableSpec) -> bool:
        try:
            return self._owner(landing_name(spec)) in (None, spec.uuid)
        except UnknownTableError:
            return False

    def _owner(self, name: str) -> UUID | None:
        """Return the uuid of the walship table that an Iceberg table belongs to."""
        owner = self.load_for_reading(name).metadata.properties.get(OWNER)
        return None if owner is None else UUID(owner)

    def _rename_dropped(self, spec: TableSpec, was_dropped: Callable[[UUID], bool]) -> None:
        for name in (spec.name, spec.name + CHANGES, spec.name + TOMBSTONES):
            owner = self._owner(name) if self.exists(name) else None
            if owner in (None, spec.uuid):
                continue
            if not was_dropped(owner):
                raise SchemaError(
                    f"the Iceberg table {name} belongs to another table, {owner}",
                    "Give each cluster its own catalog, or rename the Iceberg table (ALTER TABLE … RENAME TO …)",
                )
            renamed = f"{name}__dropped_{owner.hex[:8]}"
            self._catalog.rename_table(name, renamed)
            _log.warning("dropped_table_renamed", table=name, renamed=renamed)

    def _make_namespace(self, namespace: str) -> None:
        try:
            self._catalog.create_namespace(namespace)
        except NamespaceAlreadyExistsError:
            return
        except Exception:  # another process created it at the same time; the error differs by catalog
            if not self._catalog.namespace_exists(namespace):
                raise

    def close(self) -> None:
        """Close the connections to the catalog's database."""
        with self._opening:
            if self._opened is not None:
                self._opened.close()
            self._opened = None
        if self._lookup is not None:
            self._lookup.close()
        self._duckdb.close()

    def exists(self, name: str) -> bool:
        try:
            self.load_for_reading(name)
        except UnknownTableError:
            return False
        return True

    def specs(self) -> list[TableSpec]:
        found = {}
        for namespace in self._catalog.list_namespaces():
            for identifier in self._catalog.list_tables(namespace):
                name = ".".join(identifier)
                text = self.load(name).metadata.properties.get(SPEC)
                spec = None if text is None else TableSpec.from_json(text)
                if spec is not None and name in {layout.name for layout in layouts(spec)}:  # not a dropped one
                    found[spec.name] = spec
        return [found[name] for name in sorted(found)]

    def history(self, name: str) -> History:
        return history_of(self.load_for_reading(name).metadata)

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
        self.source(name, snapshot=snapshot, where=where, columns=columns)(connection, view)

    def source(
        self, name: str, *, snapshot: int | None = None, where: str = "", columns: Sequence[Column] | None = None
    ) -> FilesOfTable:
        table = self.load_for_reading(name)
        return FilesOfTable(self.warehouse, shown(table, columns), _planned(table, where, snapshot))

    @contextmanager
    def scratch_duckdb(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with refusing_unreadable(), self._duckdb.database() as connection:
            yield connection

    def may_have(self, name: str, where: str) -> bool:
        return bool(_planned(self.load_for_reading(name), where))

    def near(self, name: str) -> str:
        return SPARK.name(name.partition(".")[2])

    def show(self, spec: TableSpec, query: str) -> None:
        from replication.tables.catalog.sql_views import put_view

        table = self.load(spec.name)
        there = {field.name: field for field in table.schema().fields}
        if missing := [column.name for column in spec.columns if column.name not in there]:
            raise CommitConflictError(f"{spec.name} has no column {missing[0]} yet, or no longer")
        columns = [there[column.name] for column in spec.columns]
        put_view(self._catalog, spec.name + LATEST, table.location() + LATEST, columns, query)

    def tag(self, name: str, tag: str, snapshot: int | None) -> None:
        """As ``base.Tables.tag`` and, with None, ``untag``; without an engine."""
        set_tag(lambda: self.load(name), tag, snapshot)

    def scratch(self, namespace: str) -> ScratchTables:
        """The scratch tables of a namespace, which need not exist."""
        return ScratchTables(self._catalog, namespace)

    def drop_scratch(self, prefix: str, kept: Container[str]) -> list[str]:
        there = [name for name, *_ in self._catalog.list_namespaces() if name.startswith(prefix)]
        found = [name for name in there if name not in kept]
        for namespace in found:
            self.scratch(namespace).drop()
        return found

    def load(self, name: str) -> Table:
        """Load a table to commit to.

        Raises:
            UnknownTableError: it does not exist.
            CoordinationError: the catalog's database cannot be read.
        """
        return _loaded(name, self._load)

    def load_for_reading(self, name: str) -> Table:
        """Load a table to read only. Raises as ``load``."""
        return _loaded(name, self._load if self._lookup is None else self._lookup.load)

    def _load(self, name: str) -> Table:
        return self._catalog.load_table(name)

    def _make(self, layout: Layout) -> None:
        with self._catalog.create_table_transaction(
            layout.name, layout.schema, properties=dict(layout.properties)
        ) as transaction:
            if layout.partition:
                with transaction.update_spec() as partition:
                    for text in layout.partition:
                        column, transform = parse_partition(text)
                        partition.add_field(column, transform, partition_name(column, transform))
            if layout.sort:
                set_sort(transaction, layout)
            note_columns(transaction, layout)


def history_of(metadata: TableMetadata) -> History:
    """Return the snapshots and tags in a table's metadata."""
    tags = {tag: ref.snapshot_id for tag, ref in metadata.refs.items() if ref.snapshot_ref_type.value == "tag"}
    current = metadata.current_snapshot_id
    return History(None if current in (None, -1) else current, _Snapshots(metadata), tags)


class _Snapshots(Mapping[int, Snapshot]):
    """Snapshots by id, each built on access: most readers need only the newest."""

    def __init__(self, metadata: TableMetadata) -> None:
        self._by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}

    def __getitem__(self, number: int) -> Snapshot:
        snapshot = self._by_id[number]
        return Snapshot(
            snapshot.snapshot_id,
            snapshot.parent_snapshot_id,
            snapshot.summary.operation.value if snapshot.summary else "",
            dict(snapshot.summary.additional_properties) if snapshot.summary else {},
            snapshot.timestamp_ms * 1000,
        )

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)


def _loaded(name: str, load: Callable[[str], Table]) -> Table:
    try:
        with suppress(FileNotFoundError):  # a commit removed the metadata file after the lookup; load again
            return load(name)
        return load(name)
    except NoSuchTableError:
        raise UnknownTableError(f"there is no Iceberg table {name}", "Replay creates it with the first rows") from None
    except FileNotFoundError as error:
        raise MissingFileError(
            f"the metadata file {error.filename} of {name} is missing",
            "If the data directory was moved, move it back or link it: tables have the full paths of their files",
        ) from None
    except DBAPIError as error:
        hint = "Check that it runs and can be reached. Restore a damaged catalog from a backup"
        raise CoordinationError(
            f"the catalog's database cannot be read: {one_line(error.orig or error)}", hint
        ) from error


def _open(properties: Mapping[str, str]) -> PyCatalog:
    from replication.tables.pyiceberg.patches import patch_pyiceberg

    patch_pyiceberg()
    if properties.get("type") != "sql":
        return load_catalog(CATALOG, **properties)
    others = {name: value for name, value in properties.items() if name != "type"}
    return load_catalog(CATALOG, **others, **{"py-catalog-impl": _SQL_CATALOG})


def _with_local_io(properties: Mapping[str, str]) -> Mapping[str, str]:
    """Add file I/O that syncs files (``local_io.py``), if the warehouse is on this host."""
    if "py-io-impl" in properties or not properties.get("warehouse", "").startswith("file:"):
        return properties
    return {**properties, "py-io-impl": _LOCAL_IO}


def _planned(table: Table, where: str, snapshot: int | None = None) -> list[FileScanTask]:
    if table.metadata.current_snapshot_id in (None, -1):
        return []
    return planned(table, parse_filter(where) if where else AlwaysTrue(), snapshot)


def _prepare_sqlite(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, timeout=30)) as connection:
            connection.execute("pragma journal_mode=wal")  # persistent; readers do not wait for commits
    except (OSError, sqlite3.DatabaseError) as error:
        hint = "Check that its disk is writable and not full. Restore a damaged catalog from a backup"
        raise CoordinationError(f"the catalog {path} cannot be opened: {error}", hint) from error
