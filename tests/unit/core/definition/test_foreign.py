"""A definition from another cluster passes the rules of createtable and settable, or is refused."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest

from replication.core.definition.alter import add_column, rename_column, set_properties
from replication.core.definition.define import cell_table, typed_table
from replication.core.definition.evolution import join, missing_columns
from replication.core.definition.foreign import foreign_table, foreign_version
from replication.core.definition.schema import SchemaVersion, Setting, TableSpec, user_field
from replication.core.definition.types import storable_type
from replication.errors import FormatError
from replication.link._pb import walship_pb2 as pb
from replication.link.wire import decode_table

NESTED = pa.struct([pa.field("a", pa.list_(pa.int32())), pa.field("_b", pa.map_(pa.string(), pa.decimal128(9, 2)))])
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string()), ("w", NESTED), ("at", pa.timestamp("us", tz="UTC"))])


def typed() -> TableSpec:
    uuids = iter(uuid4, None)
    spec = typed_table(
        "t.rows", SCHEMA, ["k"], uuids=uuids, groups={"g": ["v"]}, partition=["day(at)"], sort=["k desc"]
    )
    spec = add_column(spec, "more", pa.float32(), "g", next(uuids), 5)
    spec = rename_column(spec, "v", "words", 6)
    given = {"max_age_s": "60", "history_s": "70", "codec": "lz4", "sort": "k", "write.parquet.page-row-limit": "9"}
    return set_properties(spec, given, 7)


def forged(change: Callable[[dict[str, Any]], None]) -> str:
    raw = json.loads(typed().to_json())
    change(raw)
    return json.dumps(raw)


def columns(schema: pa.Schema) -> str:
    with_uuids = [f.with_metadata({"walship.column": str(uuid4())}) for f in schema]
    return base64.b64encode(pa.schema(with_uuids).serialize().to_pybytes()).decode()


def _columns_of(text: str) -> int:
    return len(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(json.loads(text)["columns"]))))


@pytest.mark.parametrize("spec", [typed(), cell_table("t.cells", uuids=iter(uuid4, None), groups={"f": ["a b'"]})])
def test_what_this_cluster_could_have_made_is_taken_exactly(spec: TableSpec) -> None:
    assert foreign_table(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda raw: raw.update(kind="view"), "kind"),
        (lambda raw: raw.update(history_s=0), "history_s"),
        (lambda raw: raw.update(history_s=1 << 63), "history_s"),
        (lambda raw: raw.update(history_s=1 << 61), "history_s"),  # in microseconds it fits no ledger
        (lambda raw: raw.update(key=["k", "no"]), "key column 'no'"),
        (lambda raw: raw.update(history_s=1.5), "history_s"),
        (lambda raw: raw.update(history_s=True), "history_s"),
        (lambda raw: raw.update(history_s=float("nan")), "history_s"),
        (lambda raw: raw.update(uuid=str(UUID(int=0))), "uuid"),
        (lambda raw: raw.update(kind="cell"), "cell table"),
        (lambda raw: raw.update(key=["k", "k"]), "twice"),
        (lambda raw: raw.update(key=["more"]), "float"),
        (lambda raw: raw.update(key=[f"c{n}" for n in range(10_001)]), "more than 10000 columns"),
        (lambda raw: raw.update(partition=["at"] * 10_001), "more than 10000 columns"),
        (lambda raw: raw.update(key=[]), "several groups and no key"),
        (lambda raw: raw.update(groups=[["g", ["words", "words", "more", "w", "at"]]]), "another group"),
        (lambda raw: raw.update(groups=[["g", ["words", "more", "w", "at", "k"]]]), "in the key"),
        (lambda raw: raw.update(groups=[["g", ["words"]]]), "in no group"),
        (lambda raw: raw["groups"].append(["g", []]), "two of one name"),
        (lambda raw: raw["altered"].__setitem__(0, [0.5, 0, ""]), "time"),
        (lambda raw: raw["altered"].__setitem__(0, [float("nan"), 0, ""]), "time"),
        (lambda raw: raw["settings"].update(max_age_s=["9", 1.5]), "max_age_s"),
        (lambda raw: raw["settings"].update(sort=["k", 1]), "sort order"),
        (lambda raw: raw.update(sort=["k desc", "no"]), "sort column 'no' is missing"),  # join would end in a KeyError
        (lambda raw: raw.update(sort=["w desc"]), "cannot be sorted by column 'w', which is"),
        (lambda raw: raw["settings"].update(sort=[f"{uuid4()} up", 1]), "sort order"),
        (lambda raw: raw["settings"].update({"commit.x": ["a\0b", 1]}), "not text"),
        (lambda raw: raw["properties"].update({"write.parquet.x": "\ud800"}), "not text"),
        (lambda raw: raw["properties"].update({"write.parquet.x": 5}), "not text"),
        (lambda raw: raw["properties"].update({"commit.retry.num-retries": "x"}), "num-retries cannot be 'x'"),
        (lambda raw: raw["settings"].update({"commit.retry.num-retries": ["x", 1]}), "num-retries cannot be 'x'"),
        (lambda raw: raw.update(derived="x'; --"), "cluster name"),
        (lambda raw: raw.update(derived=None), "derives it is not text"),  # joined with "" it would change each time
        (lambda raw: raw["groups"].append(["g'); copy t to '/x'; --", []]), "group name"),
        (lambda raw: raw["groups"].append(["h", ["no"]]), "column 'no'"),
        (lambda raw: raw["settings"].update(codec=["rm", 1]), "codec"),
        (lambda raw: raw["settings"].update(sort=["k; drop table t", 1]), "sort order"),
        (lambda raw: raw.update(sort=["k' desc"]), "partition"),
        (lambda raw: raw.update(sort=[" "]), "sort order"),  # it names no column, so that no definition could be joined
        (lambda raw: raw.update(sort=[" w"]), "sort order"),
        (lambda raw: raw.update(partition=['day(at)"; --']), "partition"),
        (lambda raw: raw["altered"].__setitem__(0, [0, 0, "a`; --"]), "column"),
        (lambda raw: raw["altered"].__setitem__(0, [1 << 63, 0, ""]), "time"),
        (lambda raw: raw["groups"].__setitem__(0, ["g", ["words", "more"], -1]), "time"),
        (lambda raw: raw["settings"].update(max_age_s=["1e9", 1]), "max_age_s"),
        (lambda raw: raw["settings"].update(max_age_s=["9", 1 << 63]), "max_age_s"),
        (lambda raw: raw.update(columns=columns(SCHEMA.set(1, pa.field('v" text', pa.string())))), "column"),
        (lambda raw: raw.update(columns=columns(SCHEMA.set(1, pa.field("words", pa.uint8())))), "uint8"),
        (lambda raw: raw.update(columns=columns(SCHEMA.set(1, pa.field("words", pa.duration("s"))))), "duration"),
        (
            lambda raw: raw.update(columns=columns(SCHEMA.set(1, pa.field("words", pa.struct([("a')", pa.int32())]))))),
            "field",
        ),
    ],
)
def test_what_no_cluster_could_have_made_is_refused(change: Callable[[dict[str, Any]], None], why: str) -> None:
    def change_all(raw: dict[str, Any]) -> None:
        change(raw)
        raw["altered"] = raw["altered"][: len(SCHEMA)]

    text = forged(change_all if len(json.loads(forged(change))["altered"]) != _columns_of(forged(change)) else change)
    with pytest.raises(FormatError, match="cannot be taken") as caught:
        foreign_table(text)
    assert why in str(caught.value)
    with pytest.raises(FormatError):
        decode_table(pb.TableReply(table=text).SerializeToString())


@pytest.mark.parametrize("name", ["py-io-impl", "write.data.path", "write.py-location-provider.impl", "walship.spec"])
def test_properties_that_name_code_or_places_are_left_out(name: str) -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["properties"][name] = "os.system"
        raw["settings"][name] = ["os.system", 1]

    taken = foreign_table(forged(change))
    assert name not in taken.properties and name not in taken.settings
    assert taken.settings.keys() == typed().settings.keys()


@pytest.mark.parametrize(
    "key", ["uuid", "name", "kind", "columns", "key", "groups", "settings", "properties", "altered"]
)
@pytest.mark.parametrize("value", [None, 7, "x", [], {}, [7], [[]], {"a": 1}, "\0", 1e308, -1])
def test_any_other_json_is_read_or_refused(key: str, value: object) -> None:
    def change(raw: dict[str, Any]) -> None:
        raw[key] = value

    try:
        foreign_table(forged(change))
    except FormatError:
        return
    assert key in ("groups", "key", "name", "settings", "properties"), "which may be empty, or any text"


@pytest.mark.parametrize("text", ["", "[]", "7", "null", "[" * 100_000, '{"uuid": 1}', "\ud800"])
def test_no_text_ends_in_another_error(text: str) -> None:
    with pytest.raises(FormatError):
        foreign_table(text)


def test_the_error_stays_short_however_much_is_wrong() -> None:
    def change(raw: dict[str, Any]) -> None:
        raw["groups"] += [[f"{n}'", []] for n in range(10_000)]
        raw["name"] = "n" * 10_000

    with pytest.raises(FormatError) as caught:
        foreign_table(forged(change))
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    ("group", "body"),
    [
        ("g'; --", SCHEMA.serialize().to_pybytes()),
        ("g", b"no schema"),
        ("g", b""),
        pytest.param("g", SCHEMA.with_metadata({"x": b"x" * (4 << 20)}).serialize().to_pybytes(), id="too large"),
    ],
)
def test_a_schema_version_that_no_table_could_have_is_refused(group: str, body: bytes) -> None:
    with pytest.raises(FormatError):
        foreign_version(uuid4(), group, sha256(body).digest(), body)


def test_a_wide_definition_is_read_and_joined_in_time_that_grows_with_its_width() -> None:
    """A peer sends definitions of up to 4 MiB; comparing all names with all takes minutes of them."""
    begun_s = time.thread_time()
    names = [f"c{n}" for n in range(12_000)]
    assert storable_type(pa.struct([pa.field(name, pa.int32()) for name in names]), "c").num_fields == len(names)
    schema, groups = pa.schema([("k", pa.int64()), *((name, pa.int32()) for name in names[:2000])]), names[:2000]
    spec = typed_table("t.wide", schema, ["k"], uuids=iter(uuid4, None), groups={name: [name] for name in groups})
    assert join(spec, foreign_table(spec.to_json())) == spec
    without = replace(spec, columns=spec.columns[:1], groups=(), dropped=tuple(uuid4() for _ in range(20_000)))
    version = SchemaVersion.of(spec.uuid, "", pa.schema([user_field(column) for column in spec.columns[1:]]))
    assert len(missing_columns(without, version)) == 2000
    assert time.thread_time() - begun_s < 4


def test_a_partition_of_letters_and_spaces_is_joined_in_time_that_grows_with_its_length() -> None:
    """One of 10,000 characters, as may come, held the receiver's interpreter for minutes."""
    begun_s = time.thread_time()
    for text in (
        "a" * 1000 + " " * 1000 + "(",
        "a" * 10_000,
        "a " * 4999 + "(",
        "a" + " " * 9000 + ")" + " " * 990 + "(",
    ):
        spec = foreign_table(forged(lambda raw, text=text: raw.update(partition=[text])))
        assert join(spec, spec) == spec
    assert time.thread_time() - begun_s < 1
    by = foreign_table(forged(lambda raw: raw.update(partition=["bucket(16, words )", "day(at)", "words"])))
    renamed = rename_column(by, "words", "terms", 9)
    assert renamed.partition == ("bucket(16, terms )", "day(at)", "terms")


