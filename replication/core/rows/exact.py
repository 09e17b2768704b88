"""Refuse Python values that Arrow would silently change, such as 1.5 in an integer column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from numbers import Number
from typing import Any

import pyarrow as pa

from replication.errors import SchemaError

Mismatch = Callable[[Any], str | None]
FLOAT32_END = float.fromhex("0x1.ffffffp127")  # from here on a 32-bit float rounds to infinity
_NAT = "is pandas' NaT, which means no time: give None"


def number_in_words(kind: pa.DataType) -> str:
    """Return what a column of numbers holds, for messages; empty for another type."""
    t = pa.types
    if t.is_signed_integer(kind):
        return f"a decimal whole number in the range of {kind}"
    if t.is_float32(kind) or t.is_float64(kind):
        return f"a decimal number in the range of {kind}"
    if t.is_decimal128(kind):
        return f"a number with at most {kind.precision - kind.scale} digits before the point and {kind.scale} after it"
    return ""


def check_exact(values: Iterable[Any], wanted: pa.DataType, column: str, *, times: bool = False) -> None:
    """Raise SchemaError when Arrow would silently change one of ``values`` in its conversion to ``wanted``.

    Values that Arrow itself refuses are not checked. Rounding a Python float to a 32-bit column is allowed. ``times``
    checks only dates and timestamps, for values whose type ``wanted`` Arrow has inferred.
    """
    mismatch = mismatch_of(wanted, times)
    if mismatch is None:
        return
    for value in values:
        if value is not None and (why := mismatch(value)):
            raise SchemaError(f"column {column!r} holds {wanted}: {value!r} {why}")


@lru_cache(maxsize=1024)
def mismatch_of(wanted: pa.DataType, times: bool = False) -> Mismatch | None:
    """Return a check that gives the reason when Arrow would silently change a value; None when no check is needed."""
    t = pa.types
    if t.is_integer(wanted):
        return None if times else _integer
    if t.is_float32(wanted):
        return None if times else _float32
    if t.is_date(wanted):
        return _date
    if t.is_timestamp(wanted):
        return _time(wanted)
    if t.is_map(wanted):
        return _map(mismatch_of(wanted.key_type, times), mismatch_of(wanted.item_type, times))
    if t.is_list(wanted):
        return _list(mismatch_of(wanted.value_type, times))
    if t.is_struct(wanted):
        return _struct({field.name: mismatch_of(field.type, times) for field in wanted})
    return None


def _integer(value: Any) -> str | None:
    return None if type(value) is int or hasattr(type(value), "__index__") else "is not an integer"


def _float32(value: Any) -> str | None:
    if isinstance(value, float) and FLOAT32_END <= abs(value) < float("inf"):
        return "is larger than a 32-bit float can be"
    return None


def _date(value: Any) -> str | None:
    if isinstance(value, datetime):
        return "has a time of day" if value == value else _NAT
    return _fraction(value, "date")


def _time(wanted: pa.TimestampType) -> Mismatch:
    """Return the check of times. Arrow reads NumPy times in arrays as ``wanted.unit``, whatever their unit is."""
    unit = f"datetime64[{wanted.unit}]"

    def mismatch(value: Any) -> str | None:
        found = str(getattr(value, "dtype", ""))
        if isinstance(value, datetime):
            if value != value:
                return _NAT
            zoned = value.tzinfo is not None
        elif found.startswith("datetime64"):
            if found != unit and value == value:
                return f"is a {found}, and the column holds {unit} (astype makes it one)"
            zoned = False
        else:
            return _fraction(value, "time")
        if zoned and not wanted.tz:
            return "has a time zone, and the column has none (timestamptz does)"
        if wanted.tz and not zoned:
            return "has no time zone, and the column needs one"
        return "is finer than a microsecond" if getattr(value, "nanosecond", 0) else None

    return mismatch


def _fraction(value: Any, what: str) -> str | None:
    """Refuse numbers with a fraction, which Arrow would cut off."""
    if isinstance(value, Number) and not hasattr(type(value), "__index__") and value == value:
        return f"is not a {what}"
    return None


def _list(element: Mismatch | None) -> Mismatch:
    def mismatch(value: Any) -> str | None:
        if isinstance(value, str | bytes | Mapping):
            return "is not a list"
        if hasattr(value, "mask") and hasattr(value, "filled"):
            return "is masked, and Arrow ignores the mask: give a list with None"
        return _first(element, value)

    return mismatch


def _map(key: Mismatch | None, item: Mismatch | None) -> Mismatch:
    def mismatch(value: Any) -> str | None:
        if isinstance(value, Mapping):
            return _no_dict(value) or _first(key, value.keys()) or _first(item, value.values())
        pairs = list(value) if isinstance(value, Iterable) else []
        if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
            return "is not a map: give a dict, or pairs"
        return _first(key, (pair[0] for pair in pairs)) or _first(item, (pair[1] for pair in pairs))

    return mismatch


def _struct(fields: Mapping[str, Mismatch | None]) -> Mismatch:
    """Return the check of structs: dicts, tuples, whose fields Arrow takes by position, and lists of pairs."""
    names = tuple(fields)

    def mismatch(value: Any) -> str | None:
        pairs: Iterable[tuple[str, Any]]
        if isinstance(value, Mapping):
            if why := _no_dict(value):
                return why
            pairs = value.items()
        elif isinstance(value, tuple):
            if getattr(value, "_fields", names) != names:
                return f"has other fields than the column, or in another order ({', '.join(names)})"
            pairs = zip(names, value, strict=False)
        elif isinstance(value, Sequence):
            pairs = (pair for pair in value if isinstance(pair, tuple) and len(pair) == 2)
        else:
            return None
        for name, inner in pairs:
            if name not in fields:
                return f"has a field {name!r} that the column does not have"
            if why := _first(fields[name], (inner,)):
                return why
        return None

    return mismatch


def _no_dict(value: Any) -> str | None:
    return None if isinstance(value, dict | pa.Scalar) else "is not a dict"


def _first(mismatch: Mismatch | None, values: Any) -> str | None:
    if mismatch is None or not isinstance(values, Iterable):
        return None
    return next((why for value in values if value is not None and (why := mismatch(value))), None)
