"""What may be changed about a table, what may not, and what the refusal says."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID, uuid4

import pyarrow as pa
import pytest

from replication.core.definition.alter import (
    add_column,
    add_group,
    drop_column,
    rename_column,
    set_properties,
    widen_column,
)
from replication.core.definition.evolution import clashes, common, join, missing_columns, without_properties
from replication.core.definition.foreign import foreign_table
from replication.core.definition.schema import HISTORY_S_DEFAULT, Column, TableSpec
from replication.errors import SchemaError
from tests.tables_made import cell, grouped, keyed

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int32()), ("d", pa.decimal128(9, 2)), ("at", pa.date32())])


@pytest.fixture
def spec() -> TableSpec:
    return keyed("ops.t", SCHEMA, partition=["day(at)"], sort=["d desc"])


def names(spec: TableSpec) -> list[str]:
    return [column.name for column in spec.columns]


def test_a_column_is_added_to_the_only_group_or_the_one_named(spec: TableSpec) -> None:
    made = add_column(spec, "extra", pa.uint8(), "", uuid4(), 1)
    assert names(made)[-1] == "extra" and made.by_name["extra"].type == pa.int32()
    assert made.groups[0].members == ("v", "d", "at", "extra")
    two = grouped("ops.g")
    with pytest.raises(SchemaError, match="no group 'default'.*left, right-1"):
        add_column(two, "x", pa.int64(), "", uuid4(), 1)
    assert add_column(two, "x", pa.int64(), "left", uuid4(), 1).group("left").members == ("a", "x")


def test_a_renamed_column_keeps_its_place_everywhere(spec: TableSpec) -> None:
    made = spec
    for old, new in (("k", "id"), ("at", "day"), ("d", "price")):
        made = rename_column(made, old, new, 1)
    assert made.key == ("id",) and made.partition == ("day(day)",) and made.sort == ("price desc",)
    assert made.groups[0].members == ("v", "price", "day")
    assert [c.uuid for c in made.columns] == [c.uuid for c in spec.columns]


def test_a_name_that_comes_again_is_another_column(spec: TableSpec) -> None:
    made = add_column(drop_column(spec, "v"), "v", pa.string(), "", uuid4(), 1)
    assert made.by_name["v"].uuid != spec.by_name["v"].uuid
    assert made.dropped == (spec.by_name["v"].uuid,)
    assert not missing_columns(made, spec.versions["default"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: add_column(s, "V", pa.int64(), "", UUID(int=9), 1), "has a column v already"),
        (lambda s: add_column(s, "AT_day", pa.int64(), "", UUID(int=9), 1), "partition of table ops.t is named"),
        (lambda s: rename_column(s, "v", "at_day", 1), "partition of table ops.t is named"),
        (lambda s: add_column(s, "_x", pa.int64(), "", UUID(int=9), 1), "must start with a letter"),
        (lambda s: add_column(s, "x", pa.time32("s"), "", UUID(int=9), 1), "Iceberg tables cannot hold"),
        (lambda s: rename_column(s, "nope", "x", 1), "no column 'nope'.*It has k, v"),
        (lambda s: rename_column(s, "v", "d", 1), "has a column d already"),
        (lambda s: widen_column(s, "v", pa.string()), "cannot become string from int32.*add a column"),
        (lambda s: widen_column(s, "v", pa.int32()), "is int32 already"),
        (lambda s: widen_column(s, "d", pa.decimal128(9, 3)), "without losing values"),
        (lambda s: widen_column(s, "k", pa.binary()), "in its key or partition"),
        (lambda s: drop_column(s, "k"), "in the key"),
        (lambda s: drop_column(s, "at"), "in the partition"),
        (lambda s: drop_column(s, "d"), "in the sort order.*settable ops.t sort="),
        (lambda s: set_properties(s, {"ttl": "5"}, 1), "no table property 'ttl'.*history_s"),
        (lambda s: set_properties(s, {"history_s": "soon"}, 1), "number of seconds"),
        (lambda s: set_properties(s, {"history_s": "9" * 5000}, 1), "up to 3153600000 "),
        (lambda s: set_properties(s, {"codec": "rar"}, 1), "no codec 'rar'.*zstd"),
        (lambda s: set_properties(s, {"sort": "v up"}, 1), "is not a sort column"),
        (lambda s: set_properties(s, {"write.format.default": "orc"}, 1), "cannot be 'orc'.*Parquet"),
        (lambda s: set_properties(s, {"walship.table": "x"}, 1), "no table property"),
    ],
)
def test_what_cannot_be_is_refused_with_the_remedy(spec: TableSpec, change, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        change(spec)


def test_cell_tables_have_their_columns_for_ever() -> None:
    with pytest.raises(SchemaError, match="cell table"):
        add_column(cell("ops.c"), "x", pa.int64(), "", uuid4(), 1)
    assert set_properties(cell("ops.c"), {"history_s": "60"}, 1).history_s == 60


def test_a_column_widens_by_what_iceberg_allows(spec: TableSpec) -> None:
    made = widen_column(widen_column(spec, "v", pa.int64()), "d", pa.decimal128(30, 2))
    assert (made.by_name["v"].type, made.by_name["d"].type) == (pa.int64(), pa.decimal128(30, 2))
    assert not missing_columns(made, spec.versions["default"])
    assert missing_columns(spec, made.versions["default"]) == ["v as int64", "d as decimal128(30, 2)"]


def test_of_two_columns_of_one_name_the_first_named_keeps_it_until_it_goes(spec: TableSpec) -> None:
    here = add_column(spec, "x", pa.int64(), "", UUID(int=1), 10)
    there = add_column(spec, "x", pa.string(), "", UUID(int=0xABCD << 112), 20)
    both = join(here, there)
    assert both == join(there, here)
    assert names(both)[-2:] == ["x", "x_abcd0000"]
    assert "x_abcd0000 was named x" in clashes(both)[0]
    assert not clashes(rename_column(both, "x_abcd0000", "y", 30))
    assert names(drop_column(both, "x"))[-1] == "x"


def test_the_last_name_wins_and_dropping_wins_over_all(spec: TableSpec) -> None:
    one, two = rename_column(spec, "v", "one", 10), rename_column(spec, "v", "two", 20)
    assert names(join(one, two)) == names(join(two, one)) == ["k", "two", "d", "at"]
    gone = drop_column(spec, "v")
    assert names(join(two, gone)) == names(join(gone, two)) == ["k", "d", "at"]


def test_definitions_of_different_origin_do_not_join(spec: TableSpec) -> None:
    column = replace(spec.by_name["v"], type=pa.string())
    other = replace(spec, columns=tuple(column if c.name == "v" else c for c in spec.columns))
    with pytest.raises(SchemaError, match="v of table ops.t is int32 here and string there.*createtable --like"):
        join(spec, other)
    keyless = replace(spec, key=())
    with pytest.raises(SchemaError, match="key"):
        join(spec, keyless)


def test_properties_join_by_the_last_setting_of_each(spec: TableSpec) -> None:
    one = set_properties(spec, {"history_s": "60", "codec": "lz4", "write.x": "1"}, 10)
    two = set_properties(spec, {"history_s": "90", "sort": "v desc, k"}, 20)
    both = join(one, two)
    assert both == join(two, one)
    assert (both.history_s, both.setting("codec"), both.sort) == (90, "lz4", ("v desc", "k"))
    assert both.properties == {"write.x": "1"}
    reset = set_properties(both, {"history_s": "", "write.x": "", "sort": ""}, 30)
    assert (reset.history_s, dict(reset.properties), reset.sort) == (HISTORY_S_DEFAULT, {}, ())
    assert rename_column(both, "v", "w", 40).sort == ("w desc", "k")


def test_a_sort_order_given_at_creation_reaches_a_table_that_was_made_without_properties(spec: TableSpec) -> None:
    bare = without_properties(spec)
    followed = join(bare, spec)
    assert not bare.sort and followed.sort == ("d desc",) and foreign_table(followed.to_json()) == followed
    assert join(spec, followed).sort == rename_column(followed, "v", "w", 5).sort == ("d desc",)
    for own in ("", "v"):
        chosen = set_properties(bare, {"sort": own}, 5)
        assert join(chosen, spec).sort == chosen.sort


def test_a_definition_without_properties_changes_none(spec: TableSpec) -> None:
    there = set_properties(spec, {"codec": "lz4", "write.x": "1", "sort": "v"}, 20)
    bare = without_properties(there)
    assert join(spec, bare) == spec and not bare.sort


def test_how_late_a_version_may_come_is_the_same_wherever_the_table_goes(spec: TableSpec) -> None:
    there = set_properties(spec, {"history_s": "90", "codec": "lz4"}, 20)
    assert join(spec, without_properties(there)).history_s == 90
    assert without_properties(replace(spec, history_s=7)).history_s == 7


def test_definitions_survive_their_text(spec: TableSpec) -> None:
    made = set_properties(drop_column(rename_column(spec, "k", "id", 5), "v"), {"history_s": "7"}, 6)
    assert TableSpec.from_json(made.to_json()) == made
    assert Column(UUID(int=1), "x_1", pa.int64(), 1, 1, "x").claim == "x"


def test_what_two_definitions_have_in_common_is_named_as_in_the_first_and_as_wide_as_the_wider(spec: TableSpec) -> None:
    here = add_column(rename_column(spec, "v", "mine", 1), "only", pa.int64(), "", uuid4(), 2)
    there = widen_column(rename_column(spec, "k", "id", 1), "v", pa.int64())
    both = common(here, there, ["default"])
    assert [(c.name, c.type) for c in both.columns][:2] == [("k", pa.string()), ("mine", pa.int64())]
    assert "only" not in both.by_name and both.groups[0].members == ("mine", "d", "at")
    two = grouped("ops.g")
    assert names(common(two, two, ["left"])) == ["k", "a"]


def test_a_group_is_added_with_columns_of_its_own(spec: TableSpec) -> None:
    made = add_group(spec, "extra", [("x", pa.uint8(), uuid4()), ("y", pa.string(), uuid4())], 5)
    assert [(g.name, g.members) for g in made.groups] == [("default", ("v", "d", "at")), ("extra", ("x", "y"))]
    assert made.by_name["x"].type == pa.int32() and made.groups[1].added >= 5
    assert set(made.versions) == {"default", "extra"} and made.versions["default"] == spec.versions["default"]
    assert drop_column(drop_column(made, "x"), "y").group("extra").members == ()
    assert TableSpec.from_json(made.to_json()) == made
    assert join(spec, made) == join(made, spec) == made


@pytest.mark.parametrize(
    ("group", "columns", "says"),
    [
        ("extra", [], "group extra of table ops.t has no columns"),
        ("extra", [("v", pa.int32())], "column v of table ops.t is in its group default, and stays there"),
        ("extra", [("k", pa.int32())], "column k of table ops.t is in its key"),
        ("Default", [("x", pa.int32())], "has a group Default already"),
        ("a b", [("x", pa.int32())], "group name"),
        ("extra", [("x", pa.int32()), ("X", pa.int32())], "has a column x already"),
    ],
)
def test_a_group_that_cannot_be_added_is_refused(spec: TableSpec, group: str, columns: list, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        add_group(spec, group, [(name, kind, uuid4()) for name, kind in columns], 5)


def test_no_group_is_added_to_a_derived_table_since_the_hook_writes_one(spec: TableSpec) -> None:
    with pytest.raises(SchemaError, match=r"derived at east, so it has one group.*--add 'NAME TYPE'"):
        add_group(replace(spec, derived="east"), "more", [("extra", pa.string(), uuid4())], 1)


def test_groups_are_added_to_typed_tables_with_a_key_only() -> None:
    column = [("x", pa.int32(), uuid4())]
    with pytest.raises(SchemaError, match="ops.c is a cell table"):
        add_group(cell("ops.c"), "extra", column, 5)
    with pytest.raises(SchemaError, match="has no key, so it cannot have more groups"):
        add_group(keyed("ops.log", SCHEMA, ()), "extra", column, 5)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("commit.retry.num-retries", ("0", "4"), ("x", "-1", "1.5", "9" * 12)),
        ("commit.retry.min-wait-ms", ("0", "100"), ("soon",)),
        ("commit.retry.total-timeout-ms", ("1800000",), ("0",)),
        ("commit.manifest.min-count-to-merge", ("100",), ("many",)),
        ("commit.manifest-merge.enabled", ("true", "false"), ("maybe", "1")),
        ("commit.manifest.target-size-bytes", ("8388608",), ("8MB",)),
        ("history.expire.max-snapshot-age-ms", ("432000000", "31536000000"), ("1d",)),
        ("write.target-file-size-bytes", ("536870912", "10737418240"), ("abc", "0", "512MB", "9" * 30)),
        ("write.parquet.row-group-limit", ("1048576",), ("-1", "0")),
        ("write.parquet.compression-codec", ("zstd", "uncompressed"), ("foo", "ZSTD")),
        ("write.parquet.compression-level", ("3", "-1"), ("best",)),
        ("write.parquet.bloom-filter-enabled.column.enabled", ("true",), ("full",)),
        ("write.metadata.previous-versions-max", ("100",), ("-5", "0")),
        ("write.metadata.metrics.default", ("none", "truncate(16)"), ("nonsense", "truncate()")),
        ("write.metadata.metrics.column.enabled", ("full",), ("true",)),
        ("write.metadata.metrics.max-inferred-column-defaults", ("100",), ("all",)),
        ("write.distribution-mode", ("hash",), ("random",)),
        ("write.delete.mode", ("merge-on-read",), ("fast",)),
        ("read.split.target-size", ("134217728",), ("-1",)),
    ],
)
def test_a_value_that_icebergs_property_cannot_have_is_refused(
    name: str, good: tuple[str, ...], bad: tuple[str, ...]
) -> None:
    spec = keyed("ops.t")
    for value in (*good, ""):
        assert set_properties(spec, {name: value}, 1).setting(name) == value
    for value in bad:
        with pytest.raises(SchemaError, match=f"{name} cannot be .*Give (a whole|one of) .*{name}= takes the default"):
            set_properties(spec, {name: value}, 1)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("max_age_s@1.5", "abc", "there is no table property"),
        ("history_s@2.", "1", "there is no table property"),
        ("a.b\0", "1", "there is no table property"),
        ("a.b", "\udcff", "cannot be"),
        ("a.b", "\0", "cannot be"),
    ],
)
def test_a_property_that_former_settings_or_no_table_could_have_is_refused(name: str, value: str, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        set_properties(keyed("ops.t"), {name: value}, 1)
