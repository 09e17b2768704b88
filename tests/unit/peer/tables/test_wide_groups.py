"""The merge of a table's locality groups when they have many columns."""

from __future__ import annotations

import pyarrow as pa

from peer.tables.latest import Folded, MergeQuery
from replication.core.definition.define import typed_table
from replication.tables.base import DUCKDB, open_duckdb
from replication.tables.layout import VERSION
from tests.tables_made import uuids

WIDTH = 150


def test_groups_are_merged_without_a_filter_for_each_column_which_duckdb_gives_a_copy_of_all_columns() -> None:
    left, right = ([f"{side}{n}" for n in range(WIDTH)] for side in ("l", "r"))
    schema = pa.schema([("k", pa.int64()), *((name, pa.int64()) for name in (*left, *right))])
    spec = typed_table("ops.wide", schema, ["k"], uuids=uuids(), groups={"left": left, "right": right})

    def version(key: int, group: str, **values: int) -> dict[str, object]:
        return {"k": key, "_group": group, "_op": 0, **dict.fromkeys(VERSION, key), **values}

    versions = [version(1, "left", l0=10, r0=-1), version(1, "right", r0=20, l0=-1), version(2, "right", r1=30)]
    names = ["k", "_group", "_op", *VERSION, *left, *right]
    with open_duckdb() as connection:
        merged = pa.table({name: [row.get(name) for row in versions] for name in names})
        connection.register("merged", merged)
        query = MergeQuery(spec, DUCKDB, "changes", "rows", "tombstones", Folded(), None).rows("merged")
        found = connection.sql(f"select k, l0, r0, r1, _commit_left from ({query}) order by k").fetchall()
    assert found == [(1, 10, 20, None, 1), (2, None, None, 30, None)]
    assert "filter (" not in query, "800 columns took 61 seconds and 2.8 GB"
