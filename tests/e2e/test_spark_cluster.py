"""A cluster whose replay runs on a real Spark cluster, of a master and two workers, under fire.

Executors share no memory and no working directory with the driver, which decodes nothing itself once it has them.
"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from peer.client.comparison import compare_clusters
from peer.tables.maintenance import ORPHAN_AGE_US
from replication.tables.catalog.catalog import IcebergCatalog, configured_catalog
from replication.tables.layout import CHANGES
from shell.processes.launched import await_ready
from shell.processes.spark_cluster import SparkCluster
from tests.e2e.conftest import START_TIMEOUT_S, Site, await_fold, define, second_host, start
from tests.e2e.spark_executors import (
    await_application,
    committed,
    executors,
    executors_of,
    frozen,
    killed_in_a_task,
    tasks_of_all,
    unnamed,
)
from tests.e2e.test_two_clusters import Load
from tests.waiting import wait_until

SCHEMA = pa.schema([("id", pa.int64()), ("version", pa.int64()), ("text", pa.string())])
#: As short as a machine with two busy cores allows, so that tests need not wait for Spark's minutes.
SOON = {
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "5s",
    "spark.executor.heartbeatInterval": "2s",
}
ALONE = {"spark.cores.max": "2", "spark.executor.cores": "1"}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("spark"), properties={"spark.worker.timeout": "10"}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def pair(spark: SparkCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Site]]:
    """East, and west, whose replay decodes everything on the Spark cluster."""
    folder = tmp_path_factory.mktemp("on-spark")
    replay = {"spark_master": spark.url, "driver_bytes_max": 1, "spark_idle_s": 0.0, "spark": {**SOON, **ALONE}}
    made = [start(folder / "east", "east", replay={"spark_master": "local[1]"})]
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in spark.environment.items():
                patch.setenv(name, value)
            made.append(start(folder / "west", "west", replay=replay))
        await_ready(made, START_TIMEOUT_S)
        east, west = made
        await_application(spark, "")
        wait_until(lambda: "spark_started" in events(west, "replay"), timeout_s=400, what="west's replay to have Spark")
        define(east, west)
        yield east, west
    finally:
        for site in made:
            site.process.terminate()
        for site in made:
            site.stop()


def events(site: Site, role: str) -> set[str]:
    """The names of the events in a role's log."""
    lines = (site.config.log_dir / f"{role}.log").read_text().splitlines()
    return {json.loads(line)["event"] for line in lines}


@contextmanager
def under_load(east: Site, west: Site) -> Iterator[Load]:
    """Rows are written, changed and deleted meanwhile; in the end both sides have them, each once."""
    table, log = f"e2e.s{uuid4().hex[:8]}", f"e2e.slog{uuid4().hex[:8]}"
    with east.connect() as here, west.connect() as there:
        here.create_table(table, SCHEMA, ["id"])
        here.create_table(log, SCHEMA)
        east.shell("enablereplication", "-t", table, "-t", log, "west")
        load = Load(here, table, log)
        try:
            arrives(load)
            yield load
        finally:
            position = load.finish()
        for cluster in ("east", "west"):
            here.wait(position, cluster=cluster, until="visible", timeout_s=400)
        wanted = sorted(load.rows.values(), key=lambda row: row["id"])
        for cluster in (here, there):
            found = sorted(cluster.read(table).read_all().to_pylist(), key=lambda row: row["id"])
            assert found == wanted, cluster.name
            assert cluster.read(log, columns=["id"]).read_all().num_rows == load.appended, cluster.name
        for verdict in compare_clusters(here, there, [table, log], 120):
            assert verdict.same and verdict.identical, verdict
    assert not west.json("status")["quarantined"]


def arrives(load: Load) -> None:
    """What is written from now on becomes visible at west."""
    before = load.appended
    wait_until(lambda: load.appended > before or load.error, timeout_s=400, what="another batch")
    load.cluster.wait(load.position, cluster="west", until="visible", timeout_s=400)


