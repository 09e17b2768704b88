"""Names and values from users and other clusters reach SQL text quoted, whatever they hold. (issue 23, attack 2)"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from peer.tables.latest import group_of_family
from replication.core.definition.define import cell_table
from replication.core.definition.schema import Group
from replication.tables.base import DUCKDB, SPARK
from replication.tables.duckdb.views import Shown, attach, duckdb_type_of

HOSTILE = ["x'; create table stolen as select 1; --", "x' || (select 1) || '", "\\", "\\'", 'a"b', "'", "''", "é\n"]


@pytest.mark.parametrize("value", HOSTILE)
def test_a_value_is_one_literal_in_duckdb(value: str) -> None:
    assert duckdb.sql(f"select {DUCKDB.text(value)}").fetchall() == [(value,)]
    assert duckdb.sql(f"select 1 as {DUCKDB.name(value)}").columns == [value]


def test_spark_escapes_with_backslashes() -> None:
    assert SPARK.text("a'b\\c") == "'a\\'b\\\\c'"


@pytest.mark.parametrize("value", HOSTILE)
def test_families_and_groups_of_cells_are_values_of_a_case(value: str) -> None:
    spec = replace(
        cell_table("t.cells", uuids=iter(uuid4, None)), groups=(Group("default", ()), Group(value, (value,)))
    )
    with duckdb.connect() as connection:
        query = f"select {group_of_family(spec, DUCKDB)} from (select $1 as family)"
        assert connection.execute(query, [value]).fetchall() == [(value,)]
        assert connection.execute(query, ["other"]).fetchall() == [("default",)]
        assert connection.execute("select count(*) from duckdb_tables()").fetchall() == [(0,)]


@pytest.mark.parametrize("value", HOSTILE)
def test_fields_of_a_struct_are_names_in_a_view(tmp_path: Path, value: str) -> None:
    kind = pa.struct([(value, pa.int64())])
    column = Shown(7, value, duckdb_type_of(kind))
    with duckdb.connect() as connection:
        attach(connection, value, [column], ())
        assert connection.sql(f"select * from {DUCKDB.name(value)}").columns == [value, "_file", "_pos"]
        file = tmp_path / "data.parquet"
        field = pa.field("c", kind, metadata={"PARQUET:field_id": "7"})
        pq.write_table(pa.table([pa.array([{value: 5}], kind)], schema=pa.schema([field])), file)
        read = f"7: {{name: 'c7', type: {DUCKDB.text(column.type)}, default_value: NULL}}"
        found = connection.execute(f"select c7 from read_parquet('{file}', schema=MAP{{{read}}})").fetchall()
        assert found == [({value: 5},)] or found == [({value: None},)]
