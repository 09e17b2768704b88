"""Hashing rows that are too wide for the memory of several threads."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from peer.verify.digest import Reading, limit_memory


def rows_hashed(folder: Path, rows: pa.Table, threads: int, memory_bytes: int, **written: int) -> int:
    """How many rows a digest has of a file that holds them as they are."""
    pq.write_table(rows, folder / "rows.parquet", compression=None, use_dictionary=False, **written)
    connection = duckdb.connect(config={"threads": threads})
    connection.execute(f"create view shown as from '{folder}/rows.parquet'")
    limit_memory(connection, folder / "spill", memory_bytes)
    reading = Reading(connection, "shown", ("k", "v"), ("k",))
    try:
        return reading.digest().rows
    finally:
        reading.close()


@pytest.mark.heavy
def test_wide_rows_are_hashed_by_one_thread_where_several_have_no_room(tmp_path: Path) -> None:
    rows = pa.table({"k": list(range(80_000)), "v": [os.urandom(1000) for _ in range(80_000)]})
    assert rows_hashed(tmp_path, rows, 2, 80 << 20, row_group_size=40_000) == 80_000


@pytest.mark.heavy
def test_rows_too_wide_for_the_memory_get_more(tmp_path: Path) -> None:
    rows = pa.table({"k": list(range(100)), "v": [os.urandom(1 << 20) for _ in range(100)]})
    assert rows_hashed(tmp_path, rows, 1, 64 << 20) == 100


def test_the_spill_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    with duckdb.connect(config={"threads": 1}) as connection:
        limit_memory(connection, tmp_path / "comparisons" / "1234", 32 << 20)
        connection.execute("create table wide as select md5(range::varchar) as v from range(2_000_000)")
        assert connection.execute("select max(v) from wide").fetchone() is not None
