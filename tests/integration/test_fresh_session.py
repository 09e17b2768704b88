"""A Spark session that has run nothing yet, as after a start."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from replication.tables.spark.iceberg import IcebergTables
from tests.tables_made import keyed


def test_snapshots_expire_before_the_session_has_run_any_sql_and_in_any_thread(spark_tables: IcebergTables) -> None:
    spec = keyed(f"c{uuid4().hex[:8]}.t")
    spark_tables.create(spec)
    with spark_tables._spark.use() as spark:
        fresh = IcebergTables(spark_tables._catalog, spark.newSession())
    with ThreadPoolExecutor(1) as thread:
        thread.submit(fresh.expire, spec.name, 0, 1).result()


_SEEN = """
import psutil, sys
from dataclasses import replace
from pathlib import Path
from pyspark import SparkContext
from pyspark.errors import AnalysisException
from replication.tables.catalog.catalog import catalog_properties
from replication.tables.spark.session import open_session
folder = Path(sys.argv[1])
catalog = catalog_properties(folder)
catalog = replace(catalog, spark={**catalog.spark, "jdbc.password": "hidden-1"})
given = {"spark.hadoop.fs.s3a.secret.key": "hidden-2", "spark.app.name": "shown"}
spark = open_session(catalog, folder / "spark", properties=given)
pid = SparkContext._gateway.proc.pid
print(" ".join(psutil.Process(pid).cmdline()))
conf = spark.sparkContext.getConf()
print([conf.get(key) for key in ("spark.sql.catalog.walship.jdbc.password", "spark.hadoop.fs.s3a.secret.key")])
print(spark.sparkContext.parallelize([3], 1).map(lambda number: number + 1).collect())
try:
    spark.sql("select nosuchcolumn from range(1)")
except AnalysisException:
    print("a query was refused")
spark._jvm.java.lang.System.err.println("said by Java")
spark.stop()
"""


def test_passwords_are_not_on_java_s_command_line_no_module_of_the_folder_is_loaded_and_a_user_sees_no_logs(
    tmp_path: Path,
) -> None:
    """Python workers load no modules of the current folder, either."""
    for name in ("duckdb", "pyarrow", "pyiceberg"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError({name!r})")
    done = subprocess.run(
        [sys.executable, "-P", "-c", _SEEN, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=400,
        check=True,
    )
    *shown, reached, computed, refused = done.stdout.strip().split("\n")
    command = "\n".join(shown)
    assert refused == "a query was refused"
    assert computed == "[4]"
    assert reached == "['hidden-1', 'hidden-2']"
    assert "spark.app.name=shown" in command and "hidden" not in command
    assert done.stderr == "said by Java\n"


_ALONE = """
import os, sys
import structlog
from pathlib import Path
from replication.errors import SparkMissingError
from replication.tables.catalog.catalog import catalog_properties
from replication.tables.spark.application import Application
from replication.tables.spark.session import open_session
from shell.processes.spark_cluster import SparkCluster
from tests.waiting import wait_until
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
folder = Path(sys.argv[1])
with SparkCluster(folder / "cluster", workers=1) as cluster:
    (worker,) = cluster.worker
    worker.process.kill()
    worker.process.wait()
    wait_until(lambda: not cluster.alive_workers(), what="the worker's end")
    os.environ.update(cluster.environment)
    start = lambda: open_session(catalog_properties(folder), folder / "spark", master=cluster.url)
    application = Application(start, 60.0, executor_s=1.0)
    try:
        with application.use():
            pass
    except SparkMissingError as error:
        print(error.what.replace(cluster.url, "the master"), "|", error.hint)
    print(application.state.replace(cluster.url, "the master"))
    cluster.launch(worker)
    wait_until(application.want, what="the application")
    with application.use() as spark:
        print(spark.range(3).count())
    application.close()
"""


@pytest.mark.slow
def test_a_session_without_an_executor_is_told_so_and_goes_on_once_it_has_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ALONE, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=400,
        check=True,
    )
    told, waits, counted = done.stdout.splitlines()
    assert told.startswith("the master has given this application no executor within 1 s") and "spark.cores.max" in told
    assert waits == "waits for cores of the master" and counted == "3"


_AGAIN = """
import os, sys
import structlog
from pathlib import Path
from replication.tables.catalog.catalog import catalog_properties
from replication.tables.spark.application import Application
from replication.tables.spark.jobs import warm_up
from replication.tables.spark.session import open_session
from tests.e2e.conftest import processes_below
from tests.waiting import wait_until
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
folder = Path(sys.argv[1])
application = Application(lambda: open_session(catalog_properties(folder), folder / "spark"), 0.1, warm_up)
def of_spark():
    return [line for line in processes_below(os.getpid()).values() if "spark" in line]
for _ in range(2):
    with application.use() as spark:
        print(spark.range(3).count(), len(of_spark()) > 1)
    wait_until(lambda: not of_spark(), what="the end of Java and of Python workers")
application.close()
print("ended")
"""


@pytest.mark.slow
def test_an_application_ends_with_all_its_processes_and_starts_again_in_the_same_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _AGAIN, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.stdout.split() == ["3", "True", "3", "True", "ended"], done.stderr
