"""An archive of the classes that Spark loads; with it the JVM starts in two thirds of the time.

Set-up makes it once per Python environment: ``python -m replication.tables.spark.class_archive``. Another JVM, or one
with other jars, ignores it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

from replication.errors import ReplicationError
from replication.tables.catalog.catalog import CATALOG, IcebergCatalog, catalog_properties
from replication.tables.spark.iceberg import IcebergTables
from replication.tables.spark.jars import new_class_archive
from replication.tables.spark.session import open_session

_WRITING_S = 300


def make_class_archive() -> None:
    """Run a session with typical replay work and queries, and archive the classes it loads: 45 s, 180 MB.

    Raises:
        OSError: the Python environment is not writable.
        ReplicationError: Spark does not start.
        TimeoutExpired: the JVM did not write the archive within ``_WRITING_S``.
    """
    with new_class_archive("spark") as target, tempfile.TemporaryDirectory(prefix="walship-archive-") as scratch:
        _session(Path(scratch), target)


def _session(scratch: Path, target: Path) -> None:
    from pyspark import SparkContext

    properties = catalog_properties(scratch)
    spark = open_session(properties, scratch / "spark", archive_to=target)
    tables = IcebergTables(IcebergCatalog(properties), spark)
    table = tables.ref("ops.sample")
    tables.query(f"create database {CATALOG}.ops")
    tables.query(f"create table {table} (k string, v bigint) using iceberg")
    rows = spark.createDataFrame(pa.table({"k": ["a", "b"], "v": [1, 2]}))
    rows.mapInArrow(lambda batches: batches, rows.schema).createOrReplaceTempView("more")
    tables.query(f"insert into {table} select * from more order by k")
    tables.query(f"select k, max(v), count(*) from {table} group by k")
    tables.query(f"select * from {table} anti join more using (k) union all select * from {table} where k = 'a'")
    jvm = SparkContext._gateway
    tables.close()
    if jvm is not None:
        jvm.shutdown()
        jvm.proc.stdin.close()
        jvm.proc.wait(_WRITING_S)


if __name__ == "__main__":
    try:
        make_class_archive()
    except (OSError, ReplicationError, subprocess.TimeoutExpired) as error:
        print(f"No archive of Spark's classes ({error}); Spark works, but starts slower", file=sys.stderr)
