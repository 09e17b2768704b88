"""Reads that follow a table show what a read that starts anew shows, and read each small file once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any, cast
from uuid import UUID, uuid4

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.table import Table

import replication.tables.duckdb.kept_view as kept_view
from peer.drill.forking import _histories
from peer.drill.instant import pin
from peer.tables import kept_reads
from peer.tables.by_jobs import rows_query
from peer.tables.fold import merge_changes
from peer.tables.kept_reads import KeptReads
from peer.tables.read import Reader, attach_latest, query_result, read
from replication.core.definition.alter import add_column, rename_column, set_properties
from replication.core.definition.schema import TableSpec
from replication.errors import ForeignMaintenanceError, MissingFileError, RequestError
from replication.ledger.base import ReplayCheckpoint
from replication.tables.base import open_duckdb
from replication.tables.catalog.catalog import IcebergCatalog, configured_catalog
from replication.tables.duckdb.kept_view import KeptView
from replication.tables.layout import CHANGES
from replication.tables.spark.iceberg import IcebergTables
from tests.read_tables import Tables, opened_tables
from tests.tables_made import keyed

pytestmark = pytest.mark.heavy


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    with opened_tables(tmp_path) as made:
        yield made


def test_each_commit_is_seen_at_the_next_read(tables: Tables) -> None:
    spec = tables.create("ops.t")
    assert tables.rows(spec) == []
    for value in range(5):
        tables.commit(spec, ("a", value), (f"k{value}", value))
        assert tables.rows(spec, "k = 'a'") == [{"k": "a", "v": value}]
    tables.commit(spec, ("a", None))
    assert tables.rows(spec) == [{"k": f"k{value}", "v": value} for value in range(5)]


def test_a_table_that_the_catalog_has_lost_is_refused_and_not_shown_empty(tables: Tables) -> None:
    spec, site = tables.create("ops.t"), tables.site
    tables.commit(spec, ("a", 1))
    site.ledger.replay.checkpoint_applied(ReplayCheckpoint(spec.uuid, 1, 1, 0, {}))
    assert tables.rows(spec) == [{"k": "a", "v": 1}]
    site.config.catalog_file.rename(site.config.data_dir / "lost.db")
    for was_made_again in (False, True):  # as replay makes it, which holds it then
        with closing(IcebergCatalog(configured_catalog(site.config))) as catalog:
            if was_made_again:
                catalog.create(spec)
        with closing(Reader(site.config, site.ledger)) as reader:
            with pytest.raises(ForeignMaintenanceError, match=r"has lost ops\.t.*walship rebuildledger"):
                reader.read(spec)
            with pytest.raises(ForeignMaintenanceError, match=r"has lost ops\.t"):
                reader.sql("select * from ops.t", [spec])


def test_a_first_commit_during_a_read_is_not_taken_for_a_lost_catalog(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, ledger = tables.create("ops.t"), tables.site.ledger
    asked = ledger.replay.checkpoint

    def committed_first(table: UUID) -> ReplayCheckpoint | None:
        tables.commit(spec, ("a", 1))
        ledger.replay.checkpoint_applied(ReplayCheckpoint(spec.uuid, 1, 1, 0, {}))
        return asked(table)

    monkeypatch.setattr(ledger.replay, "checkpoint", committed_first)
    assert tables.rows(spec) == [{"k": "a", "v": 1}]


def test_folds_and_what_comes_after_them_are_seen(tables: Tables) -> None:
    spec, merged = tables.create("ops.t"), IcebergTables(tables.catalog, cast(Any, None))
    tables.commit(spec, ("a", 1), ("b", 2))
    for puts, shown in ((), {"a": 1, "b": 2}), ((("a", None), ("c", 3)), {"b": 2, "c": 3}), ((("b", None),), {"c": 3}):
        if puts:
            tables.commit(spec, *puts)
        assert {row["k"]: row["v"] for row in tables.rows(spec)} == shown
        merge_changes(merged, spec, None)
        for _ in range(2):
            assert {row["k"]: row["v"] for row in tables.rows(spec)} == shown


def test_changes_that_are_folded_and_trimmed_while_a_read_begins_are_in_it(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, merged = tables.create("ops.t"), IcebergTables(tables.catalog, cast(Any, None))
    tables.commit(spec, ("a", 1))
    tables.commit(spec, ("b", 2))
    follow = KeptView.follow

    def fold_first(view: KeptView, *args: Any) -> None:
        follow(view, *args)
        monkeypatch.setattr(KeptView, "follow", follow)
        merge_changes(merged, spec, None)
        merged.delete(spec.name + CHANGES, "_replay <= 1")

    monkeypatch.setattr(KeptView, "follow", fold_first)
    assert tables.reader.read(spec, "k = 'a'").read_all().to_pylist() == [{"k": "a", "v": 1}]
    assert tables.rows(spec) == [{"k": "a", "v": 1}, {"k": "b", "v": 2}]


def test_files_that_were_read_into_memory_leave_nothing_else_there(tables: Tables) -> None:
    spec = tables.create("ops.t")

    def kept_bytes() -> int:
        assert tables.reader._kept is not None and tables.reader._kept._connection is not None
        found = "select sum(memory_usage_bytes) from duckdb_memory() where tag = 'OBJECT_CACHE'"
        ((size,),) = tables.reader._kept._connection.execute(found).fetchall()
        return int(size)

    tables.commit(spec, ("a", 0))
    tables.reader.read(spec).read_all()
    before = kept_bytes()
    for value in range(20):
        tables.commit(spec, ("a", value))
        tables.reader.read(spec).read_all()
    assert kept_bytes() - before < 20 * 2_000


def test_changes_that_are_folded_and_trimmed_between_the_lookups_of_a_read_are_in_it(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, merged = tables.create("ops.t"), IcebergTables(tables.catalog, cast(Any, None))
    reads: tuple[Callable[[IcebergCatalog], pa.RecordBatchReader], ...] = (
        lambda catalog: query_result(*KeptReads(catalog).latest(spec)),
        lambda catalog: read(catalog, spec),
        lambda catalog: read(catalog, spec, as_of=1 << 50),
        lambda catalog: forked(catalog, spec, 1 << 50),
    )
    for reading in reads:
        tables.commit(spec, ("a", tables.replay))
        tables.commit(spec, ("b", tables.replay))
        looked_up = tables.catalog.load_for_reading
        monkeypatch.setattr(tables.catalog, "load_for_reading", fold_after(spec.name, looked_up, merged, spec))
        shown = reading(tables.catalog).read_all().sort_by("k").to_pylist()
        monkeypatch.setattr(tables.catalog, "load_for_reading", looked_up)
        assert shown == [{"k": "a", "v": tables.replay - 2}, {"k": "b", "v": tables.replay - 1}]
    tables.commit(spec, ("a", 9))
    before = tables.catalog.history(spec.name + CHANGES).current
    monkeypatch.setattr(tables.catalog, "load_for_reading", fold_after(spec.name, looked_up, merged, spec))
    assert f"version as of {before}" in rows_query(tables.catalog, spec)


def forked(catalog: IcebergCatalog, spec: TableSpec, instant: int) -> pa.RecordBatchReader:
    """The rows as a drill's fork has them."""
    connection = open_duckdb()
    at = pin(spec, _histories(catalog, spec), instant)
    attach_latest(connection, catalog, spec, "forked", as_of=instant, pinned=at)
    return query_result(connection, "from forked")


