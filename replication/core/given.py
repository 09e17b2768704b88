"""What callers may hand in as rows, told apart: Arrow in any form, pandas, or mappings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias, cast

import pyarrow as pa

from replication.errors import SchemaError

Given: TypeAlias = pa.Table | list[Mapping[str, Any]]


def given(rows: object) -> Iterator[Given]:
    """``rows`` as Arrow tables or lists of mappings, piece by piece where they stream in.

    Taken are anything with ``__arrow_c_stream__`` or ``__arrow_c_array__`` (values as they are: NaN stays NaN), pandas
    frames (NaN becomes NULL, the index is left out), one mapping, or an iterable of mappings.

    Raises:
        SchemaError: it is none of these.
    """
    if isinstance(rows, pa.Table):
        yield rows
    elif isinstance(rows, pa.RecordBatch):
        yield pa.Table.from_batches([rows])
    elif type(rows).__module__.partition(".")[0] == "pandas":
        yield _from_pandas(rows)
    elif hasattr(rows, "__arrow_c_stream__"):
        for batch in pa.RecordBatchReader.from_stream(rows):
            yield pa.Table.from_batches([batch])
    elif hasattr(rows, "__arrow_c_array__"):
        yield pa.Table.from_batches([pa.record_batch(rows)])
    elif isinstance(rows, Mapping):
        yield [rows]
    else:
        yield _from_mappings(rows)


def _from_pandas(frame: Any) -> pa.Table:
    if not hasattr(frame, "columns"):
        raise SchemaError("a pandas Series has no column names", "Hand in a DataFrame: series.to_frame()")
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise SchemaError(f"the pandas frame cannot be made Arrow: {error}") from None


def _from_mappings(rows: object) -> list[Mapping[str, Any]]:
    try:
        made = list(cast(Iterable[Any], rows))
    except TypeError:
        made = [None]
    if not all(isinstance(row, Mapping) for row in made):
        raise SchemaError(
            f"rows of type {type(rows).__name__} are neither Arrow, pandas nor mappings",
            "Hand in anything with __arrow_c_stream__, a DataFrame, or dicts",
        )
    return made
