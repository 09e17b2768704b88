"""The Iceberg catalog through PyIceberg and DuckDB: create, inspect, open for reading. Needs neither Spark nor Java.

Loading a table takes about 2 ms, against 70 to 140 ms for Spark's metadata tables, so commits read positions here
too.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import duckdb
import structlog
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

from replication.config import Config
from replication.core.definition.schema import Column, TableSpec
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
from replication.tables.duckdb.views import attach, shown
from replication.tables.layout import CHANGES, LATEST, OWNER, SPEC, TOMBSTONES, Layout, landing_name, layouts
from replication.tables.partition import parse_partition, partition_name
from replication.tables.pyiceberg.damage import planned
from replication.tables.pyiceberg.evolve import evolve, has_columns, note_columns, set_sort

CATALOG = "walship"
_SQL_CATALOG = "replication.tables.pyiceberg.ordered_catalog.OrderedCatalog"
_LOCAL_IO = "replication.tables.pyiceberg.local_io.LocalFileIO"
_log = structlog.get_logger(__name__)


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
    """What the configuration gives, or else JDBC on ``catalog.db`` and files under ``warehouse/`` in ``data_dir``.

    Raises:
        ConfigError: only one of the two is configured.
    """
    if bool(spark) != bool(pyiceberg):
        raise ConfigError(
            "only one of [catalog.spark] and [catalog.pyiceberg] is set", "Set both to the same catalog, or neither"
        )
    if spark and pyiceberg:
        return CatalogProperties(dict(spark), dict(pyiceberg))
    database = data_dir / "catalog.db"
    warehouse = warehouse or f"file://{data_dir / 'warehouse'}"  # not escaped: Iceberg takes it as it is written
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
    """The catalog that the configuration names, or else the default one beside the ledger.

    Raises:
        ConfigError: only one of [catalog.spark] and [catalog.pyiceberg] is configured, or none where hosts share it.
    """
    given = config.catalog
    if given.spark or given.pyiceberg or not config.shares_ledger:
        return catalog_properties(config.data_dir, given.spark, given.pyiceberg, given.warehouse)
    spark, pyiceberg = shared_catalog(config.ledger_url, config.warehouse)
    return CatalogProperties(spark, pyiceberg)


class IcebergCatalog:
    """An Iceberg catalog, for reading and for making tables."""

    def __init__(self, properties: CatalogProperties) -> None:
        self.properties = properties
        url = properties.pyiceberg.get("uri", "")
        if f"search_path%3D{SCHEMA}" in url:
            make_schema(url, lambda: load_catalog(CATALOG, **properties.pyiceberg).close())
        if url.startswith("sqlite:///"):
            _prepare_sqlite(Path(make_url(url).database or ""))
        given = _on_the_disk(properties.pyiceberg)
        self._opening = threading.Lock()
        self._opened: PyCatalog | None = None
        self._lookup = SqlLookup(CATALOG, given) if SqlLookup.serves(given) else None

    @property
    def _catalog(self) -> PyCatalog:
        """PyIceberg's; whoever only reads where there is a lookup never opens it."""
        with self._opening:
            if self._opened is None:
                self._opened = _open(_on_the_disk(self.properties.pyiceberg))
            return self._opened

    def create(self, spec: TableSpec, was_dropped: Callable[[UUID], bool] = lambda table: False) -> None:
        """See ``base.Catalog``."""
        self._make_namespace(spec.name.split(".")[0])
        self._skip_file(spec, was_dropped)
        for layout in reversed(layouts(spec)):  # <table> comes last: once it exists, all tables exist
            if not self.exists(layout.name):
                try:
                    self._make(layout)
                    continue
                except (TableAlreadyExistsError, CommitFailedException):  # another process made it just now
                    if not self.exists(layout.name):
                        raise
            if evolve(self.load(layout.name), layout):
                _log.info("table_evolved", table=layout.name)

    def fits(self, spec: TableSpec) -> bool:
        """See ``base.Catalog``."""
        try:
            return all(has_columns(self.load(layout.name).metadata, layout) for layout in layouts(spec))
        except UnknownTableError:
            return False

    def has(self, spec: TableSpec) -> bool:
        """See ``base.Catalog``."""
        return self.exists(landing_name(spec)) and self._owner(landing_name(spec)) in (None, spec.uuid)

    def _owner(self, name: str) -> UUID | None:
        """The table that an Iceberg table was made for."""
        owner = self._look(name).metadata.properties.get(OWNER)
        return None if owner is None else UUID(owner)

    def _skip_file(self, spec: TableSpec, was_dropped: Callable[[UUID], bool]) -> None:
        for name in (spec.name, spec.name + CHANGES, spec.name + TOMBSTONES):
            owner = self._owner(name) if self.exists(name) else None
            if owner in (None, spec.uuid):
                continue
            if not was_dropped(owner):
                raise SchemaError(
                    f"the Iceberg table {name} is another table's, {owner}",
                    "Two clusters may not share a catalog; or rename it there (ALTER TABLE … RENAME TO …)",
                )
            renamed = f"{name}__dropped_{owner.hex[:8]}"
            self._catalog.rename_table(name, renamed)
            _log.warning("dropped_table_renamed", table=name, renamed=renamed)

    def _make_namespace(self, namespace: str) -> None:
        try:
            self._catalog.create_namespace(namespace)
        except NamespaceAlreadyExistsError:
            return
        except Exception:  # two processes made it at once; each catalog's database reports that in its own words
            if not self._catalog.namespace_exists(namespace):
                raise

    def drop(self, spec: TableSpec) -> None:
        """See ``base.Catalog``."""
        from replication.tables.catalog.sql_views import drop_view, sql_catalog

        for layout in layouts(spec):
            if self.exists(layout.name):
                self._catalog.purge_table(layout.name)
        if (catalog := sql_catalog(self._catalog)) is not None:
            drop_view(catalog, spec.name + LATEST)

    def close(self) -> None:
        """Close the connections to the catalog's database."""
        with self._opening:
            if self._opened is not None:
                self._opened.close()
            self._opened = None
        if self._lookup is not None:
            self._lookup.close()

    def exists(self, name: str) -> bool:
        """See ``base.Catalog``."""
        try:
            self._look(name)
        except UnknownTableError:
            return False
        return True

    def specs(self) -> list[TableSpec]:
        """See ``base.Catalog``."""
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
        """See ``base.Catalog``."""
        metadata = self._look(name).metadata
        tags = {tag: ref.snapshot_id for tag, ref in metadata.refs.items() if ref.snapshot_ref_type.value == "tag"}
        current = metadata.current_snapshot_id
        return History(None if current in (None, -1) else current, _Snapshots(metadata), tags)

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
        """See ``base.Catalog``."""
        table = self._look(name)
        attach(connection, view, shown(table, columns), _planned(table, where, snapshot))

    def may_have(self, name: str, where: str) -> bool:
        """See ``base.Catalog``."""
        return bool(_planned(self._look(name), where))

    def near(self, name: str) -> str:
        """See ``base.Catalog``."""
        return SPARK.name(name.partition(".")[2])

    def show(self, spec: TableSpec, query: str) -> None:
        """See ``base.Catalog``."""
        from replication.tables.catalog.sql_views import put_view, sql_catalog

        table = self.load(spec.name)
        there = {field.name: field for field in table.schema().fields}
        if missing := [column.name for column in spec.columns if column.name not in there]:
            raise CommitConflictError(f"{spec.name} has no column {missing[0]} yet, or no longer")
        if (catalog := sql_catalog(self._catalog)) is not None:
            columns = [there[column.name] for column in spec.columns]
            put_view(catalog, spec.name + LATEST, table.location() + LATEST, columns, query)

    def load(self, name: str) -> Table:
        """As PyIceberg has it now; UnknownTableError when it is not there."""
        return _found(name, self._catalog.load_table)

    def _look(self, name: str) -> Table:
        """The same, to read only."""
        return _found(name, self._catalog.load_table if self._lookup is None else self._lookup.load)

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


