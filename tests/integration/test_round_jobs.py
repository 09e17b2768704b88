"""A round of many tables on a real Spark session: one job, in workers that start warm."""

from __future__ import annotations

import sys
import zipimport
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from replication.tables.spark.iceberg import IcebergTables
from tests.integration.conftest import spark_warehouse
from tests.integration.replay_site import Site
from tests.tables_made import keyed


def what_workers_have(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The module that is the daemon's own, the modules that are there before any job, and whether archives are kept."""
    list(batches)
    kept = zipimport.zipimporter.invalidate_caches.__name__
    yield pa.record_batch([[sys.modules["__main__"].__spec__.name, kept, *sys.modules]], names=["name"])  # type: ignore[union-attr]


def test_a_round_of_many_tables_is_one_job(
    tmp_path: Path, spark_tables: IcebergTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_tables, "small_bytes", -1)
    site = Site(tmp_path, spark_warehouse(spark_tables))
    specs = [site.table(keyed(f"{site.warehouse.namespace}.t{number}")) for number in range(20)]
    replayer = site.replayer()
    for spec in specs:
        site.put(("a", 0), spec=spec)
    replayer.round()
    for number, spec in enumerate(specs):
        site.put(("a", number), ("b", number), spec=spec)
    jobs, rows = spark_tables.work.jobs, spark_tables.work.job_rows
    assert replayer.round().tables == 20
    assert (spark_tables.work.jobs - jobs, spark_tables.work.job_rows - rows) == (1, 40)
    for number, spec in enumerate(specs):
        assert site.rows(spec) == {"a": number, "b": number}
    site.ledger.close()


def test_workers_share_what_their_daemon_imported(spark_tables: IcebergTables) -> None:
    with spark_tables._spark.use() as spark:
        frame = spark.range(1).mapInArrow(what_workers_have, "name string")
    daemon, kept, *modules = frame.toArrow().column(0).to_pylist()
    assert daemon == "replication.tables.spark.worker_daemon" and kept == "_unchanged"
    assert {"replication.tables.pyiceberg.write", "pyarrow.parquet"} <= set(modules)
