"""A site whose replay process answers queries by jobs, and rows of every kind of value."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from replication import config as configuration
from replication.config import Config
from replication.tables.spark import queries
from replication.tables.spark.application import Application
from replication.tables.spark.iceberg import IcebergTables
from replication.tables.spark.queries import Queries
from tests.integration.conftest import spark_warehouse
from tests.integration.replay_site import Site

_LONG_S = 600.0
KINDS = pa.schema(
    [
        ("k", pa.string()),
        ("i", pa.int32()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("raw", pa.binary()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("local", pa.timestamp("us")),
        ("at", pa.timestamp("us", tz="UTC")),
        ("money", pa.decimal128(38, 9)),
        ("tags", pa.list_(pa.string())),
        ("nested", pa.struct([("x", pa.int64()), ("y", pa.list_(pa.struct([("z", pa.string())])))])),
        ("map", pa.map_(pa.string(), pa.int32())),
    ]
)
FULL: dict[str, Any] = {
    "k": "a\0b'\"\\",
    "i": -(2**31),
    "single": 0.1,
    "double": -0.0,
    "raw": b"\0\xff",
    "flag": False,
    "day": date(1901, 2, 3),
    "local": datetime(1903, 4, 5, 6, 7, 8, 9),
    "at": datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    "money": Decimal("-12345678901234567890123456789.123456789"),
    "tags": ["", None, "x"],
    "nested": {"x": 1, "y": [{"z": None}]},
    "map": [("m", 1), ("n", None)],
}
EMPTY: dict[str, Any] = dict.fromkeys(KINDS.names)


class AnsweringSite:
    """A site whose replay process answers queries."""

    def __init__(self, folder: Path, tables: IcebergTables) -> None:
        self.folder = folder
        self.config = self.configure(driver_bytes_max=1)
        self.config.run_dir.mkdir(parents=True)
        self.site = Site(folder, spark_warehouse(tables))
        self.tables = tables

    def configure(self, **replay: int) -> Config:
        given = {"cluster": {"name": "east", "data_dir": str(self.folder)}, "replay": replay}
        self.config = configuration.load(None, given, {})
        return self.config

    @contextmanager
    def answering(self, application: Application | None = None) -> Iterator[None]:
        served = Queries(application or self.tables._spark, self.tables.work, 1, self.config.run_dir)
        stopped = threading.Event()

        def serve() -> None:
            while not stopped.is_set():
                served.run_once(stopped.is_set)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with patch.object(queries, "_ANSWER_S", _LONG_S):  # who asked would do without a job on a busy machine
                yield
        finally:
            stopped.set()
            thread.join()
            served.close()
