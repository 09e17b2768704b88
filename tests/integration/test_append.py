"""Appends from this process and from executors hold to the same: compare-and-swap, and the very same rows."""

from __future__ import annotations

import dataclasses
import time
from datetime import datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.table import snapshots, update

from peer.bootstrap.space import stored_bytes
from replication import config as configuration
from replication.core.definition.alter import set_properties
from replication.core.definition.schema import TableSpec
from replication.errors import CommitConflictError
from replication.tables.base import Decode
from replication.tables.catalog.catalog import IcebergCatalog, catalog_properties
from replication.tables.pyiceberg import ordered_catalog
from replication.tables.spark.application import Application
from replication.tables.spark.iceberg import IcebergTables
from tests.tables_made import append_decoded, as_decode, keyed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def changes(spec: TableSpec, keys: str, replay: int) -> Decode:
    rows = [
        {"k": k, "v": 1, "_group": "default", "_op": 0, "_ts": None, "_commit": 5, "_origin": "east", "_wal": "h0/1"}
        | {"_seq": 0, "_row": at}
        for at, k in enumerate(keys)
    ]
    logged = [("_group", pa.string()), ("_op", pa.int32()), ("_ts", pa.int64()), ("_commit", pa.int64())]
    logged += [("_origin", pa.string()), ("_wal", pa.string()), ("_seq", pa.int64()), ("_row", pa.int32())]
    schema = pa.schema([*((c.name, c.type) for c in spec.columns), *logged])
    return as_decode(pa.Table.from_pylist(rows, schema), {"_replay": replay})


def small(decode: Decode) -> Decode:
    return dataclasses.replace(decode, size=100)


@pytest.fixture
def spec(spark_tables: IcebergTables) -> TableSpec:
    made = keyed(f"s{uuid4().hex[:8]}.t")
    spark_tables.create(made)
    return made


def keys(tables: IcebergTables, name: str) -> list[str]:
    return tables.query(f"select k from {tables.ref(name)} order by k").column(0).to_pylist()


def test_small_and_large_appends_refuse_each_others_older_snapshots(
    spark_tables: IcebergTables, spec: TableSpec
) -> None:
    name = spec.name + "__changes"
    first = spark_tables.append(name, small(changes(spec, "a", 1)), None, {"walship.x": "1"})
    second = spark_tables.append(name, changes(spec, "b", 2), first, {"walship.x": "2"})
    for stale in (first, None):
        for rows in (small(changes(spec, "z", 3)), changes(spec, "z", 3)):
            with pytest.raises(CommitConflictError):
                spark_tables.append(name, rows, stale, {"walship.x": "3"})
    third = spark_tables.append(name, small(changes(spec, "c", 3)), second, {"walship.x": "3"})
    assert [s.id for s in spark_tables.history(name).chain()] == [third, second, first]
    assert keys(spark_tables, name) == ["a", "b", "c"]


def test_of_two_that_looked_at_the_same_snapshot_one_commits(spark_tables: IcebergTables, spec: TableSpec) -> None:
    name = spec.name + "__changes"
    catalog: IcebergCatalog = spark_tables._catalog
    one, other = catalog.load(name), catalog.load(name)
    append_decoded(one, small(changes(spec, "a", 1)), None, {"walship.x": "1"})
    with pytest.raises(CommitConflictError):
        append_decoded(other, small(changes(spec, "b", 1)), None, {"walship.x": "1"})
    assert keys(spark_tables, name) == ["a"]


def test_maintenance_in_between_is_no_conflict(spark_tables: IcebergTables, spec: TableSpec) -> None:
    name = spec.name + "__changes"
    at = spark_tables.append(name, small(changes(spec, "a", 1)), None, {"walship.x": "1"})
    at = spark_tables.append(name, small(changes(spec, "b", 2)), at, {"walship.x": "2"})
    assert spark_tables.compact(name, 1)
    spark_tables.append(name, small(changes(spec, "c", 3)), at, {"walship.x": "3"})
    assert keys(spark_tables, name) == ["a", "b", "c"]


class Altering:
    """A session in which a table is altered between the moment a statement is understood and its execution."""

    def __init__(self, tables: IcebergTables, name: str) -> None:
        self._tables, self._name = tables, name
        self._application = tables._spark

    def sql(self, text: str) -> DataFrame:
        with self._application.use() as spark:
            frame = spark.sql(text)
        with self._tables._catalog.load(self._name).update_schema() as changed:
            changed.rename_column("v", "w")
        return frame


