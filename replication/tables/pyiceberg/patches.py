"""Patches of PyIceberg in this process: what it would write wrongly into data files, or does at a needless cost.

It makes lists and maps of structs anew and leaves their NULLs out: a NULL list would be kept as an empty one, and a
NULL map too, with whatever lay beneath it. And for the upper bound of a long text it adds one to a letter: after U+D7FF
come the surrogates, which are no text; U+E000 is the next letter.

Each append copies a table's metadata deeply some sixteen times: that was half of what a commit cost, and grew with the
snapshots kept. What it holds is frozen and replaced, never altered, so a shallow copy is as good.
"""

from __future__ import annotations

from typing import TypeVar

import pyarrow as pa
from pyiceberg.io import pyarrow as written
from pyiceberg.table.metadata import TableMetadataV1, TableMetadataV2, TableMetadataV3
from pyiceberg.types import ListType, MapType
from pyiceberg.utils.truncate import truncate_upper_bound_text_string

_Metadata = TypeVar("_Metadata", TableMetadataV1, TableMetadataV2, TableMetadataV3)


def patch_pyiceberg() -> None:
    """Have it do so. Idempotent."""
    written.ArrowProjectionVisitor = KeepingNulls  # type: ignore[misc]
    written.truncate_upper_bound_text_string = upper_bound  # type: ignore[attr-defined]
    for made in (TableMetadataV1, TableMetadataV2, TableMetadataV3):
        made.__deepcopy__ = _sharing  # type: ignore[method-assign,assignment]


class KeepingNulls(written.ArrowProjectionVisitor):
    """Columns as a table wants them, with the NULLs of those that were given."""

    def list(self, list_type: ListType, list_array: pa.Array | None, value_array: pa.Array | None) -> pa.Array | None:
        """A list column."""
        return _with_nulls(super().list(list_type, list_array, value_array), list_array)

    def map(
        self, map_type: MapType, map_array: pa.Array | None, key_result: pa.Array | None, value_result: pa.Array | None
    ) -> pa.Array | None:
        """A map column."""
        return _with_nulls(super().map(map_type, map_array, key_result, value_result), map_array)


def upper_bound(value: str, trunc_length: int | None) -> str | None:
    """A text of ``trunc_length`` letters at most that is not below ``value``; None when there is none."""
    bound = truncate_upper_bound_text_string(value, trunc_length)
    return None if bound is None else bound.replace("\ud800", "\ue000")


def _sharing(metadata: _Metadata, memo: dict[int, object] | None = None) -> _Metadata:
    return metadata.__copy__()


def _with_nulls(made: pa.Array | None, given: pa.Array | None) -> pa.Array | None:
    if made is None or given is None or made.null_count == given.null_count:
        return made
    offsets = pa.array(made.offsets.to_numpy())  # not a slice, for which Arrow takes no mask
    if isinstance(made, pa.MapArray):
        return pa.MapArray.from_arrays(offsets, made.keys, made.items, made.type, mask=given.is_null())
    return type(made).from_arrays(offsets, made.values, made.type, mask=given.is_null())
