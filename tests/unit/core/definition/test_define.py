"""What a table may be."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pyarrow as pa
import pytest

from replication.core.definition.alter import set_properties
from replication.core.definition.define import cell_table, typed_table
from replication.core.definition.foreign import foreign_table
from replication.core.definition.schema import Setting
from replication.core.definition.text import parse_schema
from replication.errors import FormatError, SchemaError


def test_groups_want_a_key_to_be_put_together_by() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    with pytest.raises(SchemaError, match="a table without a key can have only one group"):
        typed_table("ops.log", schema, [], uuids=iter(uuid4, None), groups={"one": ["a"]})
    whole = typed_table("ops.log", schema, [], uuids=iter(uuid4, None), groups={"one": ["a", "b"]})
    assert [group.name for group in whole.groups] == ["one"]


def test_a_family_of_cells_is_in_one_group() -> None:
    with pytest.raises(SchemaError, match="group 'b': family 'f' is in another group"):
        cell_table("ops.cells", uuids=iter(uuid4, None), groups={"a": ["f"], "b": ["g", "f"]})
    made = cell_table("ops.cells", uuids=iter(uuid4, None), groups={"a": ["f"], "b": ["g"]})
    assert [group.name for group in made.groups] == ["a", "b", "default"]


def test_a_key_has_each_column_once() -> None:
    with pytest.raises(SchemaError, match="key column 'k' is there twice"):
        typed_table("ops.t", pa.schema([("k", pa.int64())]), ["k", "k"], uuids=iter(uuid4, None))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (["a.b", "a"], "field 'a.b', which must start with"),
        (["1x"], "field '1x'"),
        (["it's"], 'field "it\'s"'),
        ([""], "field ''"),
        (["a\n"], "field"),
        (["a", "A"], "the field 'a' twice"),
        ([], "a struct without fields"),
    ],
)
def test_fields_that_files_or_engines_would_not_keep_are_refused(fields: list[str], says: str) -> None:
    struct = pa.struct([pa.field(name, pa.int32()) for name in fields])
    schema = pa.schema([("k", pa.int64()), ("v", pa.list_(struct))])
    with pytest.raises(SchemaError, match=says):
        typed_table("ops.t", schema, ["k"], uuids=iter(uuid4, None))


def test_fields_may_be_any_words() -> None:
    struct = pa.struct([pa.field(name, pa.int32()) for name in ("select", "_1", "größe", "Key")])
    made = typed_table("ops.t", pa.schema([("k", pa.int64()), ("v", struct)]), ["k"], uuids=iter(uuid4, None))
    assert made.by_name["v"].type == struct


def test_a_group_without_columns_is_refused() -> None:
    schema = pa.schema([("id", pa.int64()), ("a", pa.int64())])
    with pytest.raises(SchemaError, match="group 'g' has no columns"):
        typed_table("ops.t", schema, ["id"], uuids=iter(uuid4, None), groups={"g": []})


@pytest.mark.parametrize("sort", ["id sideways", " id", "id\tdesc", ""])
def test_a_sort_order_that_tables_cannot_have_is_refused_when_the_table_is_made(sort: str) -> None:
    with pytest.raises(SchemaError, match="sort column"):
        typed_table("ops.t", pa.schema([("id", pa.int64())]), ["id"], uuids=iter(uuid4, None), sort=[sort])


def test_files_are_not_sorted_by_a_nested_column() -> None:
    schema = pa.schema([("id", pa.int64()), ("l", pa.list_(pa.int64()))])
    with pytest.raises(SchemaError, match="cannot be sorted by column 'l', which is list"):
        typed_table("ops.t", schema, ["id"], uuids=iter(uuid4, None), sort=["l desc"])
    made = typed_table("ops.t", schema, ["id"], uuids=iter(uuid4, None), sort=["id"])
    with pytest.raises(SchemaError, match="cannot be sorted by column 'l', which is list"):
        set_properties(made, {"sort": "id,l"}, 1)
    nested = made.by_name["l"].uuid
    other = replace(made, settings={"sort": Setting(str(nested), 1)})
    with pytest.raises(FormatError, match="cannot be sorted by column 'l'"):
        foreign_table(other.to_json())


@pytest.mark.parametrize("nested", ["list<", "struct<a: ", "map<string, "])
@pytest.mark.parametrize("levels", [30, 60, 61, 125, 2000])
def test_a_table_that_is_made_can_be_read_however_deep_its_columns_are_nested(nested: str, levels: int) -> None:
    text = f"k long, v {nested * levels}int{'>' * levels}"
    try:
        made = typed_table("ops.t", parse_schema(text), ["k"], uuids=iter(uuid4, None))
    except SchemaError as error:
        assert levels > 60 and "nested" in error.what
    else:
        assert levels <= 60 and foreign_table(made.to_json()) == made


def test_a_table_has_columns() -> None:
    with pytest.raises(SchemaError, match="it has no columns"):
        typed_table("ops.t", pa.schema([]), [], uuids=iter(uuid4, None))


@pytest.mark.parametrize("partition", [" k", "bucket[3](k)", "bucket(3,\tk)"])
def test_a_partition_that_no_peer_would_take_is_refused_when_the_table_is_made(partition: str) -> None:
    with pytest.raises(SchemaError, match="is not a sort order or partition"):
        typed_table("ops.t", pa.schema([("k", pa.int64())]), [], uuids=iter(uuid4, None), partition=[partition])


@pytest.mark.parametrize("families", [["f", "f"], ["\0"], ["\udcff"]])
def test_families_that_no_peer_would_take_are_refused_when_the_table_is_made(families: list[str]) -> None:
    with pytest.raises(SchemaError, match="is there twice, or no text"):
        cell_table("ops.cells", uuids=iter(uuid4, None), groups={"a": families})
