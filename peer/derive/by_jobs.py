"""Compares a large table by a job of replay's application: Spark joins both tables, and executors call the hook."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from peer.derive.compare import GONE, UPSERTS, Pair, RowChanges, find_changes
from peer.derive.hooks import Hook, load
from peer.tables.by_jobs import chunks, is_large, rows_query, stored_bytes
from replication.config import Config
from replication.core.definition.schema import TableSpec
from replication.errors import HookError
from replication.tables.base import SPARK, Catalog, open_duckdb
from replication.tables.spark.queries import Query, ask


@dataclass(frozen=True)
class CompareRows:
    """Finds the mutations of keys, in executors.

    A row has the columns ``s0 …`` of the source and ``d0 …`` of the derived table for one key. ``in_source`` and
    ``in_derived`` are NULL where a table does not have the key.
    """

    pair: Pair
    hook: str
    version: str
    options: Mapping[str, str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
        """Yield rows of ``upserts`` and ``gone`` as Arrow streams, each after the name of its table and a space.

        Raises:
            HookError: the hook failed, or executors have another version of it, which may let other rows pass.
        """
        hook = load(self.hook, self.options)
        if hook.version != self.version:
            raise HookError(
                f"executors have version {hook.version} of hook {hook.name}, and not {self.version}",
                "Install its package in the same version for executors",
            )
        for rows in chunks(batches):
            with open_duckdb() as connection:
                connection.register("given", _side(rows, "s", "in_source", self.pair.source))
                connection.register("actual", _side(rows, "d", "in_derived", self.pair.derived))
                find_changes(connection, self.pair, hook)
                for name in (UPSERTS, GONE):
                    found = connection.table(name).to_arrow_table()
                    if found.num_rows:
                        yield name.encode() + b" " + _encoded(found)


def changes_by_job(
    connection: duckdb.DuckDBPyConnection,
    config: Config,
    catalog: Catalog,
    source: TableSpec,
    pair: Pair,
    hook: tuple[Hook, Mapping[str, str]],
) -> RowChanges | None:
    """Compare all rows of both tables; None when that is to be done here, as where replay does not run.

    ``connection`` gets the mutations as tables. The tables of ``pair`` have a key. Executors load ``hook`` anew.
    """
    if not (catalog.has(source) and catalog.fits(source)):
        return None
    has_derived = catalog.has(pair.spec)
    if has_derived and not catalog.fits(pair.spec):
        return None
    size = sum(stored_bytes(catalog, spec) for spec in (source, pair.spec)[: 1 + has_derived])
    if not is_large(config, size):
        return None
    sql = _numbered(rows_query(catalog, source), source, "s", "in_source")
    if has_derived:
        derived = _numbered(rows_query(catalog, pair.spec), pair.spec, "d", "in_derived")
        at = {column.name: n for n, column in enumerate(source.columns)}
        there = {column.name: n for n, column in enumerate(pair.spec.columns)}
        same = (f"s.s{at[mine]} = d.d{there[its]}" for mine, its in zip(source.key, pair.spec.key, strict=True))
        sql = f"select * from ({sql}) s full join ({derived}) d on {' and '.join(same)}"
    compare = CompareRows(pair, hook[0].name, hook[0].version, dict(hook[1]))
    found = _Found(connection, pair)
    if ask(config.run_dir, Query(sql, compare, size, f"derive: {pair.spec.name}"), found.take):
        return RowChanges.of(connection, pair)
    found.drop()
    return None


class _Found:
    """The tables of mutations in a connection, which are filled piece by piece."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, pair: Pair) -> None:
        self._connection = connection
        upserts = pair.derived.arrow.empty_table()
        self._shapes = {UPSERTS: upserts, GONE: upserts.select(list(pair.derived.key))}
        for table, shape in self._shapes.items():
            self._fill(f"create table {table} as", shape)

    def take(self, piece: bytes) -> None:
        name, _, content = piece.partition(b" ")
        table = name.decode()
        self._fill(f"insert into {table}", pa.ipc.open_stream(content).read_all().cast(self._shapes[table].schema))

    def drop(self) -> None:
        for table in self._shapes:
            self._connection.execute(f"drop table {table}")

    def _fill(self, into: str, rows: pa.Table) -> None:
        self._connection.register("piece", rows)
        self._connection.execute(f"{into} select * from piece")
        self._connection.unregister("piece")


def _numbered(query: str, spec: TableSpec, prefix: str, flag: str) -> str:
    names = ", ".join(f"{SPARK.name(column.name)} as {prefix}{n}" for n, column in enumerate(spec.columns))
    return f"select {names}, true as {flag} from ({query}) r"


def _side(rows: pa.Table, prefix: str, flag: str, spec: TableSpec) -> pa.Table:
    """The rows of one table, with its columns; ``rows`` lack them where there is no table yet."""
    schema = spec.arrow
    if flag not in rows.column_names:
        return schema.empty_table()
    there = rows.filter(rows.column(flag).is_valid())
    arrays = [there.column(f"{prefix}{n}").cast(column.type) for n, column in enumerate(spec.columns)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _encoded(rows: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return sink.getvalue()
