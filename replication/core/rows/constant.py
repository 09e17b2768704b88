"""Arrays of constants and row numbers, made once and sliced: allocating memory costs more than filling it."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa

_SHARED_ROWS_MAX = 1 << 16


def constant(value: object, kind: pa.DataType, count: int) -> pa.Array:
    """Return one value ``count`` times; up to 65,536 as a slice of a shared array."""
    if count > _SHARED_ROWS_MAX:
        return pa.repeat(pa.scalar(value, kind), count)
    rounded = 1 << max(0, count - 1).bit_length()
    return _repeated(value, kind, rounded).slice(0, count)


def row_numbers(count: int) -> pa.Array:
    """Return 0, 1, … as 32-bit integers; up to 65,536 as a slice of a shared array."""
    return _numbers().slice(0, count) if count <= _SHARED_ROWS_MAX else pa.arange(0, count).cast(pa.int32())


@lru_cache(maxsize=12)
def _repeated(value: object, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


@lru_cache(maxsize=1)
def _numbers() -> pa.Array:
    return pa.arange(0, _SHARED_ROWS_MAX).cast(pa.int32())
