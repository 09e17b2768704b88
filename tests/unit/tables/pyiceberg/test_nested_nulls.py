"""NULL and empty lists and maps are two things, in data files too, however deep and however the rows are cut."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids, schema_to_pyarrow
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from replication.core.definition.text import parse_schema
from replication.tables.pyiceberg.write import write_data_files

ONE = {"a": 1, "b": "x"}


def table(where: Path, kind: str) -> tuple[TableMetadata, pa.Schema]:
    """A table of one column, and how its rows are given."""
    fresh = assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(parse_schema(f"v {kind}")))
    metadata = new_table_metadata(fresh, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, str(where))
    return metadata, schema_to_pyarrow(metadata.schema(), include_field_ids=False)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("list<struct<a: int, b: string>>", [None, [], [None], [ONE, ONE], None, [ONE]]),
        ("map<string, struct<a: int, b: string>>", [None, [], [("k", None)], [("k", ONE), ("l", ONE)], None]),
        ("list<list<struct<a: int, b: string>>>", [None, [], [None, [], [ONE]], None, [[ONE, None]]]),
        ("map<int, list<struct<a: int, b: string>>>", [None, [], [(1, None), (2, []), (3, [ONE])]]),
        ("list<struct<c: list<struct<a: int, b: string>>>>", [None, [{"c": None}, {"c": []}], [{"c": [ONE]}, None]]),
        ("struct<c: map<int, struct<a: int, b: string>>>", [None, {"c": None}, {"c": []}, {"c": [(1, ONE)]}]),
    ],
)
def test_nulls_stay(tmp_path: Path, kind: str, values: list[object]) -> None:
    metadata, schema = table(tmp_path, kind)
    whole = pa.record_batch([pa.array(values, schema.field(0).type)], schema=schema)
    pieces = [whole.slice(0, 1), whole.slice(1, 2), whole.slice(3)]
    (file,) = write_data_files(metadata, {}, pieces)
    kept = pq.read_table(file.file_path.removeprefix("file://"))
    assert kept.column("v").to_pylist() == values


def test_what_lies_beneath_a_null_does_not_come_up(tmp_path: Path) -> None:
    metadata, schema = table(tmp_path, "list<struct<a: int, b: string>>")
    full = pa.array([[ONE], [ONE, ONE], [ONE]], schema.field(0).type)
    masked = type(full).from_arrays(full.offsets, full.values, full.type, mask=pa.array([False, True, False]))
    (file,) = write_data_files(metadata, {}, [pa.record_batch([masked], schema=schema)])
    assert pq.read_table(file.file_path).column("v").to_pylist() == [[ONE], None, [ONE]]
