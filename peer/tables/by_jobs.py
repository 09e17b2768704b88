"""A table's rows as a query of replay's application, and what tasks of such queries share."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from peer.tables.latest import Folded, MergeQuery
from peer.tables.read import base_of
from replication.config import Config
from replication.core.definition.aging import horizon
from replication.core.definition.schema import TableSpec
from replication.tables.base import SPARK, Catalog, History
from replication.tables.catalog.catalog import CATALOG
from replication.tables.layout import CHANGES, TOMBSTONES
from replication.tables.together import together
from replication.wall_clock import now_us

# By jobs the demo compared 7 MiB in 50 s on two cores, and without them in 12.
_TIMES_A_ROUND = 256
_CHUNK_ROWS, _CHUNK_BYTES = 262_144, 64 << 20


def stored_bytes(catalog: Catalog, spec: TableSpec) -> int:
    """The size of a table's files, in bytes."""
    names = (spec.name, spec.name + CHANGES) if spec.key else (spec.name,)
    return sum(map(_bytes, map(catalog.history, names)))


def is_large(config: Config, size: int) -> bool:
    """Whether a job over ``size`` bytes takes less time than one process."""
    return size > _TIMES_A_ROUND * config.replay.driver_bytes_max


def rows_query(catalog: Catalog, spec: TableSpec, as_of: int | None = None) -> str:
    """Spark SQL for a table's rows, from the snapshots that are the newest now.

    ``as_of`` is a commit time, in microseconds since 1970; with it the rows have their version columns, too.

    Raises:
        RequestError: ``as_of`` lies before the last fold.
    """
    changes = catalog.history(spec.name + CHANGES) if spec.key else None  # before the table, as in kept_reads.py
    table = catalog.history(spec.name)
    young = horizon(spec, now_us() if as_of is None else as_of)
    if changes is None:
        return MergeQuery(spec, SPARK, "", _at(spec.name, table.current), "", Folded(), young).latest(upto=as_of)
    folded, base = base_of(table, spec, as_of)
    landed = _at(spec.name + CHANGES, changes.current)
    deleted = _at(spec.name + TOMBSTONES, catalog.history(spec.name + TOMBSTONES).current)
    merge = MergeQuery(spec, SPARK, landed, _at(spec.name, base), deleted, folded, young)
    late = catalog.may_have(spec.name + CHANGES, merge.came_late)
    return merge.latest(upto=as_of, versions=as_of is not None, late=late)


def chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows of a task in pieces of bounded size."""
    return map(pa.Table.from_batches, together(batches, _CHUNK_BYTES, _CHUNK_ROWS))


def _at(name: str, snapshot: int | None) -> str:
    ref = ".".join(SPARK.name(part) for part in (CATALOG, *name.split(".")))
    return (
        f"(select * from {ref} where false)" if snapshot is None else f"(select * from {ref} version as of {snapshot})"
    )


def _bytes(history: History) -> int:
    newest = history.snapshots.get(history.current or 0)
    return int(newest.summary.get("total-files-size", 0)) if newest is not None else 0
