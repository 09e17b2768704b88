"""What the catalog names is on the disk: a power cut must not take rows whose WALs went because they were applied."""

from __future__ import annotations

import dataclasses
import errno
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from replication.core.definition.schema import TableSpec
from replication.errors import EngineLostError, StorageError
from replication.files import local
from replication.tables.base import Decode
from replication.tables.catalog.catalog import IcebergCatalog
from replication.tables.layout import UNSYNCED_TAG
from replication.tables.pyiceberg import local_io
from replication.tables.pyiceberg.append import plan_write
from replication.tables.pyiceberg.local_io import local_path
from replication.tables.spark.iceberg import IcebergTables
from tests.integration.replay_site import Site, settle
from tests.tables_made import as_decode, keyed


class Disk:
    """What has been synced, by inode; files that are written to afterwards would have to be synced again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: dict[int, int] = {}
        self._sync = local._sync
        monkeypatch.setattr(local, "_sync", self._note)

    def _note(self, fd: int, elsewhere: Callable[[int], None]) -> None:
        self._sync(fd, elsewhere)
        found = os.fstat(fd)
        self.synced[found.st_ino] = found.st_size

    def lacks(self, table: Table) -> list[str]:
        """Files of a table's current snapshot, and its metadata, that were not synced as they are."""
        snapshot = table.current_snapshot()
        assert snapshot is not None
        files = [table.metadata_location, snapshot.manifest_list]
        for manifest in snapshot.manifests(table.io):
            files.append(manifest.manifest_path)
            files += [entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)]
        paths = [Path(local_path(file)) for file in files]
        return [path.name for path in paths if self.synced.get(path.stat().st_ino) != path.stat().st_size]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@contextmanager
def looked_at_when_named(monkeypatch: pytest.MonkeyPatch, look: Callable[[Table], object]) -> Iterator[None]:
    """Look at a table at the moment the catalog's database names its new metadata, before any more can be synced."""
    commit = SqlCatalog.commit_table

    def committed(catalog: SqlCatalog, table: Table, *arguments: Any) -> Any:
        done = commit(catalog, table, *arguments)
        look(catalog.load_table(table.name()))
        return done

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", committed)
        yield


@pytest.fixture
def spec(spark_tables: IcebergTables, disk: Disk) -> TableSpec:
    made = keyed(f"d{uuid4().hex[:8]}.t")
    spark_tables.create(made)
    return made


def rows(keys: str) -> pa.Table:
    nothing = {"_ts": 0, "_commit": 0, "_origin": "x", "_wal": "x", "_seq": 0, "_row": 0}
    made = [{"k": k, "v": 1} | {f"{n}_default": v for n, v in nothing.items()} for k in keys]
    types = {"_ts": pa.int64(), "_commit": pa.int64(), "_seq": pa.int64(), "_row": pa.int32()}
    columns = [("k", pa.string()), ("v", pa.int64())]
    columns += [(f"{n}_default", types.get(n, pa.string())) for n in nothing]
    return pa.Table.from_pylist(made, pa.schema(columns))


def decoded(keys: str, size: int | None) -> Decode:
    return dataclasses.replace(as_decode(rows(keys), {}), size=size)


