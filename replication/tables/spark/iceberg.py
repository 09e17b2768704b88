"""Commits to Iceberg tables: rows by jobs (``jobs.py``), the rest by Spark's DataFrames and SQL.

Small tables are trimmed, compacted and expired here, without Spark: a cluster with few rows need not start its JVM.

Appends compare and swap: ``overwrite(false)`` under serializable isolation fails when data files were added since the
given snapshot (without one: ever). With a plain append two writers would both succeed. ``replace`` is one commit made
here (``row_delta.py``); many rows are merged and written by a job. In a table that is partitioned or sorted, Spark
writes deletes and rows to a branch, and then fast-forwards ``main`` to it. Readers see that in one step, and it fails
when ``main`` has moved.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pyarrow as pa
from pyiceberg.table import Table

from replication.core.definition.schema import TableSpec
from replication.errors import CommitConflictError, EngineLostError, StorageError
from replication.retries import repeated_on
from replication.tables.base import SPARK, Decode, Rows, Staged
from replication.tables.catalog.catalog import CATALOG, IcebergCatalog
from replication.tables.duckdb.key_index import KeyIndex
from replication.tables.duckdb.live_rows import live_rows, places_where
from replication.tables.layout import UNSYNCED_TAG
from replication.tables.pyiceberg.append import append_files, plan_write
from replication.tables.pyiceberg.compact import compact, is_small
from replication.tables.pyiceberg.evolve import check_shape
from replication.tables.pyiceberg.expire import can_expire, expire
from replication.tables.pyiceberg.local_io import sync_commits
from replication.tables.pyiceberg.orphans import remove_orphans
from replication.tables.pyiceberg.row_delta import delete_places, replace_files, replace_rows
from replication.tables.pyiceberg.write import Outcome, WriteFiles, fits, write_here, written_files
from replication.tables.spark.application import Application
from replication.tables.spark.engine_rows import (
    abandoned,
    check_branch,
    committed,
    decoded_frame,
    head,
    key_ranges,
    new_branch,
    with_summary,
)
from replication.tables.spark.jobs import ROUNDS, Jobs
from replication.tables.spark.refusals import refusals
from replication.tables.work import WorkDone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_T = TypeVar("_T")
_NOTHING = pa.table({})
_FILE_BYTES, _SMALL_FILE_BYTES = 128 << 20, 8 << 20
#: Up to this size a job would take longer than decoding here (``make bench``, replay).
SMALL_BYTES = 4 << 20
_COLD_BYTES = 32 << 20  # a round while Spark starts: the first job takes what is left then
_TRIES = 5
_GAP_S = 0.08  # enough time for the engine to read a busy table's metadata and commit


class IcebergTables:
    """A catalog and a Spark session that commits to it. Threads may use it at the same time only for different tables.

    What ``base.Catalog`` asks for is the catalog's own. Up to ``small_bytes``, which may be changed, rows are decoded
    and tables rewritten in this process, above it in executors.
    """

    dialect = SPARK

    def __init__(
        self,
        catalog: IcebergCatalog,
        spark: SparkSession | Application,
        scratch: Path | None = None,
        small_bytes: int = SMALL_BYTES,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._catalog = catalog
        self.create, self.has, self.fits = catalog.create, catalog.has, catalog.fits
        self.exists, self.specs, self.history, self.show = catalog.exists, catalog.specs, catalog.history, catalog.show
        self.attach, self.source = catalog.attach, catalog.source
        self.may_have, self.near = catalog.may_have, catalog.near
        self.scratch_duckdb = catalog.scratch_duckdb
        self.drop_scratch = catalog.drop_scratch
        self.small_bytes = small_bytes
        self._sleep = sleep
        self._spark = Application.of(spark)
        self.jobs = Jobs(self._spark)
        self._index = KeyIndex(scratch)
        self.work = WorkDone()
        self._numbers = count()
        self._in_upkeep: set[str] = set()
        self._rewriting = threading.Lock()

    def ref(self, name: str) -> str:
        """Return a table's name in Spark SQL."""
        return ".".join(SPARK.name(part) for part in (CATALOG, *name.split(".")))

    def append(
        self,
        name: str,
        rows: Staged | Decode | Rows,
        expect: int | None,
        summary: Mapping[str, str],
        shape: TableSpec | None = None,
    ) -> int | None:
        if name in self._in_upkeep:
            self._sleep(_GAP_S)
            with self._rewriting:  # what is rewritten here is small
                pass
        if isinstance(rows, Decode):
            (rows,) = self.stage([(name, rows)])
        if isinstance(rows, Staged):
            return self._append_staged(rows, expect, summary)
        if shape is not None:
            return self.replace(name, (), _NOTHING, rows, expect, summary, shape)
        with self._spark.use() as spark:
            return self._append_frame(name, self._frame(spark, name, rows), expect, summary)

    @property
    def parallel(self) -> int:
        return self.jobs.parallel

    @property
    def background_parallel(self) -> int:
        return self.jobs.background_parallel

    @property
    def round_bytes(self) -> int:
        return self.jobs.round_bytes or max(_COLD_BYTES, 2 * self.small_bytes)

    @property
    def ui(self) -> str:
        return self.jobs.ui

    @property
    def engine(self) -> str:
        return self._spark.state

    def stage(self, work: Sequence[tuple[str, Decode]], title: str = "") -> list[Staged]:
        """See ``base.Tables``. Up to ``small_bytes``, and while Spark starts, rows are decoded here; else by a job."""
        staged: list[Staged] = []
        writes: dict[int, tuple[Table, WriteFiles]] = {}
        for name, rows in work:
            error: Exception | None = None
            try:
                table = self._catalog.load(name)
                if fits(table):
                    writes[len(staged)] = table, plan_write(table, name, rows)
            except Exception as failed:  # other tables go on; ``append`` raises it
                error = failed
            staged.append(Staged(name, rows, error=error))
        outcomes, tasks, size = self._write([write for _, write in writes.values()], title, ROUNDS)
        every = [outcome for found in outcomes for outcome in found]
        written = sum(file.record_count for outcome in every for file in outcome.files)
        self.work.add(tasks, sum(outcome.attempt > 0 for outcome in every), written, size)
        for (at, (table, _)), found in zip(writes.items(), outcomes, strict=True):
            staged[at] = replace(staged[at], content=(table, found))
        return staged

    def _write(
        self, writes: Sequence[WriteFiles], title: str, pool: str | None
    ) -> tuple[list[list[Outcome]], int, int]:
        """Write each; return the outcomes, how many tasks a job had (0 without a job), and the bytes read."""
        sizes = [write.rows.size for write in writes]
        size = sum(each or 0 for each in sizes)
        if None not in sizes and (size <= self.small_bytes or not self._spark.want()):
            return write_here(writes), 0, size
        return *self.jobs.run(writes, title, pool), size

    def _append_staged(self, staged: Staged, expect: int | None, summary: Mapping[str, str]) -> int | None:
        if staged.error is not None:
            raise staged.error
        if staged.content is None:
            with self._spark.use() as spark, refusals(staged.name):
                frame = decoded_frame(spark, self.ref(staged.name), staged.rows)
                return None if frame.isEmpty() else self._append_frame(staged.name, frame, expect, summary)
        table, outcomes = cast(tuple[Table, list[Outcome]], staged.content)
        return append_files(table, expect, written_files(table.io, outcomes), summary)

    def _append_frame(self, name: str, frame: DataFrame, expect: int | None, summary: Mapping[str, str]) -> int:
        from pyspark.sql import functions as F

        writer = frame.writeTo(self.ref(name)).option("isolation-level", "serializable")
        if expect is not None:
            writer = writer.option("validate-from-snapshot-id", str(expect))
        with self._durably(name), refusals(name):
            with_summary(writer, summary).overwrite(F.lit(False))
        return committed(self._catalog.history(name), name, summary)

    def replace(
        self,
        name: str,
        key: Sequence[str],
        gone: Rows,
        rows: Decode | Rows,
        expect: int | None,
        summary: Mapping[str, str],
        shape: TableSpec | None = None,
    ) -> int:
        if isinstance(rows, Decode) and fits(loaded := self._catalog.load(name)):
            check_shape(loaded.metadata, name, shape)
            with self._spark.use() if (rows.size or 0) > self.round_bytes else contextlib.nullcontext():
                (outcomes,), *_ = self._write([plan_write(loaded, name, rows)], f"fold: {name}", None)
            return replace_files(loaded, written_files(loaded.io, outcomes), expect, summary)
        if isinstance(gone, pa.Table) and isinstance(rows, pa.Table):
            loaded = self._catalog.load(name)
            if fits(loaded):
                check_shape(loaded.metadata, name, shape)
                return replace_rows(loaded, self._index.places, key, gone, rows, expect, summary)
        table, branch = self.ref(name), new_branch()
        at = "" if expect is None else f" as of version {expect}"
        with self._spark.use() as spark, self._durably(name) as known, refusals(name):
            spark.sql(f"alter table {table} create branch {branch}{at}")
            try:
                self._write_branch(spark, name, branch, key, gone, rows, summary)
                sync_commits(self._catalog.load(name), known, branch)
                if shape is not None and not self.fits(shape):  # rows are matched by name, and names may have changed
                    raise CommitConflictError(f"{name} was altered by another commit")
                spark.sql(f"call {CATALOG}.system.fast_forward('{name}', 'main', '{branch}')").collect()
            finally:
                with contextlib.suppress(Exception):  # else ``expire`` drops it a day later
                    spark.sql(f"alter table {table} drop branch if exists {branch}")
        return committed(self._catalog.history(name), name, summary)

    def _write_branch(
        self,
        spark: SparkSession,
        name: str,
        branch: str,
        key: Sequence[str],
        gone: Rows,
        rows: Decode | Rows,
        summary: Mapping[str, str],
    ) -> None:
        """Delete and append on a branch that has no readers."""
        begun = head(self._catalog.load(name).metadata, branch)
        there = f"{self.ref(name)}.{SPARK.name('branch_' + branch)}"
        if key:
            columns = ", ".join(SPARK.name(column) for column in key)
            listed = f"walship_gone_{next(self._numbers)}"
            frame = self._frame(spark, name, gone)
            frame.createOrReplaceTempView(listed)
            conditions = key_ranges(spark, key, listed, gone)
            if conditions is not None:
                inside = f"({columns}) in (select {columns} from {listed})"
                spark.sql(f"delete from {there} where {' and '.join([*conditions, inside])}")
            spark.catalog.dropTempView(listed)
        deleted = head(self._catalog.load(name).metadata, branch)
        with_summary(self._frame(spark, name, rows).writeTo(there), summary).append()
        check_branch(self._catalog.load(name).metadata, branch, begun, deleted)

    def delete(self, name: str, where: str, engine_where: str = "") -> None:
        if is_small(self._catalog.load(name), self.small_bytes):
            self._here(name, lambda table: self._delete_here(table, where))
            return
        with self._spark.use() as spark, self._upkeep(name), self._durably(name), refusals(name):
            spark.sql(f"delete from {self.ref(name)} where {engine_where or where}")

    def _delete_here(self, table: Table, where: str) -> None:
        places = places_where(table, where)
        if places.num_rows:
            delete_places(table, places)

    def _here(self, name: str, commit: Callable[[Table], _T]) -> _T:
        """Make a commit of maintenance in this process, before further appends, and again if another came first."""

        @repeated_on(CommitConflictError, times=_TRIES)
        def tried() -> _T:
            return commit(self._catalog.load(name))

        with self._upkeep(name), self._rewriting:
            return tried()

    def query(self, sql: str) -> pa.Table:
        with self._spark.use() as spark, refusals("a table"):
            return spark.sql(sql).toArrow()

    def tag(self, name: str, tag: str, snapshot: int) -> None:
        self._catalog.tag(name, tag, snapshot)

    def untag(self, name: str, tag: str) -> None:
        self._catalog.tag(name, tag, None)

    def expire(self, name: str, older_than: int, keep: int) -> None:
        self.make_durable(name)  # before a snapshot that it needs can expire
        table = self._catalog.load(name)
        if is_small(table, self.small_bytes) and can_expire(table):
            self._here(name, lambda table: expire(table, older_than, keep, abandoned(table.metadata)))
            return
        with self._spark.use() as spark, self._upkeep(name), self._durably(name), refusals(name):
            for branch in abandoned(self._catalog.load(name).metadata):
                spark.sql(f"alter table {self.ref(name)} drop branch if exists {branch}")
            # loads the catalog: Spark's jars are available to every thread only during SQL
            spark.sql(f"refresh table {self.ref(name)}")
            # Iceberg's API, in the driver: Spark's procedure runs jobs and takes several times as long
            jvm: Any = spark._jvm
            util = jvm.org.apache.iceberg.spark.Spark3Util
            loaded = util.loadIcebergTable(spark._jsparkSession, self.ref(name))
            loaded.expireSnapshots().expireOlderThan(older_than // 1000).retainLast(keep).commit()

    def make_durable(self, name: str) -> None:
        table = self._catalog.load(name)
        if UNSYNCED_TAG in table.metadata.refs:
            raise StorageError(
                f"a sync of {name} failed: snapshots after its tag {UNSYNCED_TAG} may be lost",
                "Check the disk. Roll the table back to the tag if its files are damaged, then drop the tag",
            )
        sync_commits(table, frozenset())

    def compact(self, name: str, min_files: int) -> int:
        """Rewrite small files, and files with many deleted rows; return how many files were replaced.

        Other files above 8 MiB are not rewritten, so that a growing table is not rewritten again and again.
        """
        if is_small(self._catalog.load(name), self.small_bytes):
            return self._here(name, lambda table: compact(table, live_rows, min_files))
        with self._spark.use() as spark, self._upkeep(name), self._durably(name), refusals(name):
            result = spark.sql(
                f"call {CATALOG}.system.rewrite_data_files(table => '{name}', options => map("
                f"'min-input-files', '{min_files}', 'target-file-size-bytes', '{_FILE_BYTES}',"
                f" 'min-file-size-bytes', '{_SMALL_FILE_BYTES}', 'max-file-size-bytes', '{2 * _FILE_BYTES}',"
                " 'remove-dangling-deletes', 'true'))"
            ).collect()
        return sum(row["rewritten_data_files_count"] for row in result)

    def remove_orphans(self, name: str, older_than: int) -> int:
        return remove_orphans(lambda: self._catalog.load(name), older_than)

    def close(self) -> None:
        """End Spark's application and close the catalog."""
        self.jobs.remove_leftovers(at_once=True)
        self._spark.close()
        self._catalog.close()

    @contextlib.contextmanager
    def _upkeep(self, name: str) -> Iterator[None]:
        """Make appends leave gaps meanwhile, so that the engine can commit: it fails after five conflicts."""
        self._in_upkeep.add(name)
        try:
            yield
        finally:
            self._in_upkeep.discard(name)

    @contextlib.contextmanager
    def _durably(self, name: str) -> Iterator[frozenset[int]]:
        """Sync commits of Spark on exit, since Spark syncs nothing.

        The kernel reports lost bytes once, so a failed sync is recorded in the table for the next process.
        """
        known = frozenset(self._catalog.history(name).snapshots)
        yield known
        try:
            sync_commits(self._catalog.load(name), known)
        except EngineLostError:
            chain = [snapshot.id for snapshot in self._catalog.history(name).chain()]
            last = next((snapshot for snapshot in chain if snapshot in known), next(iter(chain), 0))
            tag = f"create tag if not exists {UNSYNCED_TAG} as of version {last}"
            with contextlib.suppress(Exception), self._spark.use() as spark:  # the process ends in any case
                spark.sql(f"alter table {self.ref(name)} {tag}")  # from now on this process itself writes no metadata
            raise

    def _frame(self, spark: SparkSession, name: str, rows: Decode | Rows) -> DataFrame:
        from pyspark.sql.types import StructType

        if isinstance(rows, Decode):
            return decoded_frame(spark, self.ref(name), rows)
        if isinstance(rows, str):
            return spark.sql(rows)
        types = spark.table(self.ref(name)).schema
        return spark.createDataFrame(rows, StructType([types[column] for column in rows.column_names]))
