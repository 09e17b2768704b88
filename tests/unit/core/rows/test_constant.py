"""Shared arrays: as if made for the caller, and not kept when they are large."""

from __future__ import annotations

import pyarrow as pa
import pytest

from replication.core.rows import constant as shared
from replication.core.rows.constant import constant, row_numbers


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4096, 65_535, 65_536, 65_537])
def test_they_are_as_long_as_asked_for(count: int) -> None:
    for value, of in (("east", pa.string()), (7, pa.int8()), (None, pa.int64())):
        assert constant(value, of, count).equals(pa.array([value] * count, of))
    assert row_numbers(count).equals(pa.array(range(count), pa.int32()))


def test_large_ones_are_not_kept() -> None:
    shared._repeated.cache_clear()
    constant(1, pa.int8(), 10_000_000)
    assert shared._repeated.cache_info().currsize == 0
    constant(1, pa.int8(), 65_000)
    assert len(shared._repeated(1, pa.int8(), 65_536)) == 65_536
    assert shared._repeated.cache_info().currsize == 1