class _Snapshots(Mapping[int, Snapshot]):
    """By id, each built when it is read: most readers want the newest only."""

    def __init__(self, metadata: TableMetadata) -> None:
        self._found = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}

    def __getitem__(self, number: int) -> Snapshot:
        found = self._found[number]
        return Snapshot(
            found.snapshot_id,
            found.parent_snapshot_id,
            found.sequence_number or 0,
            found.summary.operation.value if found.summary else "",
            dict(found.summary.additional_properties) if found.summary else {},
            found.timestamp_ms * 1000,
        )

    def __iter__(self) -> Iterator[int]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def _found(name: str, load: Callable[[str], Table]) -> Table:
    try:
        with suppress(FileNotFoundError):  # superseded, and removed, between the look-up and the opening
            return load(name)
        return load(name)
    except NoSuchTableError:
        raise UnknownTableError(
            f"there is no Iceberg table {name}", "It appears with its first replayed rows"
        ) from None
    except FileNotFoundError as error:
        raise MissingFileError(
            f"{name} has no metadata file {error.filename} any more",
            "Was the data directory moved or copied? Its tables name their files in full: move it back, or link it",
        ) from None


def _open(properties: Mapping[str, str]) -> PyCatalog:
    from replication.tables.pyiceberg.patches import patch_pyiceberg

    patch_pyiceberg()
    if properties.get("type") != "sql":
        return load_catalog(CATALOG, **properties)
    others = {name: value for name, value in properties.items() if name != "type"}
    return load_catalog(CATALOG, **others, **{"py-catalog-impl": _SQL_CATALOG})


def _on_the_disk(properties: Mapping[str, str]) -> Mapping[str, str]:
    """With files that are synced when they are closed, where the warehouse is on this host; see ``local_io.py``."""
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
            connection.execute("pragma journal_mode=wal")  # stays in the file: readers never wait for a commit
    except (OSError, sqlite3.DatabaseError) as error:
        hint = "Check that its disk is writable and not full. Restore a damaged catalog from a backup"
        raise CoordinationError(f"the catalog {path} cannot be opened: {error}", hint) from error
