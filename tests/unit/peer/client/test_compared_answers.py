"""Of what another cluster answers when it is asked for keys, only the columns that were asked for are taken."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from peer.client.comparison import ComparedCluster, ComparedTable
from peer.verify.digest import Reading
from replication.core.definition.schema import TableSpec
from replication.errors import FormatError
from replication.link import questions as q
from replication.tables.base import open_duckdb
from tests.tables_made import keyed

KEY = {"a": pa.int64(), "t": pa.timestamp("us", tz="UTC"), "d": pa.decimal128(9, 2)}
NESTED = {"m": pa.map_(pa.string(), pa.date32()), "s": pa.struct([("x", pa.list_(pa.float32())), ("y", pa.binary())])}
SPEC = keyed("ops.t", pa.schema(list((KEY | NESTED).items())), tuple(KEY))
WITHOUT_KEY = keyed("ops.u", pa.schema(list((KEY | NESTED).items())), ())


def keys(answered: pa.RecordBatch, spec: TableSpec = SPEC) -> list[pa.RecordBatch]:
    def ask(question: bytes) -> Iterator[bytes]:
        yield from (q.encode_answer(q.RowsAnswer(answered)), q.encode_answer(q.End()))

    return list(ComparedTable(ComparedCluster("west", ask), spec, ()).keys([0]))


def answer(spec: TableSpec) -> pa.RecordBatch:
    """What a side answers that has one row."""
    row = {"a": 1, "d": 2, "m": [("k", None)], "s": {"x": [0.5], "y": b"b"}}
    rows = pa.Table.from_pylist([row], pa.schema([(column.name, column.type) for column in spec.columns]))
    with open_duckdb() as connection:
        connection.register("rows", rows)
        (found,) = Reading(connection, "rows", rows.column_names, spec.key).keys(range(4096))
        return found


@pytest.mark.parametrize("spec", [SPEC, WITHOUT_KEY])
def test_columns_of_any_type_are_taken(spec: TableSpec) -> None:
    assert keys(answer(spec), spec) == [answer(spec)]


@pytest.mark.parametrize("column", range(6))
def test_rows_of_other_columns_are_refused(column: int) -> None:
    true = answer(SPEC)
    name = true.schema.names[column]
    for other in (
        true.drop_columns([name]),
        true.set_column(column, name, pa.array(["x"])),
        true.append_column(name, true.column(column)),
    ):
        with pytest.raises(FormatError, match="other columns"):
            keys(other)