def test_small_commits_are_on_the_disk_when_the_catalog_names_them(
    spark_tables: IcebergTables, spec: TableSpec, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    with looked_at_when_named(monkeypatch, lambda table: seen.append(disk.lacks(table))):
        first = spark_tables.append(spec.name, decoded("ab", 100), None, {"walship.n": "1"})
        spark_tables.replace(spec.name, ["k"], rows("a").select(["k"]), rows("ac"), first, {"walship.n": "2"})
    assert seen == [[], []]


def test_what_executors_write_is_synced_there(spark_tables: IcebergTables, spec: TableSpec, disk: Disk) -> None:

    from replication.tables.spark.jobs import packed, run_parts

    catalog: IcebergCatalog = spark_tables._catalog
    table = catalog.load(spec.name)
    made = decoded("ab", None)
    tasks = packed([plan_write(table, spec.name, made)], 1)
    (done,) = run_parts([pickle.dumps((0, tasks[0]))])
    _, (outcome,) = pickle.loads(done)
    (file,) = outcome.files
    path = Path(local_path(file.file_path))
    assert disk.synced[path.stat().st_ino] == path.stat().st_size == file.file_size_in_bytes


@pytest.mark.parametrize("small", [True, False], ids=["here", "by Spark"])
def test_what_maintenance_commits_is_on_the_disk_afterwards(
    spark_tables: IcebergTables, spec: TableSpec, disk: Disk, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    catalog: IcebergCatalog = spark_tables._catalog
    everything = f"select * from {spark_tables.ref(spec.name)}"
    first = spark_tables.append(spec.name, decoded("abcd", 100), None, {"walship.n": "1"})
    second = spark_tables.append(spec.name, f"{everything} where k = 'a'", first, {"walship.n": "2"})
    assert disk.lacks(catalog.load(spec.name)) == []
    gone, new = f"select k from ({everything}) where k = 'a'", f"{everything} where k = 'b'"
    spark_tables.replace(spec.name, ["k"], gone, new, second, {"walship.n": "3"})
    assert disk.lacks(catalog.load(spec.name)) == []
    if not small:
        monkeypatch.setattr(spark_tables, "small_bytes", -1)
    for change in (
        lambda: spark_tables.delete(spec.name, "k = 'c'"),
        lambda: spark_tables.compact(spec.name, 2),
        lambda: spark_tables.tag(spec.name, "kept", spark_tables.history(spec.name).current or 0),
        lambda: spark_tables.expire(spec.name, 10**16, 1),
    ):
        change()
        assert disk.lacks(catalog.load(spec.name)) == []


def test_what_somebody_else_committed_is_on_the_disk_once_settled(
    spark_tables: IcebergTables, spec: TableSpec, disk: Disk
) -> None:
    catalog: IcebergCatalog = spark_tables._catalog
    spark_tables.append(spec.name, decoded("ab", 100), None, {"walship.n": "1"})
    table = spark_tables.ref(spec.name)
    spark_tables.query(f"insert into {table} select * from {table} where k = 'a'")
    assert len(disk.lacks(catalog.load(spec.name))) >= 3
    spark_tables.make_durable(spec.name)
    assert disk.lacks(catalog.load(spec.name)) == []


@pytest.fixture
def fail_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Has the next sync fail; the kernel says so once only. ``_lost`` is as in a process that starts."""
    monkeypatch.setattr(local_io, "_lost", [])
    monkeypatch.setattr(local_io, "_unsynced", set())
    sync = local._sync

    def broken(fd: int, elsewhere: Callable[[int], None]) -> None:
        monkeypatch.setattr(local, "_sync", sync)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    return lambda: monkeypatch.setattr(local, "_sync", broken)


def in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_io, "_lost", [])


@pytest.mark.parametrize("warehouse", ["small"], indirect=True)
def test_rows_of_spark_that_a_failed_sync_may_have_lost_are_marked_applied_by_no_process_until_somebody_looked(
    site: Site, fail_once: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = site.table(keyed(f"{site.warehouse.namespace}.log", key=(), partition=["k"]))
    site.put(("first", 1), spec=log)
    assert settle(site.replayer()).frames == 1
    kept = site.tables.history(log.name).current
    site.put(("second", 2), spec=log)
    fail_once()
    with pytest.raises(EngineLostError, match="may not be durable"):
        settle(site.replayer())
    in_another_process(monkeypatch)
    assert "may be lost" in settle(site.replayer()).held[log.name]
    assert not site.applied()
    assert site.tables.history(log.name).tags == {UNSYNCED_TAG: kept}
    site.tables.untag(log.name, UNSYNCED_TAG)
    assert not settle(site.replayer()).held
    assert site.applied() and site.rows(log) == {"first": 1, "second": 2}


def test_what_a_rewrite_replaced_stays_where_a_failed_sync_may_have_lost_the_new_files(
    spark_tables: IcebergTables, spec: TableSpec, fail_once: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = spark_tables.append(spec.name, decoded("a", 100), None, {"walship.n": "1"})
    second = spark_tables.append(spec.name, decoded("b", 100), first, {"walship.n": "2"})
    monkeypatch.setattr(spark_tables, "small_bytes", -1)
    fail_once()
    with pytest.raises(EngineLostError):
        spark_tables.compact(spec.name, 2)
    in_another_process(monkeypatch)
    with pytest.raises(StorageError, match="may be lost"):
        spark_tables.expire(spec.name, 10**16, 1)
    history = spark_tables.history(spec.name)
    assert history.tags == {UNSYNCED_TAG: second} and set(history.snapshots) >= {first, second}


def test_a_large_fold_whose_files_a_failed_sync_may_have_lost_is_none(
    spark_tables: IcebergTables, spec: TableSpec, fail_once: Callable[[], None]
) -> None:
    first = spark_tables.append(spec.name, decoded("a", 100), None, {"walship.n": "1"})
    everything = f"select * from {spark_tables.ref(spec.name)}"
    fail_once()
    with pytest.raises(EngineLostError):
        spark_tables.replace(spec.name, ["k"], f"select k from ({everything})", everything, first, {"walship.n": "2"})
    history = spark_tables.history(spec.name)
    assert history.current == first and not history.tags


def test_after_a_failed_sync_nothing_is_committed_until_the_process_is_another(
    spark_tables: IcebergTables, spec: TableSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_io, "_lost", [])
    monkeypatch.setattr(local_io, "_unsynced", set())

    def broken(fd: int, elsewhere: Callable[[int], None]) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(local, "_sync", broken)
        with pytest.raises(EngineLostError, match="may not be durable"):
            spark_tables.append(spec.name, decoded("a", 100), None, {"walship.n": "1"})
    with pytest.raises(EngineLostError):  # though a sync would succeed now, by what the kernel says
        spark_tables.append(spec.name, decoded("b", 100), None, {"walship.n": "2"})
    assert spark_tables.history(spec.name).current is None
