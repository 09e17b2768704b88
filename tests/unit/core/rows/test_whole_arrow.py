"""Arrow that others made is looked at before it is logged: what no reader could take would hold its table for ever."""

from __future__ import annotations

from io import BytesIO
from uuid import uuid4

import pyarrow as pa
import pytest
from pyarrow import csv

from replication.core.definition.define import typed_table
from replication.core.definition.schema import TableSpec
from replication.core.definition.text import parse_schema
from replication.core.frame import Codec
from replication.core.rows.batch import decode_payload, encode_payload
from replication.core.rows.convert import deletes, log_batches, upserts_from_arrow
from replication.errors import SchemaError

NO_UTF8 = pa.array([b"\xff\xfe", b"ok"]).view(pa.string())


DOWN_AGAIN = pa.array([0, 7, 1], pa.int32()).buffers()[1]


def table(kind: str) -> TableSpec:
    return typed_table("t.t", parse_schema(f"k bigint, v {kind}"), ["k"], uuids=iter(uuid4, None))


def given(values: pa.Array) -> pa.Table:
    return pa.table({"k": pa.array(range(len(values)), pa.int64()), "v": values})


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("string", NO_UTF8),
        ("string", NO_UTF8.cast(pa.large_binary()).view(pa.large_string())),
        ("string", pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int32()), NO_UTF8)),
        ("list<string>", pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), NO_UTF8)),
        ("struct<a: string>", pa.StructArray.from_arrays([NO_UTF8], ["a"])),
        ("string", pa.Array.from_buffers(pa.string(), 2, [None, DOWN_AGAIN, pa.py_buffer(b"abcdefg")])),
    ],
)
def test_text_that_is_no_utf8_and_arrays_that_are_not_whole_are_refused_by_name(kind: str, values: pa.Array) -> None:
    with pytest.raises(SchemaError, match="'v'"):
        upserts_from_arrow(given(values), table(kind))


def test_the_hint_is_about_what_is_wrong() -> None:
    options = csv.ConvertOptions(column_types={"v": pa.decimal128(9, 2)})
    many_digits = csv.read_csv(BytesIO(b"v\n12345678\n"), convert_options=options).column("v")
    for kind, values, about_text in (("decimal(9,2)", many_digits, False), ("string", NO_UTF8, True)):
        with pytest.raises(SchemaError) as refused:
            upserts_from_arrow(given(values), table(kind))
        assert ("UTF-8" in str(refused.value.hint)) is about_text


def test_rows_of_more_bytes_than_one_array_holds_are_refused_with_what_to_do() -> None:
    many = pa.chunked_array([pa.array([bytes(32 << 20)])] * 65)  # 2 GiB that take 32 MiB
    with pytest.raises(SchemaError, match="'v'.*smaller pieces"):
        upserts_from_arrow(pa.table({"k": range(65), "v": many}), table("binary"))


def test_keys_to_delete_are_looked_at_too() -> None:
    spec = typed_table("t.t", parse_schema("k string"), ["k"], uuids=iter(uuid4, None))
    with pytest.raises(SchemaError, match="'k'"):
        deletes(pa.table({"k": NO_UTF8}), spec)


def test_a_frame_with_text_that_is_no_utf8_does_not_decode() -> None:
    (log,) = upserts_from_arrow(given(pa.array(["a", "b"])), table("string"))
    bad = log.batch.set_column(log.batch.schema.get_field_index("v"), "v", NO_UTF8)
    with pytest.raises(SchemaError, match="UTF8"):
        decode_payload(encode_payload(bad, Codec.LZ4), log.version)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("list<int>", pa.array([[1], None, [], [2, None]], pa.list_view(pa.int64()))),
        ("list<int>", pa.array([[9], [1], None, [], [2, None]], pa.list_view(pa.int64())).slice(1)),
        ("float", pa.array([1.5, None], pa.float16())),
        ("double", pa.array([1.5, None], pa.float16())),
        ("int", pa.RunEndEncodedArray.from_arrays([2, 3], [5, None])),
        (
            "string",
            pa.DictionaryArray.from_arrays([1, None, 0], pa.array(["a", "longer than 12 bytes"], pa.string_view())),
        ),
        ("binary", pa.DictionaryArray.from_arrays([0, 0, None], pa.array([b"\xff" * 20], pa.binary_view()))),
        ("int", pa.DictionaryArray.from_arrays([1, 0], pa.array([7, None], pa.int32()))),
    ],
)
def test_types_that_a_table_is_made_of_are_taken(kind: str, values: pa.Array) -> None:
    (log,) = upserts_from_arrow(given(values), table(kind))
    assert (
        decode_payload(encode_payload(log.batch, Codec.LZ4), log.version).column("v").to_pylist() == values.to_pylist()
    )


@pytest.mark.parametrize(
    ("kind", "values", "says"),
    [
        ("struct<a: int>", pa.array([{"a": 1, "z": 2}]), "'v' has no field 'z'"),
        ("list<struct<a: int>>", pa.array([[{"a": 1, "z": 2}]]), "'v.element' has no field 'z'"),
        ("struct<a: int>", pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), "two fields 'a'"),
        ("list<float>", pa.array([[0.1]]), "rounded"),
        ("map<string, float>", pa.array([[("k", 0.1)]], pa.map_(pa.string(), pa.float64())), "rounded"),
        ("list<int>", pa.array([["1"]]), "'v.element' holds int32, but was given string"),
        ("list<int>", pa.array(["[1]"]), "Give it as Parquet or JSON"),
        ("struct<a: timestamptz>", pa.array([{"a": 0}], pa.struct([("a", pa.timestamp("us"))])), "'v.a' holds"),
    ],
)
def test_nothing_is_lost_or_changed_deep_in_a_value(kind: str, values: pa.Array, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        upserts_from_arrow(given(values), table(kind))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("list<float>", pa.array([[0.5, float("nan"), None], None])),
        ("list<int>", pa.array([[None], [], None])),
        ("struct<a: float>", pa.StructArray.from_arrays([pa.array([0.1, 0.5])], ["a"], mask=pa.array([True, False]))),
        ("struct<a: int, b: string>", pa.array([{"b": "x", "a": 1}, {"b": None, "a": None}])),
        ("list<string>", pa.array([["a"], None], pa.list_(pa.large_string()))),
        ("map<string, bigint>", pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32()))),
    ],
)
def test_what_fits_deep_in_a_value_is_taken(kind: str, values: pa.Array) -> None:
    (log,) = upserts_from_arrow(given(values), table(kind))
    made = log.batch.column("v").to_pylist()
    assert made == values.to_pylist() or repr(made) == repr(values.to_pylist())  # NaN is not equal to itself


@pytest.mark.parametrize("rows", [1, 3, 65_536, 65_537])
def test_rows_without_columns_are_as_many_rows_of_nulls_as_were_given(rows: int) -> None:
    spec = typed_table("t.log", parse_schema("x bigint"), [], uuids=iter(uuid4, None))
    given = pa.table({"x": pa.nulls(rows)}).select([])
    assert sum(log.batch.num_rows for log in log_batches(given, spec)) == rows
