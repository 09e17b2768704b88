"""Rows of an append that goes on by itself: what the caller changes afterwards changes nothing."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from replication.core.rows.input import copied, row_pieces
from replication.errors import SchemaError


@pytest.mark.parametrize(
    ("value", "as_it_was"),
    [
        (np.array([1, 2]), [1, 2]),
        ([np.array([1, 2])], [[1, 2]]),
        ({"a": np.array([1, 2])}, {"a": [1, 2]}),
        (pd.Series([1, 2]), [1, 2]),
        (deque([1, 2]), [1, 2]),
        ([[1, 2]], [[1, 2]]),
        (bytearray(b"ab"), [97, 98]),
        (memoryview(bytearray(b"ab")), [97, 98]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_can_be_changed_in_place_is_copied(value: Any, as_it_was: object) -> None:
    rows = copied([{"k": 1, "v": value}])
    inner = value["a"] if isinstance(value, dict) else value
    inner = inner[0] if isinstance(inner, list) else inner
    inner[0], inner[1] = 8, 9
    assert isinstance(rows, list)
    assert _plain(rows[0]["v"]) == as_it_was


def test_what_cannot_be_copied_is_left_to_the_conversion() -> None:
    coming = (number for number in range(3))
    assert copied([{"v": coming}]) == [{"v": coming}]


def _plain(value: Any) -> object:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [each if np.isscalar(each) else _plain(each) for each in value]


@pytest.mark.parametrize("rows", [pa.array([1, 2]), pa.chunked_array([[1, 2]])], ids=type)
def test_arrow_without_columns_is_refused_with_what_to_give(rows: object) -> None:
    with pytest.raises(SchemaError, match="have no columns") as caught:
        list(row_pieces(rows))
    assert "pa.table" in caught.value.hint
