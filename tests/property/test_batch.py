"""Any value a table can hold comes out of the log as it went in, from rows and from Arrow, alone and in slices."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from uuid import UUID, uuid4

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from replication.core.definition.define import typed_table
from replication.core.definition.schema import TableSpec
from replication.core.frame import Codec
from replication.core.rows.batch import LogBatch, decode_payload, encode_payload, split
from replication.core.rows.convert import upserts_from_arrow, upserts_from_rows
from tests.budget import examples

LEAVES: list[tuple[pa.DataType, st.SearchStrategy[object]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int32(), st.integers(-(1 << 31), (1 << 31) - 1)),
    (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), st.text(st.characters(codec="utf-8"), max_size=20)),
    (pa.binary(), st.binary(max_size=20)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("us", tz="UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    (pa.decimal128(20, 5), st.decimals("-999999999999999", "999999999999999", places=5).map(lambda d: d + Decimal(0))),
]


def _nested(depth: int) -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[object]]]:
    leaf = st.sampled_from(LEAVES)
    if depth == 0:
        return leaf
    inner = _nested(depth - 1)
    lists = inner.map(lambda t: (pa.list_(t[0]), st.lists(st.none() | t[1], max_size=4)))
    structs = st.tuples(inner, inner).map(
        lambda ts: (
            pa.struct([("a", ts[0][0]), ("b", ts[1][0])]),
            st.fixed_dictionaries({"a": st.none() | ts[0][1], "b": st.none() | ts[1][1]}),
        )
    )
    return leaf | lists | structs


def _uuids() -> Iterator[UUID]:
    return iter(uuid4, None)


@st.composite
def tables(draw: st.DrawFn) -> tuple[TableSpec, list[dict[str, object]]]:
    columns = draw(st.lists(_nested(2), min_size=1, max_size=4))
    schema = pa.schema([("k", pa.int64()), *((f"c{n}", kind) for n, (kind, _) in enumerate(columns))])
    row = st.fixed_dictionaries(
        {"k": st.integers(0, 99), **{f"c{n}": st.none() | v for n, (_, v) in enumerate(columns)}}
    )
    rows = draw(st.lists(row, min_size=1, max_size=8))
    return typed_table("t.t", schema, ["k"], uuids=_uuids()), rows


def _logged(logs: list[LogBatch], codec: Codec) -> list[dict[str, object]]:
    made: list[dict[str, object]] = []
    for log in logs:
        for piece in split(log):
            made += decode_payload(encode_payload(piece.batch, codec), piece.version).to_pylist()
    return made


@given(tables(), st.sampled_from(Codec))
@examples(150)
def test_rows_come_out_as_they_went_in(made: tuple[TableSpec, list[dict[str, object]]], codec: Codec) -> None:
    spec, rows = made
    assert _logged(upserts_from_rows(rows, spec), codec) == [{"_op": 0, **row} for row in rows]


@given(tables(), st.data())
@examples(150)
def test_slices_and_chunks_of_arrow_come_out_as_they_went_in(
    made: tuple[TableSpec, list[dict[str, object]]], data: st.DataObject
) -> None:
    spec, rows = made
    schema = pa.schema([(column.name, column.type) for column in spec.columns])
    whole = pa.Table.from_pylist(rows, schema)
    cut = data.draw(st.integers(0, len(rows)))
    chunked = pa.concat_tables([whole.slice(0, cut), whole.slice(cut)])
    begin = data.draw(st.integers(0, len(rows) - 1))
    part = chunked.slice(begin)
    assert _logged(upserts_from_arrow(part, spec), Codec.LZ4) == [{"_op": 0, **row} for row in rows[begin:]]


@given(tables())
@examples(50)
def test_equal_rows_have_equal_payloads_as_batch_ids_need(made: tuple[TableSpec, list[dict[str, object]]]) -> None:
    spec, rows = made
    schema = pa.schema([(column.name, column.type) for column in spec.columns])
    (from_rows,) = upserts_from_rows(rows, spec)
    padded = pa.Table.from_pylist([rows[0], *rows, rows[-1]], schema).slice(1, len(rows))
    (from_slice,) = upserts_from_arrow(padded, spec)
    assert encode_payload(from_rows.batch, Codec.LZ4) == encode_payload(from_slice.batch, Codec.LZ4)


@given(tables())
@examples(50)
def test_table_definitions_round_trip(made: tuple[TableSpec, list[dict[str, object]]]) -> None:
    spec, _ = made
    again = TableSpec.from_json(spec.to_json())
    assert again == spec
    assert {n: v.hash for n, v in again.versions.items()} == {n: v.hash for n, v in spec.versions.items()}
