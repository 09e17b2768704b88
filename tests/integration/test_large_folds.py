"""Large folds are merged by the warehouse's engine, and come to what small ones do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from peer.tables import fold
from peer.tables.fold import merge_changes
from peer.tables.merge_job import MergeJob
from replication.core.definition.schema import TableSpec
from tests.integration.replay_site import Site, settle
from tests.tables_made import keyed

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The host's time zone is another than the session's."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


def fold_twice(site: Site, spec: TableSpec, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What ``<table>`` holds after the same keys were put and folded twice."""
    for _ in range(2):
        site.wal.upsert(spec, rows)
        site.wal.register(closed=site.wal.now)
        site.replayer().round()
        assert merge_changes(site.tables, spec, site.wal.now) is not None
    return site.tables.query(f"select * from {site.tables.ref(spec.name)} order by v").to_pylist()


@pytest.mark.parametrize("warehouse", ["small"], indirect=True)
@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize(
    ("zone", "partition", "small"),
    [("Europe/Berlin", (), 0), ("America/Lima", ("day(k)",), 0), ("Europe/Berlin", ("day(k)",), 200_000)],
    indirect=["zone"],
)
def test_a_fold_keyed_by_an_instant_leaves_each_key_once_whatever_the_hosts_zone(
    site: Site, partition: tuple[str, ...], small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "_DRIVER_VERSIONS", small)
    schema = pa.schema([("k", pa.timestamp("us", tz="UTC")), ("v", pa.int64())])
    spec = site.table(keyed(f"{site.warehouse.namespace}.at", schema, partition=partition))
    given = [{"k": EPOCH + timedelta(hours=hours), "v": hours} for hours in (0, 47)]
    stored = fold_twice(site, spec, given)
    assert [{"k": row["k"], "v": row["v"]} for row in stored] == given


@pytest.mark.parametrize("warehouse", ["small"], indirect=True)
def test_a_large_fold_is_a_job_and_takes_keys_that_sql_could_read_as_something_else(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[str] = []
    run = site.tables.jobs.run

    def noted(writes: Any, title: str, pool: str | None) -> Any:
        jobs.append(title)
        return run(writes, title, pool)

    monkeypatch.setattr(fold, "_DRIVER_VERSIONS", 0)
    monkeypatch.setattr(site.tables, "small_bytes", -1)
    monkeypatch.setattr(site.tables.jobs, "run", noted)
    given = [{"k": key, "v": at} for at, key in enumerate(["${env:HOME}", "'\\", "}"])]
    stored = fold_twice(site, site.spec, given)
    assert [title for title in jobs if title.startswith("fold")] == [f"fold: {site.spec.name}"] * 2
    assert [{"k": row["k"], "v": row["v"]} for row in stored] == given


@pytest.mark.parametrize("warehouse", ["memory"], indirect=True)
@pytest.mark.parametrize(("of", "value"), [(pa.string(), "x" * 65_536), (pa.binary(), b"x" * 65_536)])
@pytest.mark.parametrize("nested", [False, True])
def test_few_rows_of_many_bytes_make_a_large_fold(
    site: Site, of: pa.DataType, value: str | bytes, nested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "_DRIVER_BYTES", 1 << 20)
    large: list[TableSpec] = []
    there = fold._merge_there

    def noted(tables: Any, job: MergeJob, deletes: bool, *, background: bool) -> Any:
        large.append(job.merge.spec)
        return there(tables, job, deletes, background=background)

    monkeypatch.setattr(fold, "_merge_there", noted)
    schema = pa.schema([("k", pa.string()), ("v", pa.list_(of) if nested else of)])
    spec = site.table(keyed(f"{site.warehouse.namespace}.wide", schema))
    for count in (10, 100):
        site.wal.upsert(spec, [{"k": f"{key:04}", "v": [value] if nested else value} for key in range(count)])
        site.wal.register(closed=site.wal.now)
        settle(site.replayer())
        assert not large
        assert merge_changes(site.tables, spec, site.wal.now) is not None
        assert site.tables.query(f"select 1 from {site.tables.ref(spec.name)}").num_rows == count
    assert large == [spec]


@pytest.mark.parametrize("warehouse", ["memory"], indirect=True)
def test_a_table_of_more_columns_than_duckdb_nests_expressions_is_folded(site: Site) -> None:
    columns = [("k", pa.string())] + [(f"v{at}", pa.string()) for at in range(1_100)]
    spec = site.table(keyed(f"{site.warehouse.namespace}.columns", pa.schema(columns)))
    row = {name: "x" for name, _ in columns}
    site.wal.upsert(spec, [row])
    site.wal.register(closed=site.wal.now)
    settle(site.replayer())
    assert merge_changes(site.tables, spec, site.wal.now) is not None
    assert site.tables.query(f"select v1099 from {site.tables.ref(spec.name)}").to_pylist() == [{"v1099": "x"}]
