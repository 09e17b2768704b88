"""A Spark session that has run nothing yet, as after a start."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

from replication.tables.spark.iceberg import IcebergTables
from tests.tables_made import keyed


def test_snapshots_expire_before_the_session_has_run_any_sql_and_in_any_thread(spark_tables: IcebergTables) -> None:
    spec = keyed(f"c{uuid4().hex[:8]}.t")
    spark_tables.create(spec)
    fresh = IcebergTables(spark_tables._catalog, spark_tables._spark.newSession())
    with ThreadPoolExecutor(1) as thread:
        thread.submit(fresh.expire, spec.name, 0, 1).result()


_STARTED = """
import sys
from pathlib import Path
from replication.tables.catalog.catalog import catalog_properties
from replication.tables.spark.session import open_session
folder = Path(sys.argv[1])
spark = open_session(catalog_properties(folder), folder / "spark")
spark._jvm.java.lang.System.err.println("said by Java")
spark.stop()
"""


_SEEN = """
import subprocess, sys
from dataclasses import replace
from pathlib import Path
from pyspark import SparkContext
from replication.tables.catalog.catalog import catalog_properties
from replication.tables.spark.session import open_session
folder = Path(sys.argv[1])
catalog = catalog_properties(folder)
catalog = replace(catalog, spark={**catalog.spark, "jdbc.password": "hidden-1"})
given = {"spark.hadoop.fs.s3a.secret.key": "hidden-2", "spark.app.name": "shown"}
spark = open_session(catalog, folder / "spark", properties=given)
pid = str(SparkContext._gateway.proc.pid)
print(subprocess.run(["ps", "-ww", "-o", "args=", "-p", pid], capture_output=True, text=True, check=True).stdout)
conf = spark.sparkContext.getConf()
print([conf.get(key) for key in ("spark.sql.catalog.walship.jdbc.password", "spark.hadoop.fs.s3a.secret.key")])
spark.stop()
"""


def test_passwords_reach_the_session_and_are_not_on_java_s_command_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SEEN, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    command, _, reached = done.stdout.strip().rpartition("\n")
    assert reached == "['hidden-1', 'hidden-2']"
    assert "spark.app.name=shown" in command and "hidden" not in command


def test_of_what_java_says_a_user_sees_all_but_its_warning_of_modules(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _STARTED, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("", "said by Java\n")