def fold_after(
    name: str, looked_up: Callable[[str], Table], merged: IcebergTables, spec: TableSpec
) -> Callable[[str], Table]:
    """Look a table up as before, but the first time that it is ``name``, fold and trim all changes right after."""
    done: list[str] = []

    def look_up(wanted: str) -> Table:
        found = looked_up(wanted)
        if wanted == name and not done:
            done.append(name)
            merge_changes(merged, spec, None)
            merged.delete(spec.name + CHANGES, f"_replay < {1 << 40} and _op = 0 and k = 'a'")
        return found

    return look_up


def test_an_altered_table_is_read_with_its_columns_of_now(tables: Tables) -> None:
    spec = tables.create("ops.t")
    tables.commit(spec, ("a", 1))
    assert tables.rows(spec) == [{"k": "a", "v": 1}]
    altered = rename_column(add_column(spec, "w", pa.int32(), "default", uuid4(), 1), "v", "value", 2)
    tables.catalog.create(altered)
    assert tables.rows(altered) == [{"k": "a", "value": 1, "w": None}]


def test_small_files_are_read_once(tables: Tables) -> None:
    spec = tables.create("ops.t")
    tables.commit(spec, ("a", 1))
    tables.rows(spec)
    (first,) = tables.files(spec)
    first.rename(first.with_suffix(".away"))
    tables.commit(spec, ("b", 2))
    assert tables.reader.read(spec, "k = 'a'").read_all().to_pylist() == [{"k": "a", "v": 1}]
    assert tables.reader.read(spec, "k = 'b'").read_all().to_pylist() == [{"k": "b", "v": 2}]


