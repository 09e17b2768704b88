"""The hashes of a large table by a job of replay's application: Spark merges its rows, and executors hash them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from peer.tables.by_jobs import chunks, is_large, rows_query, stored_bytes
from peer.verify.digest import Reading, decode_buckets, encode_buckets, in_groups, sum_of
from replication.config import Config
from replication.core.definition.schema import TableSpec
from replication.tables.base import SPARK, Catalog, open_duckdb
from replication.tables.spark.queries import Query, ask


@dataclass(frozen=True)
class HashRows:
    """Makes buckets of rows, in executors.

    ``columns`` has for each column to compare its name in the rows, None if they lack it, its name and its type.
    """

    columns: tuple[tuple[str | None, str, pa.DataType], ...]
    key: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
        """Yield the buckets of all rows."""
        yield encode_buckets(sum_of(self._hashed(rows) for rows in chunks(batches)))

    def _hashed(self, rows: pa.Table) -> dict[int, tuple[int, int]]:
        arrays = [
            pa.nulls(rows.num_rows, kind) if there is None else rows.column(there).cast(kind)
            for there, _, kind in self.columns
        ]
        names = [name for _, name, _ in self.columns]
        with open_duckdb() as connection:
            connection.register("rows", pa.Table.from_arrays(arrays, names))
            return Reading(connection, "rows", names, self.key).buckets()


def buckets_by_job(
    config: Config, catalog: Catalog, found: TableSpec, compared: TableSpec, groups: Sequence[str], as_of: int
) -> dict[int, tuple[int, int]] | None:
    """Return a table's buckets; None when they are to be computed here, as where replay does not run.

    ``compared`` is the same table as ``found``, with the columns to compare. Only rows that have a live version in one
    of ``groups`` count, as of the commit time ``as_of``, in microseconds since 1970.

    Raises:
        RequestError: ``as_of`` lies before the last fold.
    """
    if not catalog.has(found) or not catalog.fits(found):
        return None
    size = stored_bytes(catalog, found)
    if not is_large(config, size):
        return None
    sql = rows_query(catalog, found, as_of)
    if where := in_groups(compared, groups, SPARK):
        sql = f"select * from ({sql}) r where {where}"
    names = {column.uuid: column.name for column in found.columns}
    columns = tuple((names.get(column.uuid), column.name, column.type) for column in compared.columns)
    made: list[bytes] = []
    query = Query(sql, HashRows(columns, tuple(compared.key)), size, f"verify: {found.name}")
    return sum_of(map(decode_buckets, made)) if ask(config.run_dir, query, made.append) else None
