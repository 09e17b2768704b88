"""Large tables are hashed by jobs of replay's application, to the same hashes as by the process that is asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from peer.tables.fold import merge_changes
from peer.verify.by_jobs import buckets_by_job
from peer.verify.digest import Buckets, open_reading
from replication.core.definition.alter import rename_column
from replication.core.definition.define import typed_table
from replication.core.definition.schema import TableSpec
from replication.tables.spark.application import Application
from replication.tables.spark.iceberg import IcebergTables
from tests.integration.answering import EMPTY, FULL, KINDS, AnsweringSite
from tests.integration.replay_site import settle
from tests.tables_made import cell, grouped, keyed, uuids


class Compared(AnsweringSite):
    """Hashes tables by a job, and here."""

    def by_job(self, spec: TableSpec, groups: list[str], as_of: int, compared: TableSpec | None = None) -> Any:
        catalog = self.tables._catalog
        return buckets_by_job(self.config, catalog, spec, compared or spec, groups, as_of)

    def here(self, spec: TableSpec, groups: list[str], as_of: int) -> Buckets:
        reading = open_reading(self.tables._catalog, spec, groups, as_of, self.folder / "spill")
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
