"""Conditions in Spark's SQL that make a delete of listed keys skip files and partitions without those keys."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from replication.tables.base import SPARK, Rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def key_ranges(spark: SparkSession, key: Sequence[str], listed: str, gone: Rows) -> list[str] | None:
    """Return a range condition for each key column whose type allows one; None when ``gone`` is empty.

    ``listed`` is the temporary view of ``gone``.
    """
    if isinstance(gone, str):
        bounds = ", ".join(f"min({SPARK.name(c)}), max({SPARK.name(c)})" for c in key)
        extremes = spark.sql(f"select {bounds} from {listed}").toArrow()  # not collect(), which gives local times
        row = [column[0].as_py() for column in extremes.columns]
    else:
        pairs = [pc.min_max(gone.column(c)) for c in key]
        row = [bound.as_py() for pair in pairs for bound in (pair["min"], pair["max"])]
    if row[0] is None:
        return None
    conditions: list[str] = []
    for at, column in enumerate(key):
        low, high = _literal(row[2 * at]), _literal(row[2 * at + 1])
        if low is not None and high is not None:
            conditions.append(f"{SPARK.name(column)} between {low} and {high}")
    return conditions


def _literal(value: Any) -> str | None:
    match value:
        case bool():
            return str(value).lower()
        case int() | Decimal():
            return str(value)
        case str() if "${" in value:  # Spark would substitute a variable
            return None
        case str():
            escaped = value.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{escaped}'"
        case datetime():
            return f"timestamp_{'ntz' if value.tzinfo is None else 'ltz'} '{value.isoformat(sep=' ')}'"
        case date():
            return f"date '{value.isoformat()}'"
        case bytes() | bytearray():
            return f"x'{bytes(value).hex()}'"
        case _:
            return None