@pytest.mark.timeout(60)
def test_a_column_gets_a_name_though_others_have_all_that_end_with_digits_of_its_uuid() -> None:
    """Such a definition, which a peer can send, was joined for ever."""
    uuid = UUID(int=0xFEED << 100)
    names = ["x", "b", *(f"x_{uuid.hex[:digits]}" for digits in range(8, 36, 4))]
    spec = typed_table("t.rows", pa.schema([(n, pa.int64()) for n in names]), ["x"], uuids=iter(uuid4, None))
    second = replace(spec.columns[1], uuid=uuid, wanted="x", named=1)
    taken = foreign_table(replace(spec, columns=(spec.columns[0], second, *spec.columns[2:])).to_json())
    joined = join(taken, taken)
    assert joined.by_uuid[uuid].name == f"x_{uuid.hex}____" and foreign_table(joined.to_json()) == joined
    assert join(joined, taken) == joined


def test_a_definition_with_a_wide_key_many_dropped_columns_and_a_long_order_takes_seconds_at_most() -> None:
    names = [f"c{n}" for n in range(5000)]
    spec = typed_table("t.wide", pa.schema([(n, pa.int32()) for n in names]), names, uuids=iter(uuid4, None))
    order = Setting(",".join(str(uuid4()) for _ in range(30_000)), 1)
    spec = replace(spec, dropped=tuple(sorted(uuid4() for _ in range(20_000))), settings={"sort": order})
    text = spec.to_json()
    begun_s = time.thread_time()
    taken = foreign_table(text)
    assert join(taken, taken).by_uuid == spec.by_uuid
    assert time.thread_time() - begun_s < 4


