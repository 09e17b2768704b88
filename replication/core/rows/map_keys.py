"""Accept only maps that have each key once: engines disagree on what another value of the same key means."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from replication.core.rows.years import beneath
from replication.errors import SchemaError


def check_map_keys(batch: pa.RecordBatch) -> None:
    """Raise SchemaError when a map of a log batch, at any depth, has a key twice."""
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        if _has_maps(array.type) and _repeats(array):
            raise SchemaError(f"column {name!r} was given a map with the same key twice", "Give each key one value")


@lru_cache(maxsize=1024)
def _has_maps(kind: pa.DataType) -> bool:
    nested = pa.types.is_nested(kind) and any(_has_maps(kind.field(at).type) for at in range(kind.num_fields))
    return nested or pa.types.is_map(kind)


def _repeats(array: pa.Array) -> bool:
    t, kind = pa.types, array.type
    if not _has_maps(kind):
        return False
    if t.is_struct(kind):
        return any(map(_repeats, array.flatten()))
    if t.is_list(kind):
        return _repeats(array.flatten())
    keys, items = beneath(array, array.keys), beneath(array, array.items)
    return _has_equal(keys) or any(_repeats(part.flatten()) for part in (keys, items))


def _has_equal(lists: pa.ListArray) -> bool:
    """Whether a list has two equal values."""
    lists = lists.drop_null()  # Arrow counts what lies beneath NULLs as theirs, and does not give it
    values = lists.flatten()
    if pa.types.is_nested(values.type):  # Arrow groups by none
        return any(len(set(map(repr, each))) < len(each) for each in lists.to_pylist() if each)
    places = pa.table([pc.list_parent_indices(lists), values], ["list", "value"])
    return bool(places.group_by(["list", "value"]).aggregate([]).num_rows < len(values))