def bare_python(folder: Path) -> Path:
    """A Python with pyarrow, and numpy, which it requires, but with no other package and no virtual environment."""
    folder.mkdir()
    for name in ("pyarrow", "numpy"):
        place = Path(importlib.import_module(name).__file__ or "").parent
        for each in (place, place.with_name(f"{name}.libs")):
            if each.exists():
                (folder / each.name).symlink_to(each)
    program = folder / "python"
    run = shlex.join((str(Path(sys.executable).resolve()), "-S"))
    program.write_text(f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH:{folder}"\nexec {run} "$@"\n')
    program.chmod(0o755)
    return program


@pytest.mark.slow
def test_replay_runs_by_spark_submit_on_executors_that_have_python_and_pyarrow_only(spark, tmp_path):
    python = bare_python(tmp_path / "bare")
    properties = {**ALONE, "spark.pyspark.python": str(python)}
    site = start(
        tmp_path / "alone",
        "alone",
        arguments=("--roles", "zookeeper,master,worker,receiver"),
        replay={"spark_master": spark.url, "driver_bytes_max": 1, "spark": properties},
    )
    submit = [sys.executable, "-m", "shell.main", "--cluster", str(site.file), "replay", "--submit"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | spark.environment
    try:
        site.await_roles("master", "worker", "receiver")
        with (tmp_path / "submit.out").open("wb") as out:
            replay = subprocess.Popen(submit, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            wait_until(lambda: site.ready("replay") or replay.poll() is not None, timeout_s=400, what="replay")
            assert replay.poll() is None, (tmp_path / "submit.out").read_text()
            wait_until(lambda: "spark_started" in events(site, "replay"), timeout_s=400, what="an executor")
            assert (site.config.run_dir / "submit" / "spark.conf").stat().st_mode & 0o077 == 0
            with site.connect() as here:
                here.create_table("e2e.submitted", SCHEMA, ["id"])
                rows = [{"id": i, "version": 0, "text": f"row {i}"} for i in range(20_000)]
                here.upsert("e2e.submitted", rows[:10_000])
                here.wait(here.upsert("e2e.submitted", rows[10_000:]), until="visible", timeout_s=400)
                assert here.read("e2e.submitted").read_all().num_rows == 20_000
            work = wait_until(
                lambda: (work := site.json("status")["replay"]["work"])["job_rows"] == 20_000 and work,
                what="the report of 20,000 rows by jobs",
            )
            assert work["tasks"]
        finally:
            replay.send_signal(signal.SIGINT)
            replay.wait(400)
        wait_until(lambda: not spark.state()["activeapps"], timeout_s=400, what="the end of the application")
    finally:
        site.stop()


def test_rows_old_and_new_imported_and_derived_arrive_by_executors_and_verify_says_equal(spark, pair, tmp_path):
    east, west = pair
    space = f"sp{uuid4().hex[:8]}"
    old, bulk, people = (f"{space}.{name}" for name in ("old", "bulk", "people"))
    rows = [{"id": i, "version": 0, "text": f"row {i}"} for i in range(20_000)]
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), file)
    with east.connect() as here, west.connect() as there:
        for name in (old, bulk, people):
            here.create_table(name, SCHEMA, ["id"])
        east.shell("derivetable", f"{people}_out", "--from", people, "--hook", "select", "-o", "where=id < 10000")
        here.wait(here.upsert(old, rows), until="visible", timeout_s=400)
        before = tasks_of_all(spark)
        east.shell("enablereplication", "-t", old, "--bootstrap", "west")
        east.shell("enablereplication", "-t", bulk, "-t", f"{people}_out", "west")
        east.shell("import", "-t", bulk, str(file), "--wait", "west", "--timeout-s", "400")
        here.upsert(people, rows)
        here.delete(people, [{"id": 7}])
        east.shell("bootstrap", "west", "-t", old, "--wait", "400")
        position = here.upsert(old, [{"id": i, "version": 1, "text": "new"} for i in range(0, 20_000, 2)])
        position = position.join(here.delete(old, [{"id": i} for i in range(1, 2000, 2)]))
        here.wait(position, cluster="west", until="visible", timeout_s=400)
        wait_until(
            lambda: there.read(f"{people}_out", columns=["id"]).read_all().num_rows == 9_999,
            timeout_s=400,
            what="west to have the derived rows",
        )
        assert there.read(old, where="version = 1").read_all().num_rows == 10_000
        assert there.read(old, columns=["id"]).read_all().num_rows == 19_000
        await_fold(there, old)
    assert tasks_of_all(spark) > before
    assert not west.below("replay", "pyspark.worker"), "the driver has no Python workers of its own"
    (application,) = spark.state()["activeapps"]
    assert application["cores"] == 2
    wait_until(
        lambda: west.json("status")["replay"]["work"]["job_rows"] >= 60_000, what="the report of 60,000 rows by jobs"
    )

    def verified_by_jobs() -> bool:  # a comparison does without a job that takes half a minute
        equal = east.shell("verify", "west", old, bulk, f"{people}_out")
        assert equal.count("the same") == 3, equal
        with suppress(AssertionError):
            return wait_until(lambda: west.json("status")["replay"]["work"]["queries"] >= 3, timeout_s=20)
        return False

    wait_until(verified_by_jobs, timeout_s=300, what="the report of three jobs of verify")


@pytest.mark.slow  # as test_two_clusters kills those of a local master
def test_executors_killed_in_the_middle_of_a_task_lose_and_double_nothing(spark, pair):
    _, west = pair
    with under_load(*pair) as load, closing(IcebergCatalog(configured_catalog(west.config))) as catalog:
        first = killed_in_a_task(spark)
        arrives(load)
        second = killed_in_a_task(spark)
        assert first.log != second.log
        arrives(load)
        for name in (f"{load.table}{CHANGES}", load.log):
            left = unnamed(catalog, name)
            wait_until(lambda n=name, f=left: not f & unnamed(catalog, n), timeout_s=400, what="what they left to go")


@pytest.mark.slow
def test_while_a_worker_stands_still_the_other_one_does_its_tasks(spark, pair):
    with under_load(*pair) as load:
        worker = spark.worker[1]
        wait_until(
            lambda: any(each.in_progress() for each in executors_of(spark, worker)), timeout_s=400, what="a task there"
        )
        with frozen(worker):
            arrives(load)
        wait_until(lambda: len(spark.alive_workers()) == 2, timeout_s=400, what="the worker to be registered again")
        arrives(load)


@pytest.mark.slow
def test_what_lands_on_another_host_of_the_cluster_is_read_from_it_by_executors(spark, pair, tmp_path):
    east, west = pair
    other = second_host(west, tmp_path / "west-h1")
    landing = tmp_path / "west-h1" / "landing"
    try:
        other.await_roles("receiver")
        with under_load(east, west) as load:
            wait_until(
                lambda: len(west.json("status")["members"]["receivers"]) == 2, timeout_s=400, what="two receivers"
            )
            killed = west.kill("receiver")
            wait_until(lambda: any(landing.glob("*.wal")), timeout_s=400, what="the second host to land something")
            tasks = tasks_of_all(spark)
            arrives(load)
            assert tasks_of_all(spark) > tasks
            wait_until(lambda: west.ready("receiver", other_than=killed), timeout_s=400, what="the first receiver")
        assert all(file.stat().st_size for file in landing.glob("*.wal"))
    finally:
        other.stop()


@pytest.mark.slow
def test_small_files_are_merged_by_executors_while_rows_arrive(spark, pair):
    _, west = pair
    log = west.config.log_dir / "replay.log"
    with under_load(*pair) as load:

        def merged() -> bool:
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            made = [line for line in lines if line["event"] == "compacted" and line["table"] == load.log]
            return any(line["files"] >= 24 for line in made)

        wait_until(merged, timeout_s=400, what="a compaction")
        arrives(load)


@pytest.mark.slow
def test_a_driver_killed_between_job_and_commit_goes_on_as_a_new_application_without_the_files(spark, pair):
    _, west = pair
    with under_load(*pair) as load:
        catalog = IcebergCatalog(configured_catalog(west.config))
        old, application = 0, ""
        folder = west.config.warehouse_dir.joinpath(*load.log.split("."), "data")

        def killed() -> str | None:
            """Kill it as soon as an executor has written a file; its name, if no commit has it."""
            nonlocal old, application
            wait_until(lambda: west.ready("replay", other_than=old), timeout_s=400, what="west's replay")
            old = west.state("replay").pid
            application = await_application(spark, application)
            before = {file.name for file in folder.iterdir()}
            (new, *_) = wait_until(
                lambda: {file.name for file in folder.iterdir() if file.suffix == ".parquet"} - before,
                timeout_s=400,
                what="a data file",
            )
            os.kill(old, signal.SIGKILL)
            if new in committed(catalog, load.log):
                return None
            os.utime(folder / new, (long_ago := time.time() - 2 * ORPHAN_AGE_US / 1e6, long_ago))
            return new

        try:
            file = wait_until(killed, timeout_s=300, what="a kill between job and commit")
            wait_until(lambda: west.ready("replay", other_than=old), timeout_s=400, what="west's replay again")
            arrives(load)
            assert file not in committed(catalog, load.log)
            wait_until(lambda: not (folder / file).exists(), timeout_s=400, what="the file to be removed")
        finally:
            catalog.close()


@pytest.mark.slow
def test_without_its_master_replay_goes_on_and_with_a_new_one_gets_executors_again(spark, pair):
    with under_load(*pair) as load:
        (application,) = [each["id"] for each in spark.state()["activeapps"]]
        os.kill(spark.master.pid, signal.SIGKILL)
        spark.master.process.wait(400)
        arrives(load)
        spark.start_master()
        wait_until(lambda: len(spark.alive_workers()) == 2, timeout_s=400, what="the workers to be registered again")
        old = killed_in_a_task(spark)
        wait_until(lambda: len(executors(spark)) == 2, timeout_s=400, what="another executor instead of the killed one")
        assert old not in executors(spark)
        assert [each["id"] for each in spark.state()["activeapps"]] == [application]
        arrives(load)
