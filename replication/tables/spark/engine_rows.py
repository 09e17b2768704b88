"""Rows that only the engine's own writer can write, since their table is partitioned or sorted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from replication.errors import CommitConflictError
from replication.tables.base import LABEL, Decode, History

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, DataFrameWriterV2, SparkSession


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
