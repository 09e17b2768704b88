"""Hashing rows that are too wide for several threads at once within the memory there is."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from peer.digest import Reading, bound


def test_wide_rows_are_hashed_by_one_thread_where_several_have_no_room(tmp_path: Path) -> None:
    rows = pa.table({"k": list(range(80_000)), "v": [os.urandom(1000) for _ in range(80_000)]})
    pq.write_table(rows, tmp_path / "wide.parquet", row_group_size=40_000, compression=None, use_dictionary=False)
    connection = duckdb.connect(config={"threads": 2})
    connection.execute(f"create view wide as from '{tmp_path}/wide.parquet'")
    bound(connection, tmp_path / "spill", 80 << 20)
    reading = Reading(connection, "wide", ("k", "v"), ("k",))
    try:
        assert reading.digest().rows == 80_000
    finally:
        reading.close()
