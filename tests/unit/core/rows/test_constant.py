"""Shared arrays: as if made for the caller, and not kept when they are large."""

from __future__ import annotations

import pyarrow as pa
import pytest

from replication.core.rows.constant import constant, row_numbers


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4096, 65_535, 65_536, 65_537])
def test_they_are_as_long_as_asked_for(count: int) -> None:
    for value, of in (("east", pa.string()), (7, pa.int8()), (None, pa.int64())):
        assert constant(value, of, count).equals(pa.array([value] * count, of))
    assert row_numbers(count).equals(pa.array(range(count), pa.int32()))


def test_large_ones_are_not_kept() -> None:
    def address(array: pa.Array) -> int:
        return int(array.buffers()[1].address)

    one, two = (constant(1, pa.int8(), 10_000_000) for _ in range(2))
    assert address(one) != address(two)
    one, two = constant(1, pa.int8(), 65_000), constant(1, pa.int8(), 40_000)
    assert address(one) == address(two), "both are cut out of one array"
