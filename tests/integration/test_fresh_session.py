"""A Spark session that has run nothing yet, as after a start."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

from replication.tables.iceberg import IcebergTables
from tests.tables_made import keyed


def test_snapshots_expire_before_the_session_has_run_any_sql_and_in_any_thread(spark_tables: IcebergTables) -> None:
    spec = keyed(f"c{uuid4().hex[:8]}.t")
    spark_tables.create(spec)
    fresh = IcebergTables(spark_tables._catalog, spark_tables._spark.newSession())
    with ThreadPoolExecutor(1) as thread:
        thread.submit(fresh.expire, spec.name, 0, 1).result()
