"""Jobs of many tables: how they are divided, what fails for one table, and what failed attempts leave."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import os
import sys
import threading
import zipimport
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from replication.errors import CommitConflictError, EngineLostError, HostAwayError, PoisonFrameError
from replication.tables.base import Decode
from replication.tables.catalog.catalog import IcebergCatalog, catalog_properties
from replication.tables.pyiceberg.append import append_files, plan_write
from replication.tables.pyiceberg.write import WriteFiles, written_files
from replication.tables.spark import jobs as spark_jobs
from replication.tables.spark import worker_daemon
from replication.tables.spark.iceberg import IcebergTables
from replication.tables.spark.jobs import Jobs, packed
from tests.tables_made import as_decode, keyed

pytestmark = pytest.mark.heavy

NAMES = ("ops.a", "ops.b")


class Session:
    """Runs what ``mapPartitions`` is given at once; ``before`` is called for each task and may raise."""

    defaultParallelism = 2
    master = "local[4]"
    uiWebUrl = None

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.before = before
        self.sparkContext = self
        self.conf = {"spark.speculation": "false"}
        self.tasks: list[int] = []

    def getConf(self) -> dict[str, str]:
        return self.conf

    def setLocalProperty(self, key: str, value: str) -> None:
        pass

    def parallelize(self, rows: list[bytes], tasks: int) -> Session:
        assert len(rows) == tasks
        self.rows = rows
        return self

    def mapPartitions(self, run: Callable[[Iterable[bytes]], Iterator[bytes]]) -> Session:
        self.run = run
        return self

    def collect(self) -> list[bytes]:
        self.tasks.append(len(self.rows))
        done = []
        for row in self.rows:
            self.before()
            done += self.run([row])
        return done[::-1]

    def stop(self) -> None:
        pass


@pytest.fixture
def catalog(tmp_path: Path) -> IcebergCatalog:
    made = IcebergCatalog(catalog_properties(tmp_path))
    for name in NAMES:
        made.create(keyed(name))
    return made


def rows(*values: int) -> Decode:
    return as_decode(pa.table({"k": [f"k{value}" for value in values], "v": list(values)}))


def many_tasks(decode: Decode, count: int, size: int) -> Decode:
    return dataclasses.replace(decode, tasks=pa.concat_tables([decode.tasks] * count), size=size)


def write(catalog: IcebergCatalog, name: str, decode: Decode) -> WriteFiles:
    return plan_write(catalog.load(name), name, decode)


def files(folder: Path) -> set[Path]:
    return set((folder / "warehouse").rglob("*.parquet"))


def shown(catalog: IcebergCatalog, name: str) -> list[int]:
    return sorted(catalog.load(name).scan().to_arrow().column("v").to_pylist())


class Failing:
    """A ``Decode.run`` that raises."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise self.error
        yield


class Priority:
    """A ``Decode.run`` that yields the priority of its thread, and of one that it starts."""

    def __init__(self, rows: Decode) -> None:
        self.schema = rows.schema
        self.rows = rows

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with ThreadPoolExecutor(1) as thread:
            found = [priority(), thread.submit(priority).result()]
        for batch in self.rows.run(batches):
            values = pa.array(found, batch.schema.field("v").type)
            yield batch.set_column(batch.schema.get_field_index("v"), "v", values)


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a priority of their own on Linux only")
def test_other_work_goes_before_a_task_in_the_background_and_the_next_task_is_like_any(catalog: IcebergCatalog) -> None:
    made, usual = rows(0, 0), priority()
    parts = dataclasses.replace(made, run=Priority(made))
    here = Jobs(cast(Any, Session()))
    for name, background in (("ops.a", True), ("ops.b", False)):
        part = write(catalog, name, dataclasses.replace(parts, background=background))
        ((outcome,),), _ = here.run([part])
        append_files(catalog.load(name), None, written_files(catalog.load(name).io, [outcome]), {})
    assert shown(catalog, "ops.a") == [19, 19]
    assert shown(catalog, "ops.b") == [usual, usual]


@pytest.mark.parametrize(
    ("master", "cores", "tasks"), [("local[4]", 4, 4), ("spark://head:7077", 5, 2), ("yarn", 1, 1)]
)
def test_tasks_in_the_background_leave_cores_to_rounds(master: str, cores: int, tasks: int) -> None:
    session = Session()
    session.master, session.defaultParallelism = master, cores
    assert Jobs(cast(Any, session)).background_parallel == tasks


