"""Table definitions and warehouse moves that tests share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from uuid import UUID, uuid4

import pyarrow as pa
from pyiceberg.table import Table

from replication.core.definition.define import cell_table, typed_table
from replication.core.definition.schema import TableSpec
from replication.tables.base import LABEL, Decode
from replication.tables.pyiceberg.append import append_files, plan_write
from replication.tables.pyiceberg.write import write_here

SIMPLE = pa.schema([("k", pa.string()), ("v", pa.int64())])


def uuids() -> Iterator[UUID]:
    """Fresh ones for ever."""
    while True:
        yield uuid4()


def keyed(name: str, schema: pa.Schema = SIMPLE, key: Sequence[str] = ("k",), **more: object) -> TableSpec:
    """A typed table with a key."""
    return typed_table(name, schema, key, uuids=uuids(), **more)  # type: ignore[arg-type]


def grouped(name: str) -> TableSpec:
    """A typed table of two groups: ``a`` and ``b``."""
    schema = pa.schema([("k", pa.string()), ("a", pa.int64()), ("b", pa.string())])
    return typed_table(name, schema, ["k"], uuids=uuids(), groups={"left": ["a"], "right-1": ["b"]})


def cell(name: str) -> TableSpec:
    """A cell table of two groups."""
    return cell_table(name, uuids=uuids(), groups={"meta": ["m"]})


class Ready:
    """A ``Decode.run`` that yields rows made before; for engines in this process."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows, once per task."""
        for batch in batches:
            for _ in range(batch.num_rows):
                yield from self.rows.to_batches()


def append_decoded(table: Table, rows: Decode, expect: int | None, summary: Mapping[str, str]) -> int | None:
    """Decode in this process and append to a table just loaded."""
    (outcomes,) = write_here([plan_write(table, ".".join(table.name()[-2:]), rows)])
    return append_files(table, expect, [file for outcome in outcomes for file in outcome.files], summary)


def as_decode(rows: pa.Table, constants: Mapping[str, int] | None = None) -> Decode:
    """``rows`` as work for executors."""
    labelled = rows.append_column(LABEL, pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows))
    tasks = pa.table({"path": ["none"], "frames": pa.array([[]], pa.list_(pa.int64()))})
    return Decode(tasks, Ready(labelled), labelled.schema, (), [()], dict(constants or {}))
