"""A Spark data source of datasets as of an instant: ``spark.read.format("walship").option("cluster", …).load("lake")``.

The driver asks the timeline once, holds the files, and gives each task some of them. A task checks its files after it
has read them, so a query that succeeds has read the rows of one instant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from peer.timeline.reading.dataset import HOLD_S, DatasetSnapshot, dataset
from peer.timeline.reading.instant import ReadInstant
from replication.core.timeline.instants import FileVersion
from replication.errors import RequestError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_TASK_BYTES = 128 << 20
_TASK_FILES = 1000


def register(spark: SparkSession) -> None:
    """Make the format ``walship`` known to a session.

    Options: ``cluster`` (its TOML file or ZooKeeper address), ``asOf`` (an instant), ``fileFormat`` (``parquet`` by
    default), ``holdSeconds``.
    """
    spark.dataSource.register(WalshipDataSource)


@dataclass
class FilesOfTask(InputPartition):
    """The files that one task reads."""

    read: ReadInstant
    versions: list[FileVersion]


class WalshipDataSource(DataSource):
    """A dataset of a timeline, as Spark's Python data source API has it."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "walship"

    def schema(self) -> StructType:
        """Of the first file."""
        from pyspark.sql.pandas.types import from_arrow_schema

        from peer.timeline.reading.rows import schema_of

        with self._opened() as found:
            return from_arrow_schema(schema_of(found.read_instant, found.versions, self._format))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the files."""
        return _Reader(self._opened(), self._format, schema)

    @property
    def _format(self) -> str:
        return self.options.get("fileFormat", "parquet")

    def _opened(self) -> DatasetSnapshot:
        options: Any = self.options
        name, cluster = options.get("path", ""), options.get("cluster", "")
        if not name or not cluster:
            raise RequestError("the option cluster or the dataset is missing", "option('cluster', FILE).load(DATASET)")
        as_of = options.get("asOf")
        held_s = float(options.get("holdSeconds", HOLD_S))
        return dataset(name, cluster).files(int(as_of) if as_of else None, hold_s=held_s)


class _Reader(DataSourceReader):
    def __init__(self, found: DatasetSnapshot, format: str, schema: StructType) -> None:
        self._read, self._versions = found.read_instant, found.versions
        self._format, self._schema = format, schema

    def partitions(self) -> list[InputPartition]:
        """Files together, up to ``_TASK_BYTES`` and ``_TASK_FILES``."""
        tasks: list[InputPartition] = []
        some: list[FileVersion] = []
        size = 0
        for version in self._versions:
            if some and (size + version.size > _TASK_BYTES or len(some) >= _TASK_FILES):
                tasks.append(FilesOfTask(self._read, some))
                some, size = [], 0
            some.append(version)
            size += version.size
        return [*tasks, FilesOfTask(self._read, some)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some files."""
        from pyspark.sql.pandas.types import to_arrow_schema

        from peer.timeline.reading.rows import batches

        assert isinstance(partition, FilesOfTask)
        yield from batches(partition.read, partition.versions, self._format, to_arrow_schema(self._schema))
