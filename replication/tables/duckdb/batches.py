"""The rows of a query in DuckDB as Arrow batches that are bounded by bytes, too: one row may have 32 MiB."""

from __future__ import annotations

import duckdb
import pyarrow as pa

from replication.tables.together import together

BATCH_ROWS, BATCH_BYTES = 65_536, 32 << 20
#: As many rows are made at once. DuckDB refuses a batch of more than 2 GiB of text.
_STEP_ROWS = 2_048


def arrow_batches(rows: duckdb.DuckDBPyRelation) -> pa.RecordBatchReader:
    """Run a query; its rows in batches of up to ``BATCH_ROWS`` rows, which end early at about ``BATCH_BYTES``."""
    reader = rows.to_arrow_reader(_STEP_ROWS)
    parts = together(reader, BATCH_BYTES, BATCH_ROWS)
    return pa.RecordBatchReader.from_batches(reader.schema, map(_one, parts))


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
