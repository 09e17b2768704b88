"""Finds the row for which a batch of rows is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from replication.errors import FormatError, ReplicationError, RequestError


def first_refused(
    rows: pa.RecordBatch | pa.Table, take: Callable[[Any], object]
) -> tuple[ReplicationError, int] | None:
    """Return the error and the index of the first row that ``take`` refuses; None when it refuses the columns."""
    if _error(take, rows.slice(0, 0)) is not None:
        return None
    fits, refused = 0, rows.num_rows
    while refused - fits > 1:
        middle = (fits + refused) // 2
        fits, refused = (fits, middle) if _error(take, rows.slice(fits, middle - fits)) else (middle, refused)
    error = _error(take, rows.slice(fits, 1))
    return None if error is None else (error, fits)


def _error(take: Callable[[Any], object], rows: pa.RecordBatch | pa.Table) -> ReplicationError | None:
    try:
        take(rows)
    except (FormatError, RequestError) as error:
        return error
    return None
