"""Arrays whose values are known beforehand: made once and cut to length, since new memory is dearer than the values."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa


def constant(value: object, of: pa.DataType, count: int) -> pa.Array:
    """``count`` times one value; cut out of an array that others share."""
    return _repeated(value, of, 1 << count.bit_length()).slice(0, count)


def row_numbers(count: int) -> pa.Array:
    """0, 1, … as 32-bit integers; cut out of an array that others share."""
    return _numbers(1 << count.bit_length()).slice(0, count)


@lru_cache(maxsize=32)
def _repeated(value: object, of: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, of), count)


@lru_cache(maxsize=4)
def _numbers(count: int) -> pa.Array:
    return pa.arange(0, count).cast(pa.int32())
