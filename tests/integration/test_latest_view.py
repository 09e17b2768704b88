"""The view ``<table>__latest`` in the catalog, as somebody else's Spark has it, and its files on disk."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlparse
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from peer.frames.quarantine import Quarantine
from peer.replay.context import ReplayContext
from peer.replay.rounds import Replayer
from peer.tables.fold import fold
from peer.tables.latest import show_latest
from replication.core.definition.schema import TableSpec
from replication.tables.catalog.catalog import CATALOG
from replication.tables.layout import LATEST
from replication.tables.spark.iceberg import IcebergTables
from tests.origin import OriginWal, new_ledger
from tests.tables_made import keyed


@pytest.fixture
def spec(spark_tables: IcebergTables) -> TableSpec:
    made = keyed(f"view{uuid4().hex[:8]}.t")
    spark_tables.create(made)
    show_latest(spark_tables, made)
    return made


def metadata_files(tables: IcebergTables, spec: TableSpec) -> list[Path]:
    """Those of the view."""
    (entry,) = tables.query(f"select file from {tables.ref(spec.name)}.metadata_log_entries limit 1").to_pylist()
    table = Path(urlparse(entry["file"]).path).parent.parent
    return sorted(table.with_name(table.name + LATEST).joinpath("metadata").iterdir())


def query(value: int) -> str:
    """One that gives a row."""
    return f"select 'a' as k, cast({value} as bigint) as v"


def test_a_session_of_somebody_else_lists_and_shows_the_view(spark_tables: IcebergTables, spec: TableSpec) -> None:
    namespace, _, name = spec.name.partition(".")
    spark_tables.show(spec, query(7))
    session = SparkSession.active().newSession()
    for place in ("spark_catalog.default", f"{CATALOG}.{namespace}"):
        session.sql(f"use {place}")
        assert session.sql(f"select k, v from {CATALOG}.{spec.name}{LATEST}").collect() == [("a", 7)]
        listed = session.sql(f"show views in {CATALOG}.{namespace}").collect()
        assert [(view.namespace, view.viewName) for view in listed] == [(namespace, name + LATEST)]
    assert session.sql(f"select v from {name}{LATEST}").collect() == [(7,)]


def test_two_metadata_files_are_kept_of_however_many(spark_tables: IcebergTables, spec: TableSpec) -> None:
    for value in range(5):
        spark_tables.show(spec, query(value))
        assert len(metadata_files(spark_tables, spec)) == 2
    newest = metadata_files(spark_tables, spec)
    spark_tables.show(spec, query(4))
    assert metadata_files(spark_tables, spec) == newest, "the same again writes nothing"


def test_a_view_whose_file_is_gone_is_made_anew(spark_tables: IcebergTables, spec: TableSpec) -> None:
    for file in metadata_files(spark_tables, spec):
        file.write_text("{")
    show_latest(spark_tables, spec)
    assert spark_tables.query(f"select * from {spark_tables.ref(spec.name + LATEST)}").num_rows == 0


def test_many_at_once_leave_one_view_and_its_files(spark_tables: IcebergTables) -> None:
    spec = keyed(f"view{uuid4().hex[:8]}.t")
    spark_tables.create(spec)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda value: spark_tables.show(spec, query(value)), range(40)))
    (row,) = spark_tables.query(f"select * from {spark_tables.ref(spec.name + LATEST)}").to_pylist()
    assert row["v"] in range(40)
    assert len(metadata_files(spark_tables, spec)) <= 2


def test_rows_that_come_late_are_shown_as_soon_as_they_are_replayed(
    spark_tables: IcebergTables, tmp_path: Path
) -> None:
    ledger = new_ledger(tmp_path)
    spec = keyed(f"view{uuid4().hex[:8]}.t")
    ledger.tables.create(spec)
    early, late = OriginWal(ledger, tmp_path / "wal"), OriginWal(ledger, tmp_path / "wal")
    quarantine = Quarantine(tmp_path / "quarantine", ledger.replay)
    replayer = Replayer(ReplayContext(ledger, spark_tables, quarantine, ledger.replay.raise_epoch()), parallel=1)

    def shown() -> dict[str, int]:
        rows = spark_tables.query(f"select * from {spark_tables.ref(spec.name + LATEST)}").to_pylist()
        return {row["k"]: row["v"] for row in rows}

    early.upsert(spec, [{"k": "a", "v": 1}, {"k": "b", "v": 1}], commit=100)
    early.register(closed=200)
    replayer.round()
    assert fold(spark_tables, ledger, spec, 200, 0) is not None  # past a replicated time that stands
    for commit, written, wanted in (
        (300, {"k": "b", "v": 3}, {"a": 1, "b": 3}),
        (50, {"k": "a", "v": 5}, {"a": 1, "b": 3}),  # older than what is folded
        (60, {"k": "c", "v": 6}, {"a": 1, "b": 3, "c": 6}),
    ):
        (early if commit > 200 else late).upsert(spec, [written], commit=commit)
        early.register(), late.register()
        replayer.round()
        assert shown() == wanted, f"after {written} of {commit}"
    replayer.close()
    ledger.close()
