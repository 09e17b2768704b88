"""The types of columns: those that Iceberg can hold, so that every cluster stores every value exactly."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from replication.core.arrow import pa
from replication.errors import SchemaError

_FIELD = re.compile(r"[^\W\d]\w*")
_LEVELS_MAX = 60  # Arrow reads no schema of 125, and a map takes two


def storable_type(given: pa.DataType, column: str) -> pa.DataType:
    """Return the type that a column of Arrow type ``given`` is stored as.

    Integers are widened (int8 → int32, uint32 → int64), dictionaries become their values, times become microseconds.
    uint64 is stored as int64; ``append`` refuses values above 2**63-1.

    Raises:
        SchemaError: Iceberg has no such type, or it is nested too deeply; the message has the name ``column``.
    """
    _check_depth(column)
    t = pa.types
    if t.is_dictionary(given) or t.is_run_end_encoded(given):
        return storable_type(given.value_type, column)
    if isinstance(given, pa.BaseExtensionType):
        return storable_type(given.storage_type, column)
    if t.is_boolean(given) or t.is_date32(given) or t.is_float32(given) or t.is_float64(given):
        return given
    if t.is_int8(given) or t.is_int16(given) or t.is_int32(given) or t.is_uint8(given) or t.is_uint16(given):
        return pa.int32()
    if t.is_integer(given):
        return pa.int64()
    if t.is_float16(given):
        return pa.float32()
    if t.is_string(given) or t.is_large_string(given) or t.is_string_view(given):
        return pa.string()
    if t.is_binary(given) or t.is_large_binary(given) or t.is_binary_view(given) or t.is_fixed_size_binary(given):
        return pa.binary()
    if t.is_date64(given):
        return pa.date32()
    if t.is_timestamp(given):
        return pa.timestamp("us", tz="UTC" if given.tz else None)
    if t.is_decimal(given):
        if given.precision > 38 or not 0 <= given.scale <= given.precision:
            raise SchemaError(f"column {column!r}: {given} has more than 38 digits or an odd scale")
        return pa.decimal128(given.precision, given.scale)
    if t.is_list(given) or t.is_large_list(given) or t.is_fixed_size_list(given) or t.is_list_view(given):
        return pa.list_(pa.field("element", storable_type(given.value_type, f"{column}.element")))
    if t.is_struct(given):
        _check_fields([field.name for field in given], column)
        return pa.struct([pa.field(f.name, storable_type(f.type, f"{column}.{f.name}")) for f in given])
    if t.is_map(given):
        return pa.map_(
            storable_type(given.key_type, f"{column}.key"), storable_type(given.item_type, f"{column}.value")
        )
    raise SchemaError(
        f"column {column!r} has type {given}, which Iceberg tables cannot hold",
        "Convert it first (for example a duration or a time to a bigint of microseconds), or leave it out",
    )


def _check_depth(column: str) -> None:
    if column.count(".") > _LEVELS_MAX:
        name = column.partition(".")[0]
        raise SchemaError(
            f"column {name!r} is nested more than {_LEVELS_MAX} levels deep", "Store it as text, such as JSON"
        )


def _check_fields(names: Sequence[str], column: str) -> None:
    """Check the names of a struct's fields: Iceberg stores other names changed, or not at all."""
    if not names:
        raise SchemaError(f"column {column!r} has a struct without fields", "Give it one, or leave it out")
    for name in names:
        if not _FIELD.fullmatch(name):
            raise SchemaError(
                f"column {column!r} has a field {name!r}, which must start with a letter or '_' and hold only letters,"
                " digits and '_'",
                "Give the field another name",
            )
    lower = Counter(name.lower() for name in names)
    if twice := [name for name in names if lower[name.lower()] > 1]:
        raise SchemaError(
            f"column {column!r} has the field {twice[0]!r} twice (letter case does not count)", "Rename one of them"
        )
