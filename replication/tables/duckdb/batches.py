"""The rows of a query in DuckDB as Arrow batches that are bounded by bytes, too: one row may have 32 MiB."""

from __future__ import annotations

import re

import duckdb
import pyarrow as pa

from replication.tables.base import DUCKDB
from replication.tables.together import together

BATCH_ROWS, BATCH_BYTES = 65_536, 32 << 20
#: As many rows are made at once. DuckDB refuses a batch of more than 2 GiB of text.
_STEP_ROWS = 2_048
#: Types of which DuckDB gives Arrow other values, or bytes of its own: a large UHUGEINT becomes negative.
_NOT_IN_ARROW = re.compile(r"\b(UHUGEINT|BIT|BIGNUM|VARIANT|TIME WITH TIME ZONE)(?=[\[,)]|\Z)")  # a field has more


def arrow_batches(rows: duckdb.DuckDBPyRelation) -> pa.RecordBatchReader:
    """Run a query; its rows in batches of up to ``BATCH_ROWS`` rows, which end early at about ``BATCH_BYTES``."""
    reader = rows.to_arrow_reader(_STEP_ROWS)
    parts = together(reader, BATCH_BYTES, BATCH_ROWS)
    return pa.RecordBatchReader.from_batches(reader.schema, map(_one, parts))


def fit_for_arrow(rows: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """The same rows, with text in columns of types that Arrow does not have."""
    odd = [bool(_NOT_IN_ARROW.search(str(kind))) for kind in rows.types]
    if not any(odd):
        return rows
    numbered = enumerate(zip(rows.columns, odd, strict=True), 1)
    shown = (f"#{at}::varchar as {DUCKDB.name(name)}" if as_text else f"#{at}" for at, (name, as_text) in numbered)
    return rows.project(", ".join(shown))


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
