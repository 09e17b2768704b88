"""Large tables are hashed by jobs of replay's application, to the same hashes as by the process that is asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from peer.tables.fold import merge_changes
from peer.verify.by_jobs import buckets_by_job
from peer.verify.digest import Buckets, open_reading
from replication import config as configuration
from replication.config import Config
from replication.core.definition.alter import rename_column
from replication.core.definition.define import typed_table
from replication.core.definition.schema import TableSpec
from replication.tables.spark.application import Application
from replication.tables.spark.iceberg import IcebergTables
from replication.tables.spark.queries import Queries
from tests.integration.conftest import spark_warehouse
from tests.integration.replay_site import Site, settle
from tests.tables_made import cell, grouped, keyed, uuids

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


class Compared:
    """A site whose replay process answers queries."""

    def __init__(self, folder: Path, tables: IcebergTables) -> None:
        self.folder = folder
        self.config = self.configure(driver_bytes_max=1)
        self.config.run_dir.mkdir(parents=True)
        self.site = Site(folder, spark_warehouse(tables))
        self.tables = tables
        self.spill = folder / "spill"

    def configure(self, **replay: int) -> Config:
        given = {"cluster": {"name": "east", "data_dir": str(self.folder)}, "replay": replay}
        self.config = configuration.load(None, given, {})
        return self.config

    @contextmanager
    def answering(self, application: Application | None = None) -> Iterator[None]:
        queries = Queries(application or self.tables._spark, self.tables.work, 1, self.config.run_dir)
        stopped = threading.Event()

        def serve() -> None:
            while not stopped.is_set():
                queries.run_once(stopped.is_set)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()
            queries.close()

    def by_job(self, spec: TableSpec, groups: list[str], as_of: int, compared: TableSpec | None = None) -> Any:
        catalog = self.tables._catalog
        return buckets_by_job(self.config, catalog, spec, compared or spec, groups, as_of)

    def here(self, spec: TableSpec, groups: list[str], as_of: int) -> Buckets:
        reading = open_reading(self.tables._catalog, spec, groups, as_of, self.spill)
        try:
            return reading.buckets()
        finally:
            reading.close()

    def agree(self, spec: TableSpec, as_of: int) -> int:
        """Both ways give the same; how many rows there are."""
        every = [group.name for group in spec.groups]
        for groups in (every, every[:1]):
            by_job = self.by_job(spec, groups, as_of)
            assert by_job is not None and by_job == self.here(spec, groups, as_of)
        return sum(rows for rows, _ in self.here(spec, every, as_of).values())


@pytest.fixture
def compared(tmp_path: Path, spark_tables: IcebergTables) -> Compared:
    return Compared(tmp_path, spark_tables)


def test_every_kind_of_value_has_the_same_hash_before_and_after_folds(compared: Compared) -> None:
    site = compared.site
    spec = site.table(keyed(f"{site.warehouse.namespace}.kinds", KINDS))
    others = [EMPTY | {"k": f"key {n}", "double": n / 7, "single": n / 3} for n in range(50)]
    site.wal.upsert(spec, [FULL, EMPTY | {"k": "nan", "double": float("nan")}, *others])
    site.wal.register(closed=site.wal.now)
    settle(site.replayer())
    with compared.answering():
        first = site.wal.now
        assert compared.agree(spec, first) == 52
        merge_changes(site.tables, spec, first)
        site.wal.delete(spec, [{"k": "key 1"}])
        site.wal.upsert(spec, [EMPTY | {"k": "key 2", "i": 5}])
        site.wal.register(closed=site.wal.now)
        settle(site.replayer())
        assert compared.agree(spec, first) == 52 and compared.agree(spec, site.wal.now) == 51
        merge_changes(site.tables, spec, site.wal.now)
        assert compared.agree(spec, site.wal.now) == 51


def test_groups_cells_and_tables_without_a_key_have_the_same_hashes(compared: Compared) -> None:
    site = compared.site
    space = site.warehouse.namespace
    groups, cells = site.table(grouped(f"{space}.groups")), site.table(cell(f"{space}.cells"))
    log = site.table(typed_table(f"{space}.log", pa.schema([("n", pa.int64())]), (), uuids=uuids()))
    at = {"row": b"r", "qualifier": "q", "visibility": ""}
    site.wal.upsert(groups, [{"k": "both", "a": 1, "b": "x"}, {"k": "other", "b": "y"}])
    site.wal.cells(cells, [{**at, "family": family, "value": b"v", "timestamp": 50} for family in ("m", "f")])
    site.wal.upsert(log, [{"n": n} for n in (1, 1, 2)])
    site.wal.register(closed=site.wal.now)
    settle(site.replayer())
    with compared.answering():
        assert [compared.agree(spec, site.wal.now) for spec in (groups, cells, log)] == [2, 2, 3]


def test_a_column_with_another_name_and_one_that_is_missing_here_are_compared_by_uuid(compared: Compared) -> None:
    site = compared.site
    site.put(("a", 1), ("b", 2))
    settle(site.replayer())
    other = rename_column(site.spec, "v", "amount", 1)
    extra = replace(other.columns[-1], name="extra", uuid=uuid4())
    other = replace(other, columns=(*other.columns, extra))
    with compared.answering():
        found = compared.by_job(site.spec, ["default"], site.wal.now, other)
        assert found == compared.here(other, ["default"], site.wal.now)


def test_without_spark_or_after_a_job_that_failed_it_is_done_here(compared: Compared) -> None:
    site, work = compared.site, compared.tables.work
    site.put(("a", 1))
    settle(site.replayer())
    jobs = work.queries
    assert compared.by_job(site.spec, ["default"], site.wal.now) is None, "replay does not run"
    off = Application(lambda: pytest.fail("nobody wants it twice"), 60.0)
    with compared.answering(off):
        assert compared.by_job(site.spec, ["default"], site.wal.now) is None, "Spark is off"
    with compared.answering():
        gone = replace(site.spec, columns=(replace(site.spec.columns[0], type=pa.list_(pa.int64())),))
        assert compared.by_job(site.spec, ["default"], site.wal.now, gone) is None, "no text is a list"
        assert work.queries == jobs
        assert compared.by_job(site.spec, ["default"], site.wal.now) and work.queries == jobs + 1
        compared.configure(driver_bytes_max=1 << 20)
        assert compared.by_job(site.spec, ["default"], site.wal.now) is None, "it is small"
