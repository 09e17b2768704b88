"""The rows of a query in DuckDB as Arrow batches that are bounded by bytes, too: one row may have 32 MiB."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import duckdb
import pyarrow as pa

BATCH_ROWS, BATCH_BYTES = 65_536, 32 << 20
#: As many rows are made at once. DuckDB refuses a batch of more than 2 GiB of text.
_STEP_ROWS = 2_048


def arrow_batches(rows: duckdb.DuckDBPyRelation) -> pa.RecordBatchReader:
    """Run a query; its rows in batches of up to ``BATCH_ROWS`` rows, which end early at about ``BATCH_BYTES``."""
    reader = rows.to_arrow_reader(_STEP_ROWS)
    parts = together(reader, BATCH_ROWS, BATCH_BYTES)
    return pa.RecordBatchReader.from_batches(reader.schema, map(_one, parts))


def together(batches: Iterable[pa.RecordBatch], rows_max: int, bytes_max: int) -> Iterator[list[pa.RecordBatch]]:
    """Batches in lists, each of which ends with the batch that reaches ``rows_max`` rows or ``bytes_max`` bytes."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= rows_max or size >= bytes_max:
            yield waiting
            waiting, rows, size = [], 0, 0
    if waiting:
        yield waiting


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
