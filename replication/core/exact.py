"""Python values that Arrow would change without a word: 1.5 in an integer column, a datetime in a date column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import pyarrow as pa

from replication.errors import SchemaError

Misfit = Callable[[Any], str | None]


def check_exact(values: Iterable[Any], wanted: pa.DataType, column: str) -> None:
    """SchemaError, naming ``column``, when Arrow would lose or reinterpret one of ``values`` in making it ``wanted``.

    What Arrow refuses by itself is left to it. Rounding a Python float to a 32-bit column is no loss in this sense.
    """
    misfit = misfit_of(wanted)
    if misfit is None:
        return
    for value in values:
        if value is not None and (why := misfit(value)):
            raise SchemaError(f"column {column!r} holds {wanted}: {value!r} {why}")


@lru_cache(maxsize=1024)
def misfit_of(wanted: pa.DataType) -> Misfit | None:
    """What says why a value, not None, does not fit though Arrow would take it; None when Arrow can be trusted."""
    t = pa.types
    if t.is_integer(wanted):
        return _integer
    if t.is_date(wanted):
        return _date
    if t.is_timestamp(wanted):
        return _instant if wanted.tz else _local_time
    if t.is_map(wanted):
        return _map(misfit_of(wanted.key_type), misfit_of(wanted.item_type))
    if t.is_list(wanted):
        return _list(misfit_of(wanted.value_type))
    if t.is_struct(wanted):
        return _struct({field.name: misfit_of(field.type) for field in wanted})
    return None


def _integer(value: Any) -> str | None:
    return None if type(value) is int or hasattr(type(value), "__index__") else "is no integer"


def _date(value: Any) -> str | None:
    return "has a time of day" if isinstance(value, datetime) else None


def _local_time(value: Any) -> str | None:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return "has a time zone, and the column has none (timestamptz does)"
    return _nanoseconds(value)


def _instant(value: Any) -> str | None:
    if isinstance(value, datetime) and value.tzinfo is None:
        return "has no time zone, and the column wants one"
    return _nanoseconds(value)


def _nanoseconds(value: Any) -> str | None:
    return "is finer than a microsecond" if getattr(value, "nanosecond", 0) else None


def _list(element: Misfit | None) -> Misfit:
    def misfit(value: Any) -> str | None:
        if isinstance(value, str | bytes | Mapping):
            return "is no list"
        return _first(element, value)

    return misfit


def _map(key: Misfit | None, item: Misfit | None) -> Misfit:
    def misfit(value: Any) -> str | None:
        pairs = list(value.items() if isinstance(value, Mapping) else value)
        return _first(key, (pair[0] for pair in pairs)) or _first(item, (pair[1] for pair in pairs))

    return misfit


def _struct(fields: Mapping[str, Misfit | None]) -> Misfit:
    def misfit(value: Any) -> str | None:
        if not isinstance(value, Mapping):
            return None
        for name, inner in value.items():
            if name not in fields:
                return f"has a field {name!r} that the column has not"
            if why := _first(fields[name], (inner,)):
                return why
        return None

    return misfit


def _first(misfit: Misfit | None, values: Iterable[Any]) -> str | None:
    if misfit is None:
        return None
    return next((why for value in values if value is not None and (why := misfit(value))), None)