def test_a_query_whose_table_is_altered_meanwhile_is_a_conflict(
    spark_tables: IcebergTables, spec: TableSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        altering = cast(Any, Altering(spark_tables, spec.name))
        patched.setattr(spark_tables, "_spark", Application.of(altering))
        with pytest.raises(CommitConflictError, match="changed by another commit"):
            spark_tables.query(f"select v from {spark_tables.ref(spec.name)}")
    assert spark_tables.query(f"select w from {spark_tables.ref(spec.name)}").num_rows == 0


def test_rows_are_the_same_either_way(spark_tables: IcebergTables, spec: TableSpec) -> None:
    name = spec.name + "__changes"
    first = spark_tables.append(name, small(changes(spec, "ab", 7)), None, {"walship.x": "1"})
    spark_tables.append(name, changes(spec, "ab", 7), first, {"walship.x": "2"})
    rows = spark_tables.query(f"select * from {spark_tables.ref(name)}").to_pylist()
    assert len(rows) == 4
    assert sorted(map(repr, rows))[::2] == sorted(map(repr, rows))[1::2]


def test_superseded_metadata_files_are_deleted(tmp_path: Path) -> None:
    catalog = IcebergCatalog(catalog_properties(tmp_path))
    made = keyed("ops.t")
    catalog.create(made)
    at = None
    for number in range(1, 31):
        at = append_decoded(
            catalog.load("ops.t__changes"), small(changes(made, "a", number)), at, {"walship.x": str(number)}
        )
    kept = list((tmp_path / "warehouse").glob("**/t__changes/metadata/*.metadata.json"))
    assert len(kept) <= 11


def test_snapshots_say_how_large_the_files_of_a_table_are(
    spark_tables: IcebergTables, spec: TableSpec, tmp_path: Path
) -> None:
    name = spec.name + "__changes"
    first = spark_tables.append(name, small(changes(spec, "ab", 1)), None, {})
    spark_tables.append(name, changes(spec, "cd", 2), first, {})
    location = Path(spark_tables._catalog.load(name).location().removeprefix("file:"))
    written = sum(file.stat().st_size for file in location.rglob("*.parquet"))
    sections = {"cluster": {"name": "east", "data_dir": str(tmp_path)}, "catalog": {"warehouse": "s3://bucket/tables"}}
    assert stored_bytes(configuration.load(None, sections, {}), spec, lambda: spark_tables) == written > 0


class Clock:
    """What PyIceberg has for a clock, ``behind`` by seconds."""

    behind = 0.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = self

        class Late(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> Late:
                return cls.fromtimestamp(clock.time(), tz)

        monkeypatch.setattr(snapshots, "time", self)
        monkeypatch.setattr(update, "datetime", Late)

    def time(self) -> float:
        return time.time() - self.behind


def test_a_clock_that_steps_back_keeps_no_engine_from_a_table(
    spark_tables: IcebergTables, spec: TableSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, name = Clock(monkeypatch), spec.name + "__changes"
    at = spark_tables.append(name, small(changes(spec, "a", 1)), None, {"walship.x": "1"})
    clock.behind = 3600
    at = spark_tables.append(name, small(changes(spec, "b", 2)), at, {"walship.x": "2"})
    spark_tables.create(set_properties(spec, {"write.x": "1"}, 1))  # a commit of metadata alone
    assert keys(spark_tables, name) == ["a", "b"]
    clock.behind = 0
    at = spark_tables.append(name, small(changes(spec, "c", 3)), at, {"walship.x": "3"})
    times = [snapshot.at for snapshot in spark_tables.history(name).chain()]
    assert times == sorted(times, reverse=True) and time.time() * 1e6 - times[0] < 60e6
    assert keys(spark_tables, name) == ["a", "b", "c"] and spark_tables.compact(name, 1)


def test_a_table_that_a_clock_made_unreadable_is_mended_when_replay_opens_it_or_commits(
    spark_tables: IcebergTables, spec: TableSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, replayed = spec.name, spec.name + "__changes"
    with monkeypatch.context() as patched:
        patched.setattr(ordered_catalog, "in_order", lambda metadata: metadata)
        patched.setattr(ordered_catalog, "not_before", lambda newest, update: update)
        clock = Clock(patched)
        for name in (opened, replayed):
            for clock.behind in (0, 3600):
                table = spark_tables._catalog.load(name)
                table.append(table.schema().as_arrow().empty_table())
            made, late = spark_tables._catalog.load(name).metadata.snapshot_log
            assert late.timestamp_ms < made.timestamp_ms, "Spark would read it all the same"
    at = spark_tables.history(replayed).current
    spark_tables.append(replayed, small(changes(spec, "a", 1)), at, {"walship.x": "1"})
    assert keys(spark_tables, replayed) == ["a"]
    spark_tables.create(spec)
    assert keys(spark_tables, opened) == []
    before = spark_tables._catalog.load(opened).metadata_location
    spark_tables.create(spec)
    assert spark_tables._catalog.load(opened).metadata_location == before, "mended again and again"


def test_the_jvm_leaves_nothing_in_the_machines_temporary_folder(spark_tables: IcebergTables) -> None:
    spark_tables.query("show databases in walship")
    told = spark_tables.query("select java_method('java.lang.System', 'getProperty', 'java.io.tmpdir') as folder")
    folder = Path(told.column("folder")[0].as_py())
    assert any(folder.glob("*sqlite*")), "the catalog's driver unpacks itself there"
    assert (folder / "log4j2.properties").is_file(), "a folder of the session's own"
