"""Python values that Arrow would change without a word: 1.5 in an integer column, a datetime in a date column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from numbers import Number
from typing import Any

import pyarrow as pa

from replication.errors import SchemaError

Misfit = Callable[[Any], str | None]
FLOAT32_END = float.fromhex("0x1.ffffffp127")  # what is nearer to infinity than to the largest 32-bit float
_NAT = "is pandas' word for no time: give None"


def check_exact(values: Iterable[Any], wanted: pa.DataType, column: str, *, times: bool = False) -> None:
    """SchemaError, naming ``column``, when Arrow would lose or reinterpret one of ``values`` in making it ``wanted``.

    What Arrow refuses by itself is left to it. Rounding a Python float to a 32-bit column is no loss in this sense.
    ``times`` looks at dates and timestamps only, for values that Arrow found the type ``wanted`` of.
    """
    misfit = misfit_of(wanted, times)
    if misfit is None:
        return
    for value in values:
        if value is not None and (why := misfit(value)):
            raise SchemaError(f"column {column!r} holds {wanted}: {value!r} {why}")


@lru_cache(maxsize=1024)
def misfit_of(wanted: pa.DataType, times: bool = False) -> Misfit | None:
    """A check for values that Arrow would take but change: it gives the reason. None when Arrow itself refuses them."""
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
        return _map(misfit_of(wanted.key_type, times), misfit_of(wanted.item_type, times))
    if t.is_list(wanted):
        return _list(misfit_of(wanted.value_type, times))
    if t.is_struct(wanted):
        return _struct({field.name: misfit_of(field.type, times) for field in wanted})
    return None


def _integer(value: Any) -> str | None:
    return None if type(value) is int or hasattr(type(value), "__index__") else "is no integer"


def _float32(value: Any) -> str | None:
    if isinstance(value, float) and FLOAT32_END <= abs(value) < float("inf"):
        return "is larger than a 32-bit float can be"
    return None


def _date(value: Any) -> str | None:
    if isinstance(value, datetime):
        return "has a time of day" if value == value else _NAT
    return _fraction(value, "date")


def _time(wanted: pa.TimestampType) -> Misfit:
    """Of times with or without a zone; NumPy's, which Arrow takes for ``wanted.unit`` in arrays whatever theirs is."""
    unit = f"datetime64[{wanted.unit}]"

    def misfit(value: Any) -> str | None:
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
            return "has no time zone, and the column wants one"
        return "is finer than a microsecond" if getattr(value, "nanosecond", 0) else None

    return misfit


def _fraction(value: Any, what: str) -> str | None:
    """Of numbers Arrow takes the whole part."""
    if isinstance(value, Number) and not hasattr(type(value), "__index__") and value == value:
        return f"is no {what}"
    return None


def _list(element: Misfit | None) -> Misfit:
    def misfit(value: Any) -> str | None:
        if isinstance(value, str | bytes | Mapping):
            return "is no list"
        if hasattr(value, "mask") and hasattr(value, "filled"):
            return "is masked, which Arrow does not see: give a list with None"
        return _first(element, value)

    return misfit


def _map(key: Misfit | None, item: Misfit | None) -> Misfit:
    def misfit(value: Any) -> str | None:
        if isinstance(value, Mapping):
            return _no_dict(value) or _first(key, value.keys()) or _first(item, value.values())
        pairs = list(value) if isinstance(value, Iterable) else []
        if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
            return "is no map: give a dict, or pairs"
        return _first(key, (pair[0] for pair in pairs)) or _first(item, (pair[1] for pair in pairs))

    return misfit


def _struct(fields: Mapping[str, Misfit | None]) -> Misfit:
    """Of dicts; of tuples, which Arrow takes by their places; and of lists of pairs."""
    names = tuple(fields)

    def misfit(value: Any) -> str | None:
        given: Iterable[tuple[str, Any]]
        if isinstance(value, Mapping):
            if why := _no_dict(value):
                return why
            given = value.items()
        elif isinstance(value, tuple):
            if getattr(value, "_fields", names) != names:
                return f"has other fields than the column, or in another order ({', '.join(names)})"
            given = zip(names, value, strict=False)
        elif isinstance(value, Sequence):
            given = (pair for pair in value if isinstance(pair, tuple) and len(pair) == 2)
        else:
            return None
        for name, inner in given:
            if name not in fields:
                return f"has a field {name!r} that the column has not"
            if why := _first(fields[name], (inner,)):
                return why
        return None

    return misfit


def _no_dict(value: Any) -> str | None:
    return None if isinstance(value, dict | pa.Scalar) else "is no dict"


def _first(misfit: Misfit | None, values: Any) -> str | None:
    if misfit is None or not isinstance(values, Iterable):
        return None
    return next((why for value in values if value is not None and (why := misfit(value))), None)