def test_a_definition_whose_groups_would_each_repeat_a_wide_key_is_refused_before_they_are_made() -> None:
    """Three megabytes of definition made gigabytes of schema versions, in the receiver and in its ledger."""
    wide, groups = [f"k{n}" for n in range(600)], [f"g{n}" for n in range(600)]
    schema = pa.schema([(name, pa.int64()) for name in (*wide, *groups)])
    spec = typed_table("t.r", schema, wide, uuids=iter(uuid4, None), groups={name: [name] for name in groups})
    with pytest.raises(FormatError, match="600 groups, too many for a key of 600 columns"):
        foreign_table(spec.to_json())
    long = typed_table(
        "t.r",
        pa.schema([("k" * 60_000, pa.int64()), *schema]),
        ["k" * 60_000],
        uuids=iter(uuid4, None),
        groups={name: [name] for name in (*wide, *groups)},
    )
    with pytest.raises(FormatError, match="1200 groups, too many for a key of 1 columns"):
        foreign_table(long.to_json())
    narrow = typed_table("t.r", schema, wide[:10], uuids=iter(uuid4, None), groups={name: [name] for name in groups})
    assert foreign_table(narrow.to_json()) == narrow


def test_a_definition_that_drops_a_column_that_it_has_is_refused_or_none_could_be_joined_into_it() -> None:
    """Another cluster that sent the same table had its whole stream refused, by a KeyError."""
    spec = typed()
    for column in spec.columns:
        with pytest.raises(FormatError, match="a column is there, and dropped"):
            foreign_table(replace(spec, dropped=(uuid4(), column.uuid)).to_json())
    assert foreign_table(replace(spec, dropped=(gone := uuid4(),)).to_json()).dropped == (gone,)
