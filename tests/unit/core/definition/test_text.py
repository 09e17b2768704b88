from __future__ import annotations

from uuid import uuid4

import pyarrow as pa
import pytest

from replication.core.definition.define import typed_table
from replication.core.definition.text import parse_schema
from replication.core.definition.types import storable_type
from replication.errors import SchemaError


def test_every_type_can_be_written() -> None:
    schema = parse_schema(
        "faa string, lat double, price decimal(10, 2), tags list<string>, at timestamp, seen timestamptz,"
        "b BOOLEAN, i int, l bigint, f float, d date, raw binary, m map<string, list<int>>, s "
        "struct<x: int, y struct<z: date>>, n numeric(5)"
    )
    assert schema.names == ["faa", "lat", "price", "tags", "at", "seen", "b", "i", "l", "f", "d", "raw", "m", "s", "n"]
    assert schema.field("price").type == pa.decimal128(10, 2)
    assert schema.field("n").type == pa.decimal128(5, 0)
    assert schema.field("at").type == pa.timestamp("us")
    assert schema.field("seen").type == pa.timestamp("us", tz="UTC")
    assert schema.field("tags").type.value_type == pa.string()
    assert schema.field("m").type.item_type.value_type == pa.int32()
    assert schema.field("s").type.field("y").type.field("z").type == pa.date32()
    assert all(storable_type(field.type, field.name) == field.type for field in schema), (
        "written types are storable ones"
    )


def test_a_name_in_another_script_is_read_whole_so_that_the_table_can_refuse_it_by_name() -> None:
    schema = parse_schema("größe int, s struct<имя: string>")
    assert schema.names == ["größe", "s"] and schema.field("s").type.field(0).name == "имя"
    with pytest.raises(SchemaError, match="column 'größe' must start with a letter and hold only letters A to Z"):
        typed_table("t.t", schema, [], uuids=iter(uuid4, None))


def test_quoted_names_and_line_breaks() -> None:
    assert parse_schema("`time hour` timestamp,\n\tx int").names == ["time hour", "x"]


@pytest.mark.parametrize(
    ("text", "character", "words"),
    [
        ("", 1, "column name"),
        ("a", 2, "type for column 'a'"),
        ("a int, b strng", 10, "type for column 'b'"),
        ("a int b int", 7, "','"),
        ("a int,, b int", 7, "column name"),
        ("a decimal(39,2)", 11, "38"),
        ("a decimal(2,3)", 11, "38"),
        ("a decimal", 10, "'('"),
        ("a list<int", 11, "'>'"),
        ("a map<int>", 10, "','"),
        ("a struct<>", 10, "field name"),
        ("a time", 3, "no type 'time' for column 'a'"),
        ("a int not null", 7, "not null"),
        ("a int ; drop", 7, "','"),
    ],
)
def test_an_error_points_at_its_place(text: str, character: int, words: str) -> None:
    with pytest.raises(SchemaError) as caught:
        parse_schema(text)
    assert f"at character {character} " in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_column_may_not_come_twice() -> None:
    with pytest.raises(SchemaError, match="'A' is there twice"):
        parse_schema("a int, A int")
