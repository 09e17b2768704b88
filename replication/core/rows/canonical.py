"""Give equal rows equal bytes, so that hashes of payloads compare rows.

Values beneath NULLs and the unused bits of bitmaps are undefined: engines leave old memory there.
"""

from __future__ import annotations

import pyarrow as pa

from replication.core.rows.batch import LogBatch
from replication.core.rows.constant import row_numbers


def canonical(log: LogBatch) -> LogBatch:
    """Return a copy of ``log`` with defined bytes beneath its NULLs."""
    arrays = [_canonical(array) for array in log.batch.columns]
    return LogBatch(log.version, pa.RecordBatch.from_arrays(arrays, schema=log.batch.schema))


def _canonical(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_struct(kind):  # ``take`` does not clear the fields of NULL structs
        fields = [_canonical(field) for field in array.flatten()]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=array.is_null())
    taken = array.take(row_numbers(len(array)))
    if pa.types.is_map(kind):
        keys, items = _canonical(taken.keys), _canonical(taken.items)
        return pa.MapArray.from_arrays(taken.offsets, keys, items, kind, mask=taken.is_null())
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(taken.offsets, _canonical(taken.values), kind, mask=taken.is_null())
    return taken
