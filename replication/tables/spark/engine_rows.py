"""Rows that only the engine's own writer can write, since their table is partitioned or sorted.

A fold writes them to a branch of its own attempt, so that two folds of a table never mix. A delete of listed keys has
conditions that skip files and partitions without those keys.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow.compute as pc
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType

from replication.errors import CommitConflictError
from replication.tables.base import LABEL, SPARK, Decode, History, Rows

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, DataFrameWriterV2, SparkSession

_BRANCH = "walship_fold_"
_ABANDONED_S = 86_400


def decoded_frame(spark: SparkSession, ref: str, rows: Decode) -> DataFrame:
    """Return the rows with the columns of the table ``ref``."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import IntegerType, StructField, StructType

    types = spark.table(ref).schema
    decoded = StructType(
        [
            StructField(LABEL, IntegerType()) if n == LABEL else StructField(n, types[n].dataType)
            for n in rows.schema.names
        ]
    )
    frame = spark.createDataFrame(rows.tasks).mapInArrow(rows.run, decoded)
    return frame.select(*(_column(F, field.name, field.dataType, rows) for field in types.fields))


def _column(F: Any, name: str, wanted: Any, rows: Decode) -> SparkColumn:
    column: SparkColumn
    if name in rows.schema.names:
        column = F.col(name)
    elif name in rows.label_columns:
        at = rows.label_columns.index(name)
        values = [label[at] for label in rows.labels]
        if len(set(values)) == 1:
            column = F.lit(values[0])
        else:
            column = F.element_at(F.array(*(F.lit(value) for value in values)), F.col(LABEL) + 1)
    else:
        column = F.lit(rows.constants.get(name)).cast(wanted)
    return column.alias(name)


def with_summary(writer: DataFrameWriterV2, summary: Mapping[str, str]) -> DataFrameWriterV2:
    """Return a writer whose snapshot carries ``summary``."""
    for key, value in summary.items():
        writer = writer.option(f"snapshot-property.{key}", value)
    return writer


def committed(history: History, name: str, summary: Mapping[str, str]) -> int:
    """Return the newest snapshot with ``summary``. Raises CommitConflictError when there is none."""
    for snapshot in history.chain():
        if summary.items() <= snapshot.summary.items():
            return snapshot.id
    raise CommitConflictError(
        f"the commit to {name} is no longer among its snapshots", "The table was rolled back by another program"
    )


def new_branch() -> str:
    """Return a unique branch name; it contains the time."""
    return f"{_BRANCH}{int(time.time())}_{uuid4().hex}"


def head(metadata: TableMetadata, branch: str) -> int:
    """Return a branch's newest snapshot. Raises CommitConflictError when the branch was dropped."""
    ref = metadata.refs.get(branch)
    if ref is None:
        raise CommitConflictError(f"the branch {branch} was dropped by another process")
    return ref.snapshot_id


def check_branch(metadata: TableMetadata, branch: str, begun: int, deleted: int) -> None:
    """Raise CommitConflictError unless the branch has exactly its first snapshot, our deletes and one append."""
    parents = {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in metadata.snapshots}
    if parents.get(head(metadata, branch)) != deleted or (deleted != begun and parents.get(deleted) != begun):
        raise CommitConflictError(f"the branch {branch} was changed by another process")


def abandoned(metadata: TableMetadata) -> list[str]:
    """Return the branches left by attempts that began more than a day ago."""
    found = []
    for name, ref in metadata.refs.items():
        if ref.snapshot_ref_type == SnapshotRefType.BRANCH and name.startswith(_BRANCH):
            begun = name.removeprefix(_BRANCH).partition("_")[0]
            if begun.isdigit() and int(begun) < time.time() - _ABANDONED_S:
                found.append(name)
    return found


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
            return SPARK.text(value)
        case datetime():
            return f"timestamp_{'ntz' if value.tzinfo is None else 'ltz'} '{value.isoformat(sep=' ')}'"
        case date():
            return f"date '{value.isoformat()}'"
        case bytes() | bytearray():
            return f"x'{bytes(value).hex()}'"
        case _:
            return None
