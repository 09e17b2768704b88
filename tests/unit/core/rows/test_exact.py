"""What Arrow would take and make something else of, without a word, is refused by the column's name."""

from __future__ import annotations

import datetime as dt
from collections import UserDict, namedtuple
from decimal import Decimal
from uuid import uuid4

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from replication.core.definition.define import typed_table
from replication.core.definition.schema import TableSpec
from replication.core.definition.text import parse_schema
from replication.core.rows.convert import upserts_from_arrow, upserts_from_rows
from replication.core.rows.input import row_pieces
from replication.errors import SchemaError

NOON = dt.datetime(2020, 1, 1, 12)
NOON_ABROUTE = NOON.replace(tzinfo=dt.timezone(dt.timedelta(hours=3)))
TURNED = namedtuple("TURNED", "b a")


def table(kind: str) -> TableSpec:
    return typed_table("t.t", parse_schema(f"k bigint, v {kind}"), ["k"], uuids=iter(uuid4, None))


def logged(kind: str, value: object) -> object:
    (log,) = upserts_from_rows([{"k": 1, "v": value}], table(kind))
    return log.batch.column("v").to_pylist()[0]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("timestamp", 1_577_880_000.5),
        ("timestamp", Decimal("0.5")),
        ("timestamptz", 1_577_880_000.5),
        ("timestamp", pd.NaT),
        ("date", 18_262.5),
        ("date", pd.NaT),
        ("list<timestamp>", [0.5]),
        ("list<timestamp>", np.array(["2020-01-01"], "datetime64[s]")),
        ("list<timestamp>", np.array(["2020-01-01"], "datetime64[ms]")),
        ("list<timestamp>", np.array(["2020-01-01"], "datetime64[ns]")),
        ("list<timestamptz>", np.array(["2020-01-01"], "datetime64[us]")),
        ("map<string, list<timestamp>>", {"a": np.array(["2020-01-01"], "datetime64[s]")}),
        ("list<int>", np.ma.masked_array([1, 2], mask=[False, True])),
        ("list<double>", np.ma.masked_array([1.0, 2.0], mask=[False, True])),
        ("float", 1e39),
        ("float", -3.5e38),
        ("list<float>", np.array([1e300])),
        ("struct<a: int, b: int>", TURNED(b=1, a=2)),
        ("struct<a: int>", (1.5,)),
        ("struct<a: date>", [("a", NOON)]),
        ("struct<a: int>", UserDict(a=1)),
        ("map<string, int>", UserDict(a=1)),
        ("map<string, int>", [{"key": "a", "value": 1}]),
    ],
    ids=repr,
)
def test_a_value_that_arrow_would_change_is_refused(kind: str, value: object) -> None:
    with pytest.raises(SchemaError, match="column 'v'"):
        logged(kind, value)


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        ("timestamp", 5, dt.datetime(1970, 1, 1, 0, 0, 0, 5)),
        ("timestamp", pd.Timestamp(NOON), NOON),
        ("timestamp", np.datetime64(NOON, "us"), NOON),
        ("list<timestamp>", np.array([NOON, "NaT"], "datetime64[us]"), [NOON, None]),
        ("list<timestamp>", pd.Series([NOON]), [NOON]),
        ("timestamptz", NOON_ABROUTE, NOON_ABROUTE),
        ("date", NOON.date(), NOON.date()),
        ("float", float("inf"), float("inf")),
        ("float", float.fromhex("0x1.fffffefffffffp127"), float.fromhex("0x1.fffffep127")),
        ("struct<a: int, b: int>", (1, 2), {"a": 1, "b": 2}),
        ("struct<a: int, b: date>", [("a", 1), ("b", NOON.date())], {"a": 1, "b": NOON.date()}),
        ("map<string, int>", [("a", 1)], [("a", 1)]),
    ],
    ids=repr,
)
def test_a_value_that_fits_is_kept(kind: str, value: object, kept: object) -> None:
    assert logged(kind, value) == kept


def test_rows_may_be_mappings_that_are_no_dicts() -> None:
    assert logged("int", 1) == 1
    (log,) = upserts_from_rows([UserDict(k=1, v=2)], table("int"))
    assert log.batch.column("v").to_pylist() == [2]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("timestamp", [NOON, NOON_ABROUTE]),
        ("timestamptz", [NOON_ABROUTE, NOON]),
        ("timestamptz", [NOON_ABROUTE, None, NOON]),
        ("timestamp", [pd.Timestamp(1, unit="ns")]),
        ("timestamp", [NOON, 5.5]),
        ("date", [NOON.date(), NOON]),
        ("list<timestamp>", [[NOON, NOON_ABROUTE]]),
        ("struct<a: date>", [{"a": NOON.date()}, {"a": NOON}]),
    ],
    ids=repr,
)
def test_times_among_the_objects_of_a_pandas_frame_are_looked_at_too(kind: str, values: list[object]) -> None:
    frame = pd.DataFrame({"k": range(len(values)), "v": pd.Series(values, dtype=object)})
    with pytest.raises(SchemaError, match="column 'v'"):
        upserts_from_arrow(next(row_pieces(frame)), table(kind))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("timestamptz", [NOON_ABROUTE, None, pd.NaT, float("nan"), pd.NA]),
        ("date", [NOON.date(), pd.NaT]),
        ("list<timestamp>", [np.array([NOON], "datetime64[s]"), None]),
        ("list<bigint>", [[1, float("nan")], float("nan")]),
    ],
    ids=repr,
)
def test_objects_of_a_pandas_frame_that_fit_are_taken(kind: str, values: list[object]) -> None:
    frame = pd.DataFrame({"k": range(len(values)), "v": pd.Series(values, dtype=object)})
    (log,) = upserts_from_arrow(next(row_pieces(frame)), table(kind))  # type: ignore[arg-type]
    first, *others = log.batch.column("v").to_pylist()
    assert first is not None
    assert not any(others)


def test_a_class_derived_from_a_pandas_frame_is_one() -> None:
    class Mine(pd.DataFrame):
        pass

    (made,) = row_pieces(Mine({"v": [1]}, index=pd.Index([7], name="k")))
    assert isinstance(made, pa.Table)
    assert made.column_names == ["v"]


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame([[1, 2]], columns=["k", "k"]),
        pd.DataFrame({"k": pd.arrays.SparseArray([0, 1])}),
        pd.DataFrame({"k": [1 << 70]}),
    ],
    ids=["a column twice", "sparse", "a number of 71 bits"],
)
def test_a_pandas_frame_that_cannot_be_arrow_is_refused(frame: pd.DataFrame) -> None:
    with pytest.raises(SchemaError, match="pandas"):
        next(row_pieces(frame))


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("decimal(10,2)", Decimal("99999999999.5"), "99999999999.5 is not a number with at most 8 digits before"),
        ("decimal(10,2)", Decimal("1.234"), "1.234 is not a number with at most 8 digits before the point and 2 after"),
        ("decimal(10,2)", 1.5, "got float"),
        ("int", 1 << 31, "2147483648 is not a decimal whole number in the range of int32"),
        pytest.param("bigint", 10**5000, "too large", id="of 5,000 digits"),
    ],
)
def test_a_number_that_does_not_fit_is_shown_beside_what_the_column_holds(kind: str, value: object, said: str) -> None:
    with pytest.raises(SchemaError, match=f"column 'v' holds .*{said}"):
        logged(kind, value)