def test_files_past_the_memory_are_read_where_they_are(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tables.create("ops.t")
    for value in range(6):
        tables.commit(spec, (f"k{value}", value))
    monkeypatch.setattr(kept_view, "_MEMORY_BYTES", 3 * max(file.stat().st_size for file in tables.files(spec)))
    everything = [{"k": f"k{value}", "v": value} for value in range(6)]
    assert tables.rows(spec) == everything
    tables.commit(spec, ("k0", None))
    assert tables.rows(spec) == everything[1:]


def test_a_read_under_way_keeps_its_rows_while_the_table_moves(tables: Tables) -> None:
    spec = tables.create("ops.t")
    tables.commit(spec, *((f"{value:06}", value) for value in range(100_000)))
    under_way = tables.reader.read(spec, columns=["v"])
    tables.commit(spec, ("new", 1))
    assert tables.reader.read(spec, "k = 'new'").read_all().num_rows == 1
    assert under_way.read_all().num_rows == 100_000


def test_after_a_missing_file_the_next_read_starts_anew(tables: Tables) -> None:
    spec = tables.create("ops.t")
    tables.commit(spec, ("a", 1))
    (file,) = tables.files(spec)
    away = file.rename(file.with_suffix(".away"))
    with pytest.raises(MissingFileError):
        tables.reader.read(spec).read_all()
    away.rename(file)
    assert tables.rows(spec) == [{"k": "a", "v": 1}]


class Ended:
    """A database after a fatal error: it begins nothing more."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self.has_ended = False

    def begin(self) -> None:
        if self.has_ended:
            raise duckdb.FatalException("FATAL Error: database has been invalidated because of a previous fatal error")
        self._connection.begin()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_after_a_fatal_error_of_the_database_the_next_read_has_another(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tables.create("ops.t")
    tables.commit(spec, ("a", 1))
    made: list[Ended] = []
    real = kept_reads.open_duckdb
    monkeypatch.setattr(kept_reads, "open_duckdb", lambda: made.append(Ended(real())) or made[-1])
    for _ in range(2):
        assert tables.reader.read(spec, "k = 'a'").read_all().to_pylist() == [{"k": "a", "v": 1}]
        made[-1].has_ended = True
    assert len(made) == 2


def test_tables_beyond_those_kept_are_read_all_the_same(tables: Tables) -> None:
    specs: Sequence[TableSpec] = [tables.create(f"ops.t{number}") for number in range(10)]
    for number, spec in enumerate(specs):
        tables.commit(spec, ("a", number))
    for _ in range(2):
        for number, spec in enumerate(specs):
            assert tables.rows(spec) == [{"k": "a", "v": number}]


def test_a_condition_cannot_change_what_later_reads_show(tables: Tables) -> None:
    spec = tables.create("ops.t")
    tables.commit(spec, ("a", 1))
    with pytest.raises(RequestError, match="more than one statement"):
        tables.reader.read(spec, f'true; drop view "{spec.uuid}"; select 1')
    assert tables.rows(spec, "k in (select k from latest) -- all") == [{"k": "a", "v": 1}]


def test_threads_read_side_by_side(tables: Tables) -> None:
    spec = tables.create("ops.t")
    kept = KeptReads(tables.catalog)
    with ThreadPoolExecutor(4) as pool:
        for value in range(5):
            tables.commit(spec, ("a", value))

            def found(_: int) -> int:
                connection, rows = kept.latest(spec)
                return int(connection.execute(f"select v from ({rows})").fetchall()[0][0])

            assert set(pool.map(found, range(8))) == {value}
    kept.close()


def test_it_is_closed_while_a_thread_reads(tables: Tables) -> None:
    spec = tables.create("ops.t")
    tables.commit(spec, ("a", 1))
    kept = KeptReads(tables.catalog)
    connection, rows = kept.latest(spec)
    begun, goes_on = Event(), Event()

    def slow() -> Iterator[pa.RecordBatch]:
        begun.set()
        goes_on.wait(60)
        yield pa.record_batch({"n": [1]})

    connection.register("slow", pa.RecordBatchReader.from_batches(pa.schema({"n": pa.int64()}), slow()))
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(lambda: connection.execute(f"select v, n from ({rows}), slow").fetchall())
        try:
            assert begun.wait(60)
            kept.close()
        finally:
            goes_on.set()
        assert reading.result(60) == [(1, 1)]


def test_a_query_that_has_yet_to_run_keeps_its_views_while_others_read(tables: Tables) -> None:
    specs = [tables.create(f"ops.t{number}") for number in range(9)]
    for number, spec in enumerate(specs):
        tables.commit(spec, ("a", number))
    kept = KeptReads(tables.catalog)
    first, rows = kept.latest(specs[0])
    for spec in specs[1:]:
        kept.latest(spec)
    second, more = kept.latest(specs[8])
    kept.latest(rename_column(specs[8], "v", "value", 2))
    tables.commit(specs[8], ("a", 99))
    assert query_result(first, rows).read_all().to_pylist() == [{"k": "a", "v": 0}]
    assert query_result(second, more).read_all().to_pylist() == [{"k": "a", "v": 8}]
    kept.close()


def test_a_query_that_has_yet_to_run_reads_at_one_fold(tables: Tables) -> None:
    spec, merged = keyed("ops.t"), IcebergTables(tables.catalog, cast(Any, None))
    spec = set_properties(spec, {"max_age_s": "86400"}, 1)  # each read of such a table has a query of its own
    tables.catalog.create(spec)
    now = time.time_ns() // 1000 - 60_000_000
    tables.commit(spec, ("a", 1), at=now)
    merge_changes(merged, spec, now)
    tables.commit(spec, ("b", 5), at=now + 1)
    kept = KeptReads(tables.catalog)
    connection, rows = kept.latest(spec)
    tables.commit(spec, ("a", 3), at=now + 3)
    merge_changes(merged, spec, now + 3)
    tables.commit(spec, ("a", 2), at=now + 2)
    other, newer = kept.latest(spec)
    assert query_result(connection, rows).read_all().sort_by("k").to_pylist() == [
        {"k": "a", "v": 1},
        {"k": "b", "v": 5},
    ]
    assert query_result(other, newer).read_all().sort_by("k").to_pylist() == [{"k": "a", "v": 3}, {"k": "b", "v": 5}]
    kept.close()


@pytest.mark.parametrize(
    "condition", ["k in (select content from read_text('/etc/hosts'))", "k in (from '/etc/hosts')"]
)
def test_a_condition_reads_no_file_but_the_warehouse(tables: Tables, condition: str) -> None:
    spec = tables.create("ops.t")
    tables.commit(spec, ("a", 1))
    with pytest.raises(RequestError, match="Permission Error|does not exist"):
        tables.reader.read(spec, condition)
    for query in (f"select * from ops.t where {condition}", "select 1; select 2", "copy (select 1) to '/tmp/x.csv'"):
        with pytest.raises(RequestError):
            tables.reader.sql(query, [spec])
    assert tables.reader.sql("select v from ops.t", [spec]).read_all().to_pylist() == [{"v": 1}]
