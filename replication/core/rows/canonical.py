"""The same rows as the same bytes, so that hashes of payloads compare rows.

What lies beneath a NULL, and in the last bits of a bitmap, is nobody's: engines leave old memory there.
"""

from __future__ import annotations

import pyarrow as pa

from replication.core.rows.batch import LogBatch
from replication.core.rows.constant import row_numbers


def canonical(log: LogBatch) -> LogBatch:
    """``log`` with nothing beneath its NULLs, in memory of its own."""
    arrays = [_canonical(array) for array in log.batch.columns]
    return LogBatch(log.version, pa.RecordBatch.from_arrays(arrays, schema=log.batch.schema))


def _canonical(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_struct(kind):  # of which Arrow would take the fields along as they are
        fields = [_canonical(field) for field in array.flatten()]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=array.is_null())
    taken = array.take(row_numbers(len(array)))
    if pa.types.is_map(kind):
        keys, items = _canonical(taken.keys), _canonical(taken.items)
        return pa.MapArray.from_arrays(taken.offsets, keys, items, kind, mask=taken.is_null())
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(taken.offsets, _canonical(taken.values), kind, mask=taken.is_null())
    return taken
