"""Patches of PyIceberg in this process: two wrong results in data files, and one needless cost.

PyIceberg rebuilds lists and maps of structs without their NULLs. A NULL list or map would be stored as an empty one,
or with the hidden values beneath it. For the upper bound of a long text it increments a character. After U+D7FF come
surrogates, which are not valid text, so the bound must use U+E000.

Each append deep-copies a table's metadata about sixteen times. That was half of a commit's time, and grew with the
number of snapshots. The parts of the metadata are replaced, never changed in place, so a shallow copy suffices.
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
    """Apply the patches. Idempotent."""
    written.ArrowProjectionVisitor = KeepingNulls  # type: ignore[misc]
    written.truncate_upper_bound_text_string = upper_bound  # type: ignore[attr-defined]
    for metadata in (TableMetadataV1, TableMetadataV2, TableMetadataV3):
        metadata.__deepcopy__ = _shallow  # type: ignore[method-assign,assignment]


class KeepingNulls(written.ArrowProjectionVisitor):
    """Projects columns to a table's schema, and keeps the NULLs of lists and maps."""

    def list(self, list_type: ListType, list_array: pa.Array | None, value_array: pa.Array | None) -> pa.Array | None:
        """Project a list column."""
        return _with_nulls(super().list(list_type, list_array, value_array), list_array)

    def map(
        self, map_type: MapType, map_array: pa.Array | None, key_result: pa.Array | None, value_result: pa.Array | None
    ) -> pa.Array | None:
        """Project a map column."""
        return _with_nulls(super().map(map_type, map_array, key_result, value_result), map_array)


def upper_bound(value: str, trunc_length: int | None) -> str | None:
    """Return a text of at most ``trunc_length`` characters that is not below ``value``; None if none exists."""
    bound = truncate_upper_bound_text_string(value, trunc_length)
    return None if bound is None else bound.replace("\ud800", "\ue000")


def _shallow(metadata: _Metadata, memo: dict[int, object] | None = None) -> _Metadata:
    return metadata.__copy__()


def _with_nulls(projected: pa.Array | None, source: pa.Array | None) -> pa.Array | None:
    if projected is None or source is None or projected.null_count == source.null_count:
        return projected
    offsets = pa.array(projected.offsets.to_numpy())  # a copy: Arrow takes no mask with sliced offsets
    if isinstance(projected, pa.MapArray):
        return pa.MapArray.from_arrays(offsets, projected.keys, projected.items, projected.type, mask=source.is_null())
    return type(projected).from_arrays(offsets, projected.values, projected.type, mask=source.is_null())
