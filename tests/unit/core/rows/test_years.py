"""Times of years that Python does not have are refused where they are written: replay would stand still."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from uuid import uuid4

import pyarrow as pa
import pytest

from replication.core.definition.define import typed_table
from replication.core.definition.schema import TableSpec
from replication.core.definition.text import parse_schema
from replication.core.frame import Codec
from replication.core.routes.bootstrap import bootstrap_schema, decode_rows
from replication.core.rows.batch import decode_payload, encode_payload
from replication.core.rows.convert import upserts_from_arrow, upserts_from_rows
from replication.errors import SchemaError

DEEP = pa.struct([("a", pa.struct([("b", pa.date32())]))])
US = pa.timestamp("us")
LAST = 253_402_300_799_999_999
FIRST = -62_135_596_800_000_000


def table(kind: str) -> TableSpec:
    return typed_table("t.t", parse_schema(f"k bigint, v {kind}"), ["k"], uuids=iter(uuid4, None))


def given(values: pa.Array) -> pa.Table:
    return pa.table({"k": pa.array(range(len(values)), pa.int64()), "v": values})


def times(values: Sequence[int | None], kind: pa.DataType = US) -> pa.Array:
    return pa.array(values, kind)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("timestamp", times([0, LAST + 1])),
        ("timestamp", times([FIRST - 1, None])),
        ("timestamptz", times([2**63 - 1], pa.timestamp("us", tz="UTC"))),
        ("date", times([2_932_897], pa.date32())),
        ("date", times([-719_163], pa.date32())),
        ("list<timestamp>", pa.ListArray.from_arrays(pa.array([0, 0, 1], pa.int32()), times([LAST + 1]))),
        ("struct<a: struct<b: date>>", pa.array([None, {"a": {"b": None}}, {"a": {"b": 3_000_000}}], DEEP)),
        ("map<int, timestamp>", pa.array([[], [(1, LAST + 1)]], pa.map_(pa.int32(), US))),
        ("map<timestamp, int>", pa.array([None, [(LAST + 1, 1)]], pa.map_(US, pa.int32()))),
    ],
)
def test_other_years_are_refused_by_name(kind: str, values: pa.Array) -> None:
    spec = table(kind)
    with pytest.raises(SchemaError, match="'v' was given a value before year 1 or after year 9999"):
        upserts_from_arrow(given(values), spec)


def test_a_zone_that_carries_a_python_time_out_of_the_years_is_refused() -> None:
    late = dt.datetime(9999, 12, 31, 23, 59, tzinfo=dt.timezone(dt.timedelta(hours=-1)))
    with pytest.raises(SchemaError, match="'v'"):
        upserts_from_rows([{"k": 1, "v": late}], table("timestamptz"))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("timestamp", times([FIRST, None, LAST])),
        ("timestamp", times([None, None])),
        ("timestamp", times([])),
        ("date", times([-719_162, 2_932_896], pa.date32())),
        (
            "map<int, timestamp>",
            pa.array([[(0, 2**62)], None, [(1, LAST), (2, None)]], pa.map_(pa.int32(), US)).slice(1),
        ),
    ],
)
def test_the_first_and_last_moment_are_taken(kind: str, values: pa.Array) -> None:
    (log,) = upserts_from_arrow(given(values), table(kind))
    assert log.batch.column("v").to_pylist() == values.to_pylist()


def test_a_frame_with_another_year_does_not_decode() -> None:
    (log,) = upserts_from_arrow(given(times([1, 2])), table("timestamp"))
    bad = log.batch.set_column(log.batch.schema.get_field_index("v"), "v", times([1, LAST + 1]))
    with pytest.raises(SchemaError, match="9999"):
        decode_payload(encode_payload(bad, Codec.LZ4), log.version)


def test_a_bootstrap_with_another_year_does_not_decode() -> None:
    version = table("timestamp").versions["default"]
    schema = bootstrap_schema(version)
    columns = [times([LAST + 1]) if field.name == "v" else pa.array([0], field.type) for field in schema]
    payload = encode_payload(pa.RecordBatch.from_arrays(columns, schema=schema), Codec.LZ4)
    with pytest.raises(SchemaError, match="9999"):
        decode_rows(memoryview(payload), version)
