"""The live rows of a small table, and the places of those that match a condition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import duckdb
import pyarrow as pa
from pyiceberg.table import Table

from replication.tables.duckdb.key_index import PLACES
from replication.tables.duckdb.views import attach, shown
from replication.tables.pyiceberg.damage import refusing_unreadable
from replication.tables.shared_duckdb import scratch_duckdb

_BATCH_ROWS = 2_048


def live_rows(table: Table) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the current snapshot, with all its columns, in batches of a few thousand."""
    with _attached(table) as connection:
        yield from connection.sql("select * exclude (_file, _pos) from live").to_arrow_reader(_BATCH_ROWS)


def places_where(table: Table, where: str) -> pa.Table:
    """Return the places of the rows that match a condition: ``file_path`` and ``pos``, sorted by both."""
    with _attached(table) as connection:
        found = f"select _file as file_path, _pos as pos from live where {where} order by 1, 2"
        return connection.sql(found).to_arrow_table().cast(PLACES)


@contextmanager
def _attached(table: Table) -> Iterator[duckdb.DuckDBPyConnection]:
    with refusing_unreadable(), scratch_duckdb() as connection:
        attach(connection, "live", shown(table, None), list(table.scan().plan_files()))
        yield connection
