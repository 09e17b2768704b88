"""What callers may hand in as rows: Arrow in any form, pandas, or mappings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import date
from decimal import Decimal
from itertools import islice
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from replication.core.rows.batch import FRAME_ROWS_MAX
from replication.core.rows.exact import check_exact
from replication.errors import SchemaError

RowPiece: TypeAlias = pa.Table | list[Mapping[str, Any]]
_T = TypeVar("_T")
_FIXED = (str, bytes, int, float, date, Decimal, type(None))


def row_pieces(rows: object) -> Iterator[RowPiece]:
    """``rows`` as Arrow tables or lists of mappings, piece by piece where they stream in.

    Rows may be anything with ``__arrow_c_stream__`` or ``__arrow_c_array__``, where NaN stays NaN. They may be pandas
    frames, where NaN becomes NULL and the index is left out. Or they are one mapping, or an iterable of mappings, which
    may have no end.

    Raises:
        SchemaError: it is none of these.
    """
    if isinstance(rows, pa.Table):
        yield rows
    elif isinstance(rows, pa.RecordBatch):
        yield pa.Table.from_batches([rows])
    elif _is_pandas(rows):
        yield _from_pandas(rows)
    elif hasattr(rows, "__arrow_c_stream__"):
        for batch in pa.RecordBatchReader.from_stream(rows):
            yield pa.Table.from_batches([batch])
    elif hasattr(rows, "__arrow_c_array__"):
        yield pa.Table.from_batches([pa.record_batch(rows)])
    elif isinstance(rows, Mapping):
        yield [rows]
    else:
        yield from _from_mappings(rows)


def copied(rows: object) -> object:
    """``rows`` for an append that goes on when the caller has them back: copied where those can be changed in place."""
    if isinstance(rows, list) and all(type(row) is dict for row in rows):
        return [{name: _copied(value) for name, value in row.items()} for row in rows]
    if _is_pandas(rows) and hasattr(rows, "copy"):
        return rows.copy()
    return rows


def _copied(value: object) -> object:
    if isinstance(value, _FIXED):
        return value
    if type(value) is list:
        return [_copied(each) for each in value]
    if isinstance(value, memoryview):
        return value.tobytes()
    try:
        return deepcopy(value)
    except Exception:  # whatever a foreign class raises; what cannot be copied is refused when it is made Arrow
        return value


def _is_pandas(rows: object) -> bool:
    """Whether it is of a class of pandas, or of one derived from it."""
    return any(kind.__module__.partition(".")[0] == "pandas" for kind in type(rows).__mro__)


def _from_pandas(frame: Any) -> pa.Table:
    if not hasattr(frame, "columns"):
        raise SchemaError("a pandas Series has no column names", "Hand in a DataFrame: series.to_frame()")
    try:
        made = pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaError(f"the pandas frame cannot be made Arrow: {error}") from None
    for at, field in enumerate(made.schema):  # of objects Arrow takes the first one's type, and fits others to it
        if frame.dtypes.iloc[at].name == "object":
            check_exact(frame.iloc[:, at].dropna(), field.type, field.name, times=True)
    return made


def _from_mappings(rows: object) -> Iterator[list[Mapping[str, Any]]]:
    pieces: Iterable[list[Any]] = sliced(rows) if isinstance(rows, Iterable) else [[rows]]
    for piece in pieces:
        if not all(isinstance(row, Mapping) for row in piece):
            raise SchemaError(
                f"rows of type {type(rows).__name__} are neither Arrow, pandas nor mappings",
                "Hand in anything with __arrow_c_stream__, a DataFrame, or dicts; Mutations go to apply()",
            )
        yield piece


def sliced(items: Iterable[_T]) -> Iterator[list[_T]]:
    """``items`` as one list when all of them are there already, else as many at a time as a frame takes."""
    if isinstance(items, Sequence):
        yield list(items)
        return
    coming = iter(items)
    while piece := list(islice(coming, FRAME_ROWS_MAX)):
        yield piece
