"""Values reach the log exactly as given, or are refused by the column's name."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from uuid import UUID, uuid4

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from replication.core.definition.define import cell_table, typed_table
from replication.core.definition.schema import DELETE, DELETE_AT, PUT, SchemaVersion, TableSpec
from replication.core.frame import Codec
from replication.core.rows.batch import (
    FRAME_PAYLOAD_BYTES,
    FRAME_ROWS_MAX,
    ROW_BYTES_MAX,
    LogBatch,
    decode_payload,
    encode_payload,
    split,
)
from replication.core.rows.convert import cells, deletes, upserts_from_arrow, upserts_from_rows
from replication.core.rows.input import row_pieces
from replication.core.rows.mutation import Mutation, cells_of, check_history
from replication.errors import ConditionalMutationError, HistoryError, NullKeyError, SchemaError


def uuids() -> Iterator[UUID]:
    return iter(uuid4, None)


def table(schema: pa.Schema, key: Sequence[str] = ("k",), **more: object) -> TableSpec:
    return typed_table("t.t", schema, key, uuids=uuids(), **more)  # type: ignore[arg-type]


def logged(log: LogBatch) -> list[dict[str, object]]:
    """What replay will see: through the payload's bytes and the schema version's."""
    version = SchemaVersion.load(log.version.table, log.version.group, log.version.hash, log.version.body)
    made: list[dict[str, object]] = decode_payload(encode_payload(log.batch, Codec.LZ4), version).to_pylist()
    return made


def column(kind: pa.DataType, values: Sequence[object] | pa.Array, declared: pa.DataType | None = None) -> list[object]:
    """``values``, given as Arrow of type ``kind``, as the log has them."""
    array = values if isinstance(values, pa.Array) else pa.array(values, kind)
    spec = table(pa.schema([("k", pa.int64()), ("v", declared or kind)]))
    data = pa.table({"k": pa.array(range(len(array)), pa.int64()), "v": array})
    (log,) = upserts_from_arrow(data, spec)
    return [row["v"] for row in logged(log)]


CHANGED_SILENTLY: list[tuple[pa.DataType, object]] = [
    (pa.int64(), 1.5),
    (pa.int64(), Decimal("1.5")),
    (pa.date32(), dt.datetime(2020, 1, 1, 5)),
    (pa.timestamp("us"), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
    (pa.timestamp("us", tz="UTC"), dt.datetime(2020, 1, 1)),
    (pa.timestamp("us"), pd.Timestamp("2020-01-01T00:00:00.000000001")),
    (pa.list_(pa.string()), "text"),
    (pa.list_(pa.int64()), [1, 2.5]),
    (pa.struct([("a", pa.int64())]), {"a": 1, "b": 2}),
    (pa.struct([("a", pa.int64())]), {"a": 1.5}),
    (pa.map_(pa.string(), pa.int64()), [("k", 1.5)]),
]


@pytest.mark.parametrize(("kind", "value"), CHANGED_SILENTLY, ids=repr)
def test_python_values_that_arrow_would_change_without_a_word_are_refused_by_name(
    kind: pa.DataType, value: object
) -> None:
    spec = table(pa.schema([("k", pa.int64()), ("v", kind)]))
    for rows in ([{"k": 1, "v": value}], [{"k": 1, "v": None}, {"k": 2, "v": value}]):
        with pytest.raises(SchemaError, match="'v'"):
            upserts_from_rows(rows, spec)


def test_python_values_that_fit_are_taken() -> None:
    kinds = {
        "i": pa.int32(),
        "d": pa.date32(),
        "t": pa.timestamp("us", tz="UTC"),
        "l": pa.list_(pa.int64()),
        "f": pa.float32(),
    }
    spec = table(pa.schema([("k", pa.int64()), *kinds.items()]))
    moment = dt.datetime(1969, 1, 1, tzinfo=dt.UTC)
    row = {"k": np.int64(1), "i": np.int32(-5), "d": dt.date(1969, 1, 1), "t": moment, "l": (1, None), "f": 0.1}
    (log,) = upserts_from_rows([row], spec)
    (got,) = logged(log)
    assert (got["k"], got["i"], got["d"], got["t"], got["l"]) == (1, -5, dt.date(1969, 1, 1), moment, [1, None])
    assert got["f"] == pytest.approx(0.1)


EXACT: list[tuple[pa.DataType, list[object]]] = [
    (pa.bool_(), [True, False, None]),
    (pa.int8(), [-128, 127, None]),
    (pa.int64(), [-(1 << 63), (1 << 63) - 1, 0, None]),
    (pa.uint32(), [(1 << 32) - 1, 0]),
    (pa.uint64(), [(1 << 63) - 1, 0, None]),
    (pa.float64(), [0.1, -0.0, math.inf, -math.inf, 5e-324, None]),
    (pa.float32(), [0.5, None]),
    (pa.string(), ["", "a\0b", "één 🜚", None]),
    (pa.large_string(), ["", "x" * 1000, None]),
    (pa.string_view(), ["", "short", "longer than twelve bytes", None]),
    (pa.binary(), [b"", b"\0", bytes(range(256)), None]),
    (pa.binary(4), [b"\0\0\0\0", b"abcd", None]),
    (pa.date32(), [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31), None]),
    (pa.timestamp("us"), [dt.datetime(1969, 12, 31, 23, 59, 59, 999999), dt.datetime(1, 1, 1), None]),
    (pa.timestamp("s"), [dt.datetime(1901, 12, 13, 20, 45, 52), None]),
    (pa.decimal128(38, 10), [Decimal("-1234567890123456789012345678.0123456789"), Decimal("0E-10"), None]),
    (pa.decimal128(3, 3), [Decimal("0.001"), Decimal("-0.999")]),
    (pa.list_(pa.int32()), [[], [1, None, 3], None]),
    (pa.large_list(pa.string()), [[""], [None], None]),
    (pa.list_(pa.int64(), 2), [[1, 2], None]),
    (pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]), [{"a": None, "b": [""]}, None]),
    (pa.map_(pa.string(), pa.struct([("x", pa.date32())])), [[("k", {"x": None})], [], None]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a", None]),
]


@pytest.mark.parametrize(("kind", "values"), EXACT, ids=[str(kind) for kind, _ in EXACT])
def test_values_survive_exactly(kind: pa.DataType, values: list[object]) -> None:
    assert column(kind, values) == values


def test_nan_stays_nan_and_null_stays_null_in_arrow() -> None:
    nan, null, signed = column(pa.float64(), [math.nan, None, -0.0])
    assert isinstance(nan, float) and math.isnan(nan)
    assert null is None
    assert math.copysign(1, signed) == -1  # type: ignore[arg-type]


def test_nan_in_pandas_becomes_null() -> None:
    frame = pd.DataFrame({"k": [1, 2], "v": [math.nan, 1.5], "t": [math.nan, math.nan]}, index=["not", "kept"])
    (data,) = row_pieces(frame)
    assert isinstance(data, pa.Table)
    (log,) = upserts_from_arrow(data, table(pa.schema([("k", pa.int64()), ("v", pa.float64()), ("t", pa.string())])))
    assert [(row["v"], row["t"]) for row in logged(log)] == [(None, None), (1.5, None)]


def test_nanoseconds_convert_when_nothing_is_lost() -> None:
    lossless = pa.array([-1000, 0, 1_700_000_000_123_456_000], pa.timestamp("ns"))
    got = column(pa.timestamp("ns"), lossless)
    assert [pa.scalar(value, pa.timestamp("us")).value for value in got] == [-1, 0, 1_700_000_000_123_456]
    with pytest.raises(SchemaError, match="'v'"):
        column(pa.timestamp("ns"), pa.array([1], pa.timestamp("ns")))


def test_uint64_above_the_signed_range_is_refused_by_name() -> None:
    with pytest.raises(SchemaError, match="'v'"):
        column(pa.uint64(), [1 << 63])


def test_instants_keep_their_moment_whatever_zone_they_come_in() -> None:
    given = pa.array([0], pa.timestamp("us", tz="America/New_York"))
    (moment,) = column(given.type, given)
    assert moment == dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def test_local_times_are_not_taken_for_instants() -> None:
    with pytest.raises(SchemaError, match="'v'"):
        column(pa.timestamp("us"), [dt.datetime(2020, 1, 1)], declared=pa.timestamp("us", tz="UTC"))


@pytest.mark.parametrize(
    ("kind", "values", "declared"),
    [
        (pa.string(), ["1"], pa.int64()),
        (pa.int64(), [1 << 40], pa.int32()),
        (pa.float64(), [1.5], pa.int64()),
        (pa.int64(), [1], pa.string()),
        (pa.decimal128(10, 3), [Decimal("1.001")], pa.decimal128(10, 2)),
        (pa.float64(), [0.1], pa.float32()),
        (pa.binary(), [b"\xff"], pa.string()),
    ],
    ids=str,
)
def test_what_does_not_fit_without_loss_is_refused_by_name(
    kind: pa.DataType, values: list[object], declared: pa.DataType
) -> None:
    with pytest.raises(SchemaError, match="'v'"):
        column(kind, values, declared)


@pytest.mark.parametrize(
    "kind",
    [pa.duration("s"), pa.month_day_nano_interval(), pa.time64("us"), pa.time32("s"), pa.decimal256(60, 2)],
    ids=str,
)
def test_types_that_iceberg_cannot_hold_are_refused_when_the_table_is_made(kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="'v'"):
        table(pa.schema([("k", pa.int64()), ("v", kind)]))
    with pytest.raises(SchemaError, match="'v.inner'"):
        table(pa.schema([("k", pa.int64()), ("v", pa.struct([("inner", kind)]))]))


def test_null_in_a_key_is_refused_however_it_comes() -> None:
    spec = table(pa.schema([("k", pa.string()), ("v", pa.int64())]))
    with pytest.raises(NullKeyError, match="'k'"):
        upserts_from_rows([{"k": None, "v": 1}], spec)
    with pytest.raises(NullKeyError, match="'k'"):
        upserts_from_rows([{"v": 1}], spec)
    with pytest.raises(NullKeyError, match="'k'"):
        upserts_from_arrow(pa.table({"k": pa.array([None], pa.string())}), spec)
    with pytest.raises(NullKeyError, match="'k'"):
        deletes([{"k": None}], spec)
    hidden = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["a", None], pa.string()))
    with pytest.raises(NullKeyError, match="'k'"):
        upserts_from_arrow(pa.table({"k": hidden}), spec)
    with pytest.raises(SchemaError, match="'k'"):
        upserts_from_arrow(pa.table({"v": [1]}), spec)


def test_unknown_and_repeated_columns_are_refused_by_name() -> None:
    spec = table(pa.schema([("k", pa.int64()), ("v", pa.int64())]))
    with pytest.raises(SchemaError, match="'w'"):
        upserts_from_rows([{"k": 1, "w": 1}], spec)
    with pytest.raises(SchemaError, match="'w'"):
        upserts_from_arrow(pa.table({"k": [1], "w": [1]}), spec)
    for log in (upserts_from_arrow, deletes):
        with pytest.raises(SchemaError, match="twice"):
            log(pa.table([pa.array([1]), pa.array([2])], names=["k", "k"]), spec)


def test_a_value_that_does_not_fit_is_refused_by_name_among_rows() -> None:
    spec = table(pa.schema([("k", pa.int64()), ("v", pa.int32())]))
    for value in ("text", 1 << 40, 1.5, b"x"):
        with pytest.raises(SchemaError, match="'v'"):
            upserts_from_rows([{"k": 1, "v": value}], spec)


GROUPED = pa.schema([("k", pa.int64()), ("a", pa.int64()), ("b", pa.int64()), ("c", pa.int64())])


def test_an_upsert_touches_the_groups_it_has_a_column_of_and_no_others() -> None:
    spec = table(GROUPED, groups={"left": ["a"], "right": ["b", "c"]})
    (right,) = upserts_from_arrow(pa.table({"k": [1], "b": [2]}), spec)
    assert right.group == "right"
    assert logged(right) == [{"_op": PUT, "k": 1, "b": 2, "c": None}], "an omitted column of a touched group is NULL"
    (only_key,) = upserts_from_arrow(pa.table({"k": [1]}), spec)
    assert only_key.group == "left"


def test_rows_that_touch_different_groups_keep_their_order_within_each_group() -> None:
    spec = table(GROUPED, groups={"left": ["a"], "right": ["b", "c"]})
    rows = [{"k": 1, "a": 1, "b": 1}, {"k": 1, "a": 2}, {"k": 1, "a": 3, "b": 3}, {"k": 1}]
    left, right = upserts_from_rows(rows, spec)
    assert [row["a"] for row in logged(left)] == [1, 2, 3, None]
    assert [row["b"] for row in logged(right)] == [1, 3]


def test_a_delete_is_a_tombstone_in_every_group() -> None:
    spec = table(GROUPED, groups={"left": ["a"], "right": ["b", "c"]})
    for keys in ([{"k": 1}], pa.table({"k": [1]})):
        left, right = deletes(keys, spec)
        assert logged(left) == [{"_op": DELETE, "k": 1, "a": None}]
        assert logged(right) == [{"_op": DELETE, "k": 1, "b": None, "c": None}]
    for wrong in (pa.table({"k": [1], "a": [1]}), pa.table({"a": [1]}), [{"k": 1, "a": 2}]):
        with pytest.raises(SchemaError):
            deletes(wrong, spec)
    with pytest.raises(SchemaError, match="no key"):
        deletes([{"k": 1}], table(GROUPED, ()))


def test_cells_go_to_the_group_of_their_family() -> None:
    spec = cell_table("t.cells", uuids=uuids(), groups={"meta": ["m"]})
    mutation = (
        Mutation("r").put("m", "q", "v", "secret", 5).put("other", "q", b"\0").delete("m", "q").delete("m", "q", "", 7)
    )
    meta, rest = cells(cells_of([mutation], spec.name), spec)
    assert meta.group == "meta" and rest.group == "default"
    assert [(row["_op"], row["_ts"], row["value"]) for row in logged(meta)] == [
        (PUT, 5, b"v"),
        (DELETE, None, None),
        (DELETE_AT, 7, None),
    ]
    assert logged(rest)[0] == {
        "_op": PUT, "_ts": None, "row": b"r", "family": "other", "qualifier": "q", "visibility": "", "value": b"\0",
    }  # fmt: skip


def test_a_family_in_bytes_is_the_one_in_text() -> None:
    spec = cell_table("t.cells", uuids=uuids(), groups={"meta": ["m"]})
    mutation = Mutation("r").put(b"m", bytearray(b"q"), "v", b"a&b").delete(b"m", "q")
    (meta,) = cells(cells_of([mutation], spec.name), spec)
    assert meta.group == "meta"
    assert {(row["family"], row["qualifier"]) for row in logged(meta)} == {("m", "q")}
    for wrong in (5, None, b"\xff", ["m"]):
        with pytest.raises(SchemaError, match="family .* is not text"):
            Mutation("r").put(wrong, "q", "v")  # type: ignore[arg-type]
    for time in (1.5, "now", True):
        with pytest.raises(SchemaError, match="not an integer"):
            Mutation("r").delete("m", "q", timestamp=time)  # type: ignore[arg-type]
    row = {"row": b"r", "family": b"m", "qualifier": "q", "visibility": "", "value": b"v"}
    with pytest.raises(SchemaError, match="is not text"):
        upserts_from_rows([row], spec)


def test_cells_upserted_or_deleted_as_rows_go_to_the_group_of_their_family_only() -> None:
    spec = cell_table("t.cells", uuids=uuids(), groups={"meta": ["m", "n"]})
    rows = [
        {"row": b"r", "family": family, "qualifier": str(number), "visibility": "", "value": b"v"}
        for number, family in enumerate(["m", "x", "n", "default"])
    ]
    keys = [{name: row[name] for name in spec.key} for row in rows]
    arrow = pa.Table.from_pylist(rows, pa.schema([(c.name, c.type) for c in spec.columns]))
    made = {
        "rows": upserts_from_rows(rows, spec),
        "arrow": upserts_from_arrow(arrow, spec),
        "deletes": deletes(keys, spec),
        "arrow deletes": deletes(arrow.drop_columns(["value"]), spec),
    }
    for how, logs in made.items():
        found = {log.group: [(row["_op"], row["family"]) for row in logged(log)] for log in logs}
        op = DELETE if "deletes" in how else PUT
        assert found == {"meta": [(op, "m"), (op, "n")], "default": [(op, "x"), (op, "default")]}, how
        assert all(log.batch.column("_ts").null_count == log.batch.num_rows for log in logs)
    assert [log.group for log in upserts_from_arrow(arrow.slice(0, 1), spec)] == ["meta"]
    with pytest.raises(NullKeyError, match="'family'"):
        upserts_from_rows([{**rows[0], "family": None}], spec)


def test_conditional_mutations_are_refused_with_the_reason() -> None:  # 004-4
    with pytest.raises(ConditionalMutationError, match="two clusters"):
        cells_of([Mutation("r").condition("f", "q", "old").put("f", "q", "new")], "t.cells")


def test_a_timestamp_older_than_the_history_is_refused() -> None:
    now, spec = 1_700_000_000_000_000, cell_table("t.cells", uuids=iter(uuid4, None), history_s=60)
    check_history(Mutation("r").put("f", "q", "v", timestamp=now - 60_000_000).cells, spec, now)
    with pytest.raises(HistoryError, match="t.cells"):
        check_history(Mutation("r").put("f", "q", "v", timestamp=now - 60_000_001).cells, spec, now)


def test_split_keeps_every_row_in_order_and_bounds_rows_and_bytes() -> None:
    spec = table(pa.schema([("k", pa.int64()), ("v", pa.binary())]))
    for count, size in ((FRAME_ROWS_MAX * 2 + 1, 1), (40, 1 << 20)):
        data = pa.table({"k": range(count), "v": [b"x" * size] * count})
        (log,) = upserts_from_arrow(data, spec)
        pieces = list(split(log))
        assert [k for piece in pieces for k in piece.batch["k"].to_pylist()] == list(range(count))
        assert all(piece.batch.num_rows <= FRAME_ROWS_MAX for piece in pieces)
        assert all(piece.batch.nbytes <= FRAME_PAYLOAD_BYTES for piece in pieces)


def test_a_row_too_large_for_a_frame_is_refused() -> None:
    spec = table(pa.schema([("k", pa.int64()), ("v", pa.binary())]))
    (log,) = upserts_from_rows([{"k": 1, "v": bytes(ROW_BYTES_MAX + 1)}], spec)
    with pytest.raises(SchemaError, match="bytes"):
        list(split(log))


def test_a_payload_of_another_schema_is_an_error_not_other_values() -> None:
    one = table(pa.schema([("k", pa.int64()), ("v", pa.binary())]))
    (log,) = upserts_from_rows([{"k": 1, "v": b"x"}], one)
    with pytest.raises(SchemaError):
        decode_payload(encode_payload(log.batch, Codec.LZ4)[:-40], log.version)


@pytest.mark.parametrize("rows", [5, "text", [1, 2], [{"k": 1}, None], None], ids=str)
def test_what_is_no_table_is_refused(rows: object) -> None:
    with pytest.raises(SchemaError, match="neither Arrow"):
        list(row_pieces(rows))


def test_all_that_speaks_arrow_is_taken() -> None:
    data = pa.table({"k": [1, 2]})
    taken: list[object] = [data, data.to_batches()[0], data.to_reader(), data.to_pylist(), iter(data.to_pylist())]
    for rows in taken:
        found = [
            row for piece in row_pieces(rows) for row in (piece.to_pylist() if isinstance(piece, pa.Table) else piece)
        ]
        assert found == [{"k": 1}, {"k": 2}]
    assert list(row_pieces({"k": 1})) == [[{"k": 1}]]


def test_rows_of_a_generator_are_taken_a_frame_at_a_time() -> None:
    taken: list[int] = []

    def coming() -> Iterator[dict[str, object]]:
        for n in range(200_000):
            taken.append(n)
            yield {"k": n}

    pieces = row_pieces(coming())
    assert len(next(pieces)) == len(taken) == FRAME_ROWS_MAX
    assert sum(map(len, pieces)) == 200_000 - FRAME_ROWS_MAX
    assert [len(piece) for piece in row_pieces([{"k": 1}] * (FRAME_ROWS_MAX + 1))] == [FRAME_ROWS_MAX + 1]