def test_tasks_get_about_the_same_and_no_more_than_there_are_cores(catalog: IcebergCatalog) -> None:
    writes = [
        write(catalog, "ops.a", many_tasks(rows(1), 8, 800)),
        write(catalog, "ops.b", many_tasks(rows(1), 1, 100)),
        write(catalog, "ops.b", many_tasks(rows(1), 1, 300)),
    ]
    tasks = packed(writes, 3)
    sizes = [sum((100, 100, 300)[at] * part.rows.tasks.num_rows for at, part in parts) for parts in tasks]
    assert sorted(sizes) == [400, 400, 400]
    names = {(at, part.part) for parts in tasks for at, part in parts}
    assert len(names) == sum(len(parts) for parts in tasks), "two parts of a table would write the same file"
    assert len(packed(writes[1:], 8)) == 2


def test_a_hundred_tables_are_one_job(catalog: IcebergCatalog) -> None:
    session = Session()
    tables = IcebergTables(catalog, cast(Any, session), small_bytes=0)
    staged = tables.stage([(NAMES[at % 2], rows(at)) for at in range(100)])
    assert session.tasks == [2] and len(staged) == 100
    assert (tables.work.jobs, tables.work.tasks, tables.work.job_rows) == (1, 2, 100)


def test_a_small_batch_is_no_job(catalog: IcebergCatalog) -> None:
    session = Session()
    tables = IcebergTables(catalog, cast(Any, session), small_bytes=100)
    tables.append("ops.a", many_tasks(rows(1), 1, 100), None, {})
    assert session.tasks == [] and shown(catalog, "ops.a") == [1]
    assert (tables.work.jobs, tables.work.driver_batches, tables.work.driver_bytes) == (0, 1, 100)


@pytest.mark.parametrize(
    "error", [PoisonFrameError("/a", 7, "torn"), HostAwayError("h1", "it is off"), OSError(5, "Input/output error")]
)
def test_what_fails_for_one_table_is_its_own(catalog: IcebergCatalog, tmp_path: Path, error: Exception) -> None:
    tables = IcebergTables(catalog, cast(Any, Session()), small_bytes=0)
    bad = dataclasses.replace(rows(1), run=Failing(error))
    broken, missing, good = tables.stage([("ops.a", bad), ("ops.none", rows(2)), ("ops.b", rows(3))])
    with pytest.raises(type(error), match=str(error.args[-1])):
        tables.append("ops.a", broken, None, {})
    with pytest.raises(Exception, match="none"):
        tables.append("ops.none", missing, None, {})
    tables.append("ops.b", good, None, {})
    assert shown(catalog, "ops.b") == [3] and len(files(tmp_path)) == 1


@pytest.mark.parametrize("small_bytes", [0, 1 << 20], ids=["job", "driver"])
def test_what_nobody_foresaw_of_one_table_is_its_own(
    catalog: IcebergCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_bytes: int
) -> None:
    load = catalog.load

    def loaded(name: str) -> Any:
        if name == "ops.none":
            raise RuntimeError("the catalog's database is locked")
        return load(name)

    monkeypatch.setattr(catalog, "load", loaded)
    tables = IcebergTables(catalog, cast(Any, Session()), small_bytes=small_bytes)
    bad = dataclasses.replace(rows(1), run=Failing(KeyError("a bug")), size=1)
    good = dataclasses.replace(rows(3), size=1)
    broken, locked, fine = tables.stage([("ops.a", bad), ("ops.none", good), ("ops.b", good)])
    with pytest.raises(KeyError, match="a bug"):
        tables.append("ops.a", broken, None, {})
    with pytest.raises(RuntimeError, match="locked"):
        tables.append("ops.none", locked, None, {})
    tables.append("ops.b", fine, None, {})
    tables.close()
    assert len(files(tmp_path)) == 1


