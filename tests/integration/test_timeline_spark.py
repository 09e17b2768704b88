"""The Spark data source: a DataFrame of a dataset as of an instant, which fails if files change under it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from peer.timeline.reading.spark import WalshipDataSource, register
from replication import config as configuration
from replication.datasets.publication.recording import RecordedDataset
from replication.datasets.stores.local import LocalStore
from replication.errors import ChangedFileError
from replication.tables.spark.iceberg import IcebergTables
from replication.timeline.recorded import RecordedTimeline
from replication.timeline.stored import open_records
from tests.copying import job
from tests.unit.peer.timeline.test_reading import write_rows


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "east.toml").write_text(configuration.default_toml("east", "."))
    write_rows(tmp_path / "src/p/1.parquet", 1, 2)
    write_rows(tmp_path / "src/q/2.parquet", 3)
    copy(tmp_path)
    return tmp_path


def copy(at: Path) -> int:
    """Copy ``src`` to ``dst``, recorded as "lake"; the newest instant."""
    url = configuration.load(at / "east.toml").timeline_url
    made = job(LocalStore(str(at / "src")), LocalStore(str(at / "dst")))
    made.recorded = RecordedDataset(url, "lake")
    made.run()
    return RecordedTimeline(open_records(url)).state().instant


def test_a_data_frame_has_the_rows_of_its_instant(site: Path, spark_tables: IcebergTables) -> None:
    spark: Any = SparkSession.active()
    register(spark)
    asked = spark.read.format("walship").option("cluster", str(site / "east.toml"))
    first = copy(site)
    write_rows(site / "src/r/3.parquet", 4)
    copy(site)
    newest = asked.load("lake")
    assert newest.dtypes == [("n", "bigint")]
    assert sorted(row.n for row in newest.collect()) == [1, 2, 3, 4]
    assert sorted(row.n for row in asked.option("asOf", str(first)).load("lake").collect()) == [1, 2, 3]


def test_a_task_fails_if_a_file_was_written_over_since_the_read_was_planned(site: Path) -> None:
    options = {"cluster": str(site / "east.toml"), "path": "lake"}
    source = WalshipDataSource(options)
    planned = source.reader(source.schema())
    (task,) = planned.partitions()
    sent = pickle.loads(pickle.dumps((planned, task)))
    assert sum(batch.num_rows for batch in planned.read(task)) == 3
    write_rows(site / "src/p/1.parquet", 9, 10, 11)
    copy(site)
    with pytest.raises(ChangedFileError, match="was changed by a copy"):
        list(sent[0].read(sent[1]))
