"""Arrow batches in lists that are bounded by bytes: one row may have 32 MiB."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import pyarrow as pa


def together(
    batches: Iterable[pa.RecordBatch], bytes_max: int, rows_max: int = sys.maxsize
) -> Iterator[list[pa.RecordBatch]]:
    """Yield batches in lists, each of which ends with the batch that reaches ``bytes_max`` or ``rows_max``."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= rows_max or size >= bytes_max:
            yield waiting
            waiting, rows, size = [], 0, 0
    if waiting:
        yield waiting
