"""The hashes of a large table by a job of replay's application: Spark merges its rows, and executors hash them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from peer.tables.latest import Folded, MergeQuery
from peer.tables.read import base_of
from peer.verify.digest import Reading, among, decode_buckets, encode_buckets, sum_of
from replication.config import Config
from replication.core.definition.aging import horizon
from replication.core.definition.schema import TableSpec
from replication.tables.base import SPARK, Catalog, History, open_duckdb
from replication.tables.catalog.catalog import CATALOG
from replication.tables.layout import CHANGES, TOMBSTONES
from replication.tables.spark.queries import Query, ask

# By jobs the demo compared 7 MiB in 50 s on two cores, and without them in 12.
_TIMES_A_ROUND = 256
_CHUNK_ROWS, _CHUNK_BYTES = 262_144, 64 << 20


@dataclass(frozen=True)
class HashRows:
    """Makes buckets of rows, in executors.

    ``columns`` has for each column to compare its name in the rows, None if they lack it, its name and its type.
    """

    columns: tuple[tuple[str | None, str, pa.DataType], ...]
    key: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
        """Yield the buckets of all rows."""
        yield encode_buckets(sum_of(self._hashed(rows) for rows in _chunks(batches)))

    def _hashed(self, rows: pa.Table) -> dict[int, tuple[int, int]]:
        arrays = [
            pa.nulls(rows.num_rows, kind) if there is None else rows.column(there).cast(kind)
            for there, _, kind in self.columns
        ]
        names = [name for _, name, _ in self.columns]
        with closing(open_duckdb()) as connection:
            connection.register("rows", pa.Table.from_arrays(arrays, names))
            return Reading(connection, "rows", names, self.key).buckets()


def _chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _CHUNK_ROWS or size >= _CHUNK_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def buckets_by_job(
    config: Config, catalog: Catalog, found: TableSpec, compared: TableSpec, groups: Sequence[str], as_of: int
) -> dict[int, tuple[int, int]] | None:
    """Return a table's buckets; None when they are to be computed here, as where replay does not run.

    Args:
        config: of the cluster.
        catalog: where the table is.
        found: the table as it is defined here.
        compared: the same table, with the columns to compare.
        groups: only rows that have a live version in one of these groups count.
        as_of: read as of that commit time, in microseconds since 1970.

    Raises:
        RequestError: ``as_of`` lies before the last fold.
    """
    if not catalog.has(found) or not catalog.fits(found):
        return None
    table = catalog.history(found.name)
    changes = catalog.history(found.name + CHANGES) if found.key else table
    size = _bytes(table) + (_bytes(changes) if found.key else 0)
    if size <= _TIMES_A_ROUND * config.replay.driver_bytes_max:
        return None
    sql = _query(catalog, found, table, changes, as_of)
    if where := among(compared, groups, SPARK):
        sql = f"select * from ({sql}) r where {where}"
    names = {column.uuid: column.name for column in found.columns}
    columns = tuple((names.get(column.uuid), column.name, column.type) for column in compared.columns)
    made = ask(config.run_dir, Query(sql, HashRows(columns, tuple(compared.key)), size, f"verify: {found.name}"))
    return None if made is None else sum_of(map(decode_buckets, made))


def _query(catalog: Catalog, spec: TableSpec, table: History, changes: History, as_of: int) -> str:
    """The rows as of a commit time, from the snapshots that are the newest now."""
    young = horizon(spec, as_of)
    if not spec.key:
        return MergeQuery(spec, SPARK, "", _at(spec.name, table.current), "", Folded(), young).latest(upto=as_of)
    folded, base = base_of(table, spec, as_of)
    tombstones = catalog.history(spec.name + TOMBSTONES).current
    landed, deleted = _at(spec.name + CHANGES, changes.current), _at(spec.name + TOMBSTONES, tombstones)
    merge = MergeQuery(spec, SPARK, landed, _at(spec.name, base), deleted, folded, young)
    late = catalog.may_have(spec.name + CHANGES, merge.came_late)
    return merge.latest(upto=as_of, versions=True, late=late)


def _at(name: str, snapshot: int | None) -> str:
    ref = ".".join(SPARK.name(part) for part in (CATALOG, *name.split(".")))
    return (
        f"(select * from {ref} where false)" if snapshot is None else f"(select * from {ref} version as of {snapshot})"
    )


def _bytes(history: History) -> int:
    newest = history.snapshots.get(history.current or 0)
    return int(newest.summary.get("total-files-size", 0)) if newest is not None else 0