def test_files_that_cannot_be_deleted_stay_and_rounds_go_on(
    catalog: IcebergCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(part: WriteFiles, attempt: int) -> int:
        raise OSError("the store does not answer")

    monkeypatch.setattr(WriteFiles, "remove_attempt", unreachable)
    monkeypatch.setattr(spark_jobs, "attempt_number", lambda: 1)
    jobs = Jobs(cast(Any, Session()))
    jobs.run([write(catalog, "ops.a", rows(1))])
    jobs.remove_leftovers(at_once=True)


@pytest.mark.parametrize("why", ["Job aborted due to stage failure: ExecutorLostFailure", ""])
def test_after_a_job_that_failed_each_table_has_a_job_of_its_own(
    catalog: IcebergCatalog, tmp_path: Path, why: str
) -> None:
    """The first fails with a table's rows already written; what it left is deleted, and in no commit."""
    failures = iter([False, True])

    def before() -> None:
        if next(failures, False):
            raise RuntimeError(why)

    now_s = 0.0
    tables = IcebergTables(catalog, cast(Any, Session(before)), small_bytes=0)
    tables.jobs = Jobs(cast(Any, Session(before)), lambda: now_s)
    staged = tables.stage([("ops.a", rows(1)), ("ops.b", rows(2))])
    assert len(files(tmp_path)) == 3
    for name, each in zip(NAMES, staged, strict=True):
        tables.append(name, each, None, {})
    tables.jobs.remove_leftovers()
    assert len(files(tmp_path)) == 3, "whoever wrote it may still be writing"
    now_s = 61.0
    tables.jobs.remove_leftovers()
    assert len(files(tmp_path)) == 2 and shown(catalog, "ops.a") == [1] and shown(catalog, "ops.b") == [2]


def test_what_an_earlier_attempt_wrote_is_in_no_commit_and_goes(
    catalog: IcebergCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when an executor was killed after it had written its files: its task runs again."""
    parts = spark_jobs.run_parts

    def twice(rows: Iterable[bytes]) -> Iterator[bytes]:
        task = list(rows)
        list(parts(task))
        monkeypatch.setattr(spark_jobs, "attempt_number", lambda: 1)
        return parts(task)

    monkeypatch.setattr(spark_jobs, "run_parts", twice)
    tables = IcebergTables(catalog, cast(Any, Session()), small_bytes=0)
    tables.append("ops.a", rows(1, 2), None, {})
    assert len(files(tmp_path)) == 2 and tables.work.retries == 1
    tables.close()
    assert len(files(tmp_path)) == 1 and shown(catalog, "ops.a") == [1, 2]


def test_what_the_twin_of_a_slow_attempt_wrote_is_in_no_commit_and_goes(
    catalog: IcebergCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark runs an attempt beside one that is slow, and the first one wins."""
    parts = spark_jobs.run_parts

    def both(rows: Iterable[bytes]) -> Iterator[bytes]:
        task = list(rows)
        monkeypatch.setattr(spark_jobs, "attempt_number", lambda: 1)
        list(parts(task))
        monkeypatch.setattr(spark_jobs, "attempt_number", lambda: 0)
        return parts(task)

    monkeypatch.setattr(spark_jobs, "run_parts", both)
    session = Session()
    session.conf["spark.speculation"] = "true"
    tables = IcebergTables(catalog, cast(Any, session), small_bytes=0)
    tables.append("ops.a", rows(1, 2), None, {})
    assert len(files(tmp_path)) == 2
    tables.close()
    assert len(files(tmp_path)) == 1 and shown(catalog, "ops.a") == [1, 2]


def test_a_decode_without_tasks_is_no_job(catalog: IcebergCatalog) -> None:
    session = Session()
    tables = IcebergTables(catalog, cast(Any, session), small_bytes=-1)
    nothing = dataclasses.replace(rows(1), tasks=rows(1).tasks.slice(0, 0), size=0)
    assert tables.append("ops.a", nothing, None, {}) is None and session.tasks == []


def test_files_of_a_refused_commit_go(catalog: IcebergCatalog, tmp_path: Path) -> None:
    tables = IcebergTables(catalog, cast(Any, Session()), small_bytes=0)
    (staged,) = tables.stage([("ops.a", rows(1))])
    tables.append("ops.a", rows(2), None, {})
    with pytest.raises(CommitConflictError):
        tables.append("ops.a", staged, None, {})
    assert len(files(tmp_path)) == 1 and shown(catalog, "ops.a") == [2]


def test_a_lost_session_is_not_tried_again(catalog: IcebergCatalog) -> None:
    def lost() -> None:
        raise ConnectionRefusedError("the gateway is gone")

    tables = IcebergTables(catalog, cast(Any, Session(lost)), small_bytes=0)
    with pytest.raises(EngineLostError):
        tables.stage([("ops.a", rows(1)), ("ops.b", rows(2))])


def test_workers_are_forked_with_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    invalidate = zipimport.zipimporter.invalidate_caches
    monkeypatch.setattr(importlib, "import_module", imported.append)
    monkeypatch.setattr(gc, "freeze", lambda: imported.append("frozen"))
    try:
        worker_daemon.prepare()
        assert zipimport.zipimporter.invalidate_caches is not invalidate
    finally:
        zipimport.zipimporter.invalidate_caches = invalidate  # type: ignore[method-assign]
    assert {"pyarrow.parquet", "pyspark.worker", "replication.tables.spark.jobs"} <= set(imported)
    assert imported[-1] == "frozen"


def test_tasks_do_not_know_how_the_catalogs_database_is_reached(catalog: IcebergCatalog) -> None:
    table = catalog.load("ops.a")
    assert "uri" in table.io.properties
    assert "uri" not in plan_write(table, "ops.a", rows(1)).io_properties
    table.io.properties = {"uri": "https://rest/catalog", "s3.endpoint": "e"}
    assert plan_write(table, "ops.a", rows(1)).io_properties == table.io.properties, "a REST catalog signs requests"
