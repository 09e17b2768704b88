"""Convert one column, Arrow or Python values, to the type that its table stores, without loss."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replication.core.definition.types import storable_type
from replication.core.rows.exact import check_exact, number_in_words
from replication.errors import SchemaError

#: Arrow's errors for values that do not fit a type.
NO_FIT = (pa.ArrowException, OverflowError, LookupError, TypeError, ValueError)


def convert(given: pa.ChunkedArray | pa.Array, wanted: pa.DataType, column: str) -> pa.Array:
    """Convert an array to one array of the storable type ``wanted``, without loss.

    Raises:
        SchemaError: a value does not fit, or the types are unrelated; the message has the name ``column``.
    """
    try:
        array = given.combine_chunks() if isinstance(given, pa.ChunkedArray) else given
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    except pa.ArrowInvalid as error:
        raise SchemaError(
            f"column {column!r}: {len(given)} rows of it are too large together ({error})",
            "Give the rows in several smaller pieces, such as one record batch after the other",
        ) from None
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    try:
        _check_whole(array, column)
        if array.type == wanted:
            return array
        if pa.types.is_null(array.type) or 0 < len(array) == array.null_count:  # pandas has no type for all NULLs
            return pa.nulls(len(array), wanted)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary.cast(_plain(array.type.value_type)).take(array.indices)
        elif pa.types.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        _check_alike(array, wanted, column)
        if array.type == wanted:
            return array
        if pa.types.is_list_view(array.type):
            array = _list_of_view(array)
        cast = array.cast(wanted, safe=True)
        cast.validate()  # Arrow's casts of views can give invalid arrays
        return cast
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise SchemaError(
            f"column {column!r}: a value of type {given.type} does not fit {wanted} without loss ({error})"
        ) from None


def _check_whole(array: pa.Array, column: str) -> None:
    """Raise SchemaError for an invalid array, which readers would refuse.

    It may have text that is not UTF-8, or a decimal of too many digits, which Arrow takes from CSV and JSON.
    """
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise SchemaError(
            f"column {column!r}: a value is not valid {array.type} ({error})",
            "Text must be UTF-8: decode it, or store the bytes in a binary column"
            if "UTF8" in str(error)
            else "Give a value that the type can hold",
        ) from None


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type without views: Arrow cannot ``take`` from views, which polars uses for categories."""
    return {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(kind, kind)


def _list_of_view(array: pa.Array) -> pa.Array:
    """Convert a list view to a list; Arrow's cast gives one offset too few."""
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    return pa.ListArray.from_arrays(offsets, array.flatten(), mask=array.is_null())


def _check_alike(array: pa.Array, wanted: pa.DataType, column: str) -> None:
    """Raise SchemaError where Arrow's cast would silently change a value, at any depth."""
    t, kind = pa.types, array.type
    if t.is_null(kind):
        return
    if _shape(kind, column) != _family(wanted):
        nested_text = t.is_nested(wanted) and t.is_string(kind)
        raise SchemaError(
            f"column {column!r} holds {wanted}, but was given {kind}",
            "Give it as Parquet or JSON: CSV has no nested values" if nested_text else "Convert it beforehand",
        )
    if t.is_struct(wanted):
        parts = array.flatten()  # without the values beneath NULLs
        for at, field in enumerate(kind):
            if kind.get_field_index(field.name) < 0:  # Arrow would take one of the two
                raise SchemaError(f"column {column!r} was given two fields {field.name!r}", "Give each field once")
            if wanted.get_field_index(field.name) < 0:
                raise SchemaError(
                    f"column {column!r} has no field {field.name!r}", f"It has {', '.join(f.name for f in wanted)}"
                )
            _check_alike(parts[at], wanted.field(field.name).type, f"{column}.{field.name}")
    elif t.is_map(wanted):
        _check_alike(array.keys, wanted.key_type, f"{column}.key")
        _check_alike(array.items, wanted.item_type, f"{column}.value")
    elif t.is_list(wanted):
        _check_alike(array.flatten(), wanted.value_type, f"{column}.element")
    elif t.is_floating(wanted) and t.is_floating(kind) and not t.is_float16(kind):
        _check_floats(array, wanted)


def _check_floats(array: pa.Array, wanted: pa.DataType) -> None:
    """Raise ArrowInvalid when a double would be rounded: Arrow's safe cast checks only integers."""
    back = array.cast(wanted, safe=True).cast(array.type)
    same = pc.or_(pc.equal(array, back), pc.and_(pc.is_nan(array), pc.is_nan(back)))
    if not pc.all(same, min_count=0).as_py():
        raise pa.ArrowInvalid("a value would be rounded")


def _shape(given: pa.DataType, column: str) -> str:
    """Return the family of the caller's type; for a nested type, its outermost kind."""
    t = pa.types
    if t.is_list(given) or t.is_large_list(given) or t.is_fixed_size_list(given) or t.is_list_view(given):
        return "list"
    return str(given).split("<")[0] if t.is_nested(given) else _family(storable_type(given, column))


def _family(t: pa.DataType) -> str:
    is_ = pa.types
    if is_.is_integer(t):
        return "integer"
    if is_.is_floating(t):
        return "float"
    if is_.is_timestamp(t):
        return "instant" if t.tz else "local time"
    if is_.is_decimal(t):
        return "decimal"
    return str(t).split("<")[0]


def from_values(values: Sequence[Any], wanted: pa.DataType, column: str) -> pa.Array:
    """Convert Python values to an array of the storable type ``wanted``. Raises SchemaError with the column's name."""
    check_exact(values, wanted, column)
    try:
        return pa.array(values, wanted)
    except NO_FIT as error:
        raise SchemaError(f"column {column!r} holds {wanted}: {_why(values, wanted) or error}") from None


def _why(values: Sequence[Any], wanted: pa.DataType) -> str:
    """Return which number of ``values`` the column cannot hold; empty when it is none."""
    words = number_in_words(wanted)
    for value in (each for each in values if isinstance(each, int | Decimal) and words):
        try:
            pa.scalar(value, wanted)
        except NO_FIT:
            with suppress(ValueError):  # an int of 4,300 digits has no text
                return f"{str(value)[:60]} is not {words}"
    return ""
