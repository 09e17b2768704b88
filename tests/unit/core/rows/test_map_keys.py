"""A map with a key twice is refused where it is written: DuckDB takes none, so hooks would stand still at it."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from replication.core.definition.define import typed_table
from replication.core.definition.schema import TableSpec
from replication.core.rows.convert import upserts_from_arrow, upserts_from_rows
from replication.errors import SchemaError

PLAIN = pa.map_(pa.string(), pa.int32())
BY_STRUCT = pa.map_(pa.struct([("a", pa.int32())]), pa.int32())
TWICE = [("a", 1), ("b", 1), ("a", 2)]


def table(kind: pa.DataType) -> TableSpec:
    return typed_table("t.t", pa.schema([("k", pa.int64()), ("v", kind)]), ["k"], uuids=iter(uuid4, None))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (PLAIN, TWICE),
        (pa.list_(PLAIN), [[], TWICE]),
        (pa.struct([("m", PLAIN)]), {"m": TWICE}),
        (pa.map_(pa.int32(), PLAIN), [(1, TWICE)]),
        (BY_STRUCT, [({"a": 1}, 1), ({"a": 1}, 2)]),
        (pa.map_(pa.binary(), pa.int32()), [(b"", 1), (b"", 1)]),
    ],
)
def test_a_key_twice_is_refused_by_the_name_of_the_column(kind: pa.DataType, value: Any) -> None:
    spec = table(kind)
    with pytest.raises(SchemaError, match="column 'v' was given a map with the same key twice"):
        upserts_from_arrow(pa.table({"k": [1, 2], "v": pa.array([None, value], kind)}), spec)
    with pytest.raises(SchemaError, match="column 'v' was given a map with the same key twice"):
        upserts_from_rows([{"k": 1, "v": None}, {"k": 2, "v": value}], spec)


def test_the_same_key_in_several_maps_is_good() -> None:
    maps = pa.array([TWICE, [("a", 1)], None, [], [("a", 2), ("b", 2)]], PLAIN)
    (log,) = upserts_from_arrow(pa.table({"k": [1, 2, 3, 4], "v": maps.slice(1)}), table(PLAIN))
    assert log.batch.column("v").to_pylist() == [[("a", 1)], None, [], [("a", 2), ("b", 2)]]
    hidden = pa.MapArray.from_arrays(
        pa.array([0, 1, 3], pa.int32()), ["a", "b", "b"], pa.array([1, 2, 3], pa.int32()), mask=pa.array([False, True])
    )
    assert upserts_from_arrow(pa.table({"k": [1, 2], "v": hidden}), table(PLAIN)), "what lies beneath a NULL is none"
    several = pa.array([[({"a": 1}, 1), ({"a": 2}, 1)], [({"a": 1}, 1)]], BY_STRUCT)
    assert upserts_from_arrow(pa.table({"k": [1, 2], "v": several}), table(BY_STRUCT))
