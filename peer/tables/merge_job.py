"""A large fold as a job: each task merges the changes of its share of the keys, in DuckDB.

Spark's own plan of the same query took three times as much CPU: rows passed through a shuffle, a sort and a writer of
rows one by one. Here each task reads all files and takes the keys whose hash is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import duckdb
import pyarrow as pa

from peer.tables.latest import MergeQuery
from replication.core.definition.schema import user_field
from replication.tables.base import Decode, Tables, TableSource, open_duckdb
from replication.tables.duckdb.batches import arrow_batches
from replication.tables.layout import CHANGES, TOMBSTONES, layouts
from replication.tables.pyiceberg.damage import refusing_unreadable

#: All tasks read all changes.
PARTS_MAX = 16


@dataclass(frozen=True, slots=True)
class MergeJob:
    """Merges the changes that match ``where`` in executors.

    Attributes:
        merge: with the names ``changes``, ``table`` and ``tombstones``.
        where: the condition for the changes.
        late: whether some of them came late.
        parts: how many tasks share the keys.
        sources: the tables by those names, at fixed snapshots.
        replaces: whether ``<table>`` has rows.
    """

    merge: MergeQuery
    where: str
    late: bool
    parts: int
    sources: Mapping[str, TableSource]
    replaces: bool

    @staticmethod
    def of(tables: Tables, merge: MergeQuery, current: int | None, where: str, *, late: bool) -> MergeJob:
        """Return the job that merges into ``<table>`` at the snapshot ``current``."""
        name = merge.spec.name
        sources = {
            "changes": tables.source(name + CHANGES, where=merge.folded.unfolded),
            "table": tables.source(name, snapshot=current),
            "tombstones": tables.source(name + TOMBSTONES),
        }
        return MergeJob(merge, where, late, min(tables.background_parallel, PARTS_MAX), sources, current is not None)

    def rows(self) -> Decode:
        """Return the rows to add to ``<table>``, and the places of the rows that they replace."""
        _, table, _ = layouts(self.merge.spec)
        columns = {column.name: user_field(column) for column in self.merge.spec.columns}
        schema = pa.schema([columns.get(field.name, field) for field in table.schema])
        return self._decode(schema, self.merge.rows, _Places(self) if self.replaces else None)

    def tombstone_rows(self) -> Decode:
        """Return the rows to add to ``<table>__tombstones``."""
        _, _, tombstones = layouts(self.merge.spec)
        return self._decode(tombstones.schema, partial(self.merge.tombstone_rows, late=self.late), None)

    def _decode(self, schema: pa.Schema, made: Callable[[str], str], places: _Places | None) -> Decode:
        size = self.sources["changes"].size
        tasks = pa.table({"part": pa.array(range(self.parts), pa.int64())})
        return Decode(tasks, _Rows(self, made, schema), schema, (), [()], {}, size, places)

    def run(
        self, query: Callable[[duckdb.DuckDBPyConnection, str], str], batches: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Yield what a query gives for each part that is named in ``batches``. It is made of the changes' condition.

        Raises:
            StorageError: a data file is missing or damaged, or the disk is full.
        """
        for batch in batches:
            for part in batch.column(0).to_pylist():
                with refusing_unreadable(), closing(open_duckdb()) as connection:
                    for name, source in self.sources.items():
                        source(connection, name)
                    where = f"{self.where} and hash({self.merge.keys()}) % {self.parts} = {part}"
                    yield from arrow_batches(connection.sql(query(connection, where)))


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows that are ``made`` of the newest versions. Only keys with several changes are ranked."""

    job: MergeJob
    made: Callable[[str], str]
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = self.schema.names
        for batch in self.job.run(self._query, batches):
            yield batch.select(names).cast(self.schema)

    def _query(self, connection: duckdb.DuckDBPyConnection, where: str) -> str:
        merge = self.job.merge
        if self.job.late:
            return self.made(f"({merge.resolved(where)})")
        several = f"select {merge.keys()} from changes where {where} group by all having count(*) > 1"
        connection.execute(f"create temp table several as {several}")
        rows, ranked = f"select {merge.columns} from changes s where {where}", merge.among("several")
        return self.made(f"({rows} and not {ranked} union all {merge.newest(f'{rows} and {ranked}')})")


@dataclass(frozen=True, slots=True)
class _Places:
    """The places of the rows of ``<table>`` whose keys have changed."""

    job: MergeJob

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.job.run(self._query, batches)

    def _query(self, connection: duckdb.DuckDBPyConnection, where: str) -> str:
        merge = self.job.merge
        among = merge.among(f"({merge.changed(where)})")
        return f"select _file as file_path, _pos as pos from {merge.table} s where {among} order by 1, 2"
