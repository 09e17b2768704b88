"""Accept only dates and times of years 1 to 9999: Python has no others, so reads and replay would fail."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from replication.errors import SchemaError

_DAYS = (-719_162, 2_932_896)
_SECONDS = (-62_135_596_800, 253_402_300_800)
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def check_years(batch: pa.RecordBatch) -> None:
    """Raise SchemaError when a date or time of a log batch, at any depth, is outside of years 1 to 9999."""
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        if _has_times(array.type) and not _is_within(array):
            raise SchemaError(
                f"column {name!r} was given a value before year 1 or after year 9999, in UTC",
                "Give NULL for no time, or store such times as numbers",
            )


@lru_cache(maxsize=1024)
def _has_times(kind: pa.DataType) -> bool:
    t = pa.types
    if t.is_nested(kind):
        return any(_has_times(kind.field(at).type) for at in range(kind.num_fields))
    return bool(t.is_date32(kind) or t.is_timestamp(kind))


def _is_within(array: pa.Array) -> bool:
    t, kind = pa.types, array.type
    if not _has_times(kind):
        return True
    if t.is_struct(kind):
        return all(map(_is_within, array.flatten()))
    if t.is_map(kind):
        return all(_is_within(beneath(array, part).flatten()) for part in (array.keys, array.items))
    if t.is_list(kind):
        return _is_within(array.flatten())
    low, high = _DAYS
    if t.is_timestamp(kind):
        low, high = (second * _PER_SECOND[kind.unit] for second in _SECONDS)
        high -= 1
    found = pc.min_max(array.view(pa.int32() if t.is_date32(kind) else pa.int64())).as_py()
    return found["min"] is None or (low <= found["min"] and found["max"] <= high)


def beneath(array: pa.MapArray, part: pa.Array) -> pa.ListArray:
    """Return the keys or items of a slice's maps as lists; those beneath NULLs are in none."""
    offsets = pa.array(array.offsets.to_numpy())
    return pa.ListArray.from_arrays(offsets, part, mask=array.is_null())
