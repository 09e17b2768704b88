"""Accept callers' rows: Arrow in any form, pandas, or mappings."""

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
from replication.core.rows.mutation import Mutation
from replication.errors import SchemaError

RowPiece: TypeAlias = pa.Table | list[Mapping[str, Any]]
_T = TypeVar("_T")
_FIXED = (str, bytes, int, float, date, Decimal, type(None))


def row_pieces(rows: object) -> Iterator[RowPiece]:
    """Yield ``rows`` as Arrow tables or lists of mappings, in pieces when they are a stream.

    Rows may be anything with ``__arrow_c_stream__`` or ``__arrow_c_array__``; NaN stays NaN. Of a pandas frame NaN
    becomes NULL, and the index is left out. Rows may also be one mapping, or an iterable of mappings, even endless.

    Raises:
        SchemaError: ``rows`` is none of these.
    """
    if isinstance(rows, pa.Table):
        yield rows
    elif isinstance(rows, pa.RecordBatch):
        yield pa.Table.from_batches([rows])
    elif _is_pandas(rows):
        yield _from_pandas(rows)
    elif hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
        for batch in _arrow_batches(rows):
            yield pa.Table.from_batches([batch])
    elif isinstance(rows, Mapping):
        yield [rows]
    else:
        yield from _from_mappings(rows)


def copied(rows: object) -> object:
    """Return ``rows`` for an append that continues after the call returned; rows that can be changed are copied."""
    if isinstance(rows, list) and all(type(row) is dict for row in rows):
        return [{name: _copied(value) for name, value in row.items()} for row in rows]
    if _is_pandas(rows) and hasattr(rows, "copy"):
        return rows.copy()
    return rows


def kept(rows: object) -> object:
    """As ``copied``, for an append that may be sent again: also rows that the first time were converted in the call."""
    made = copied(rows)
    return _copied(rows) if made is rows and isinstance(rows, Mapping | Sequence | Mutation) else made


def _copied(value: object) -> object:
    if isinstance(value, _FIXED):
        return value
    if type(value) is list:
        return [_copied(each) for each in value]
    if isinstance(value, memoryview):
        return value.tobytes()
    try:
        return deepcopy(value)
    except Exception:  # a foreign class may raise anything; the conversion to Arrow refuses such values later
        return value


def _is_pandas(rows: object) -> bool:
    """Return whether ``rows`` is an instance of a pandas class or of a subclass."""
    return any(kind.__module__.partition(".")[0] == "pandas" for kind in type(rows).__mro__)


def _arrow_batches(rows: Any) -> Iterable[pa.RecordBatch]:
    is_stream = hasattr(rows, "__arrow_c_stream__")
    try:
        return pa.RecordBatchReader.from_stream(rows) if is_stream else [pa.record_batch(rows)]
    except pa.ArrowInvalid as error:
        what = f"rows of type {type(rows).__name__} have no columns: {error}"
        raise SchemaError(what, "Give a table, such as pa.table({'id': ids})") from None


def _from_pandas(frame: Any) -> pa.Table:
    if not hasattr(frame, "columns"):
        raise SchemaError("a pandas Series has no column names", "Give a DataFrame: series.to_frame()")
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise SchemaError(f"the pandas frame cannot be converted to Arrow: {error}") from None
    for at, field in enumerate(table.schema):  # Arrow infers a type of objects from the first one, and casts the rest
        if frame.dtypes.iloc[at].name == "object":
            check_exact(frame.iloc[:, at].dropna(), field.type, field.name, times=True)
    return table


def _from_mappings(rows: object) -> Iterator[list[Mapping[str, Any]]]:
    pieces: Iterable[list[Any]] = sliced(rows) if isinstance(rows, Iterable) else [[rows]]
    for piece in pieces:
        if not all(isinstance(row, Mapping) for row in piece):
            raise SchemaError(
                f"rows of type {type(rows).__name__} are neither Arrow, pandas nor mappings",
                "Give anything with __arrow_c_stream__, a DataFrame, or dicts; pass Mutations to apply()",
            )
        yield piece


def sliced(items: Iterable[_T]) -> Iterator[list[_T]]:
    """Yield a sequence as one list, and any other iterable in lists of ``FRAME_ROWS_MAX`` items."""
    if isinstance(items, Sequence):
        yield list(items)
        return
    coming = iter(items)
    while piece := list(islice(coming, FRAME_ROWS_MAX)):
        yield piece
