"""Replay, fold and reads over changes of a table's definition, in whatever order frames and definition come."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from peer.frames.quarantine import Quarantine
from peer.replay.context import ReplayContext
from peer.replay.housekeeping import Housekeeping
from peer.replay.rounds import Replayer
from peer.tables.by_jobs import rows_query
from peer.tables.fold import fold, merge_changes
from peer.tables.latest import latest_query, show_latest
from peer.tables.maintenance import trim
from peer.tables.read import read
from replication.core.definition.alter import (
    add_column,
    add_group,
    drop_column,
    rename_column,
    set_properties,
    widen_column,
)
from replication.core.definition.evolution import join
from replication.core.definition.schema import TableSpec
from replication.errors import CommitConflictError, SchemaError
from replication.settings import ReplaySection
from replication.tables.base import SPARK, Tables
from replication.tables.layout import LATEST
from tests.fakes.tables import MemoryTables
from tests.integration.conftest import Warehouse
from tests.integration.replay_site import FOLDED
from tests.origin import OriginWal, new_ledger
from tests.tables_made import grouped, keyed
from tests.versions import Version, append, shown
from tests.waiting import wait_until

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int32()), ("note", pa.string())])
#: Spark's reads of groups are tested with replay, and take longest: ``make test-all`` has them over changes, too.
RARELY_BY_SPARK = pytest.mark.parametrize(
    "warehouse", ["memory", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("spark", "small"))], indirect=True
)


class Site:
    """A cluster's ledger, a WAL and a replayer over a warehouse; ``was`` is the definition before the last change."""

    def __init__(self, directory: Path, warehouse: Warehouse, spec: TableSpec | None = None) -> None:
        self.tables: Tables = warehouse.tables
        self.ledger = new_ledger(directory)
        self.wal = OriginWal(self.ledger, directory / "wal")
        self.spec = spec or keyed(f"{warehouse.namespace}.t{uuid4().hex[:6]}", SCHEMA)
        self.ledger.tables.create(self.spec)
        quarantine = Quarantine(directory / "quarantine", self.ledger.replay)
        self.replayer = Replayer(
            ReplayContext(self.ledger, self.tables, quarantine, self.ledger.replay.raise_epoch()), parallel=1
        )

    def alter(self, *changes: Any) -> TableSpec:
        for change in changes:
            self.spec = self.ledger.tables.alter(self.spec.uuid, change)
        return self.spec

    def put(self, spec: TableSpec, *rows: dict[str, Any]) -> None:
        self.wal.upsert(spec, rows)
        self.wal.register(closed=self.wal.now)

    def replay(self) -> dict[str, str]:
        held: dict[str, str] = {}
        for _ in range(4):
            held = self.replayer.round().held
        return held

    def rows(self) -> list[dict[str, Any]]:
        """What both executions of the definition show, and the view."""
        here = read(self.tables, self.spec).read_all().to_pylist()
        show_latest(self.tables, self.spec)
        for query in (
            latest_query(self.tables, self.spec),
            f"select * from {self.tables.ref(self.spec.name + LATEST)}",
        ):
            there = self.tables.query(query).to_pylist()
            assert sorted(map(repr, here)) == sorted(map(repr, there))
        return sorted(here, key=repr)


@pytest.fixture
def site(tmp_path: Path, warehouse: Warehouse) -> Site:
    return Site(tmp_path, warehouse)


def test_frames_of_every_definition_become_rows_of_the_last_one(site: Site) -> None:
    first = site.spec
    site.put(first, {"k": "a", "v": 1, "note": "one"}, {"k": "b", "v": 2, "note": "two"})
    assert not site.replay()
    fold(site.tables, site.ledger, first, site.wal.now, 600)
    second = site.alter(
        lambda s: rename_column(s, "k", "id", 1),
        lambda s: rename_column(s, "v", "count", 2),
        lambda s: widen_column(s, "count", pa.int64()),
        lambda s: add_column(s, "v", pa.string(), "", uuid4(), 3),
        lambda s: drop_column(s, "note"),
    )
    before = read(site.tables, second).read_all().to_pylist()  # nothing has been replayed into the new columns yet
    assert sorted(before, key=repr) == [{"id": "a", "count": 1, "v": None}, {"id": "b", "count": 2, "v": None}]
    site.put(first, {"k": "c", "v": 3, "note": "late"})
    site.put(second, {"id": "a", "count": 5_000_000_000, "v": "text"})
    site.put(first, {"k": "d", "v": 4, "note": "later"})
    assert not site.replay()
    wanted = [
        {"id": "a", "count": 5_000_000_000, "v": "text"},
        {"id": "b", "count": 2, "v": None},
        {"id": "c", "count": 3, "v": None},
        {"id": "d", "count": 4, "v": None},
    ]
    assert site.rows() == wanted
    assert fold(site.tables, site.ledger, second, site.wal.now, 600) is not None
    assert site.rows() == wanted
    third = site.alter(lambda s: add_column(s, "note", pa.string(), "", uuid4(), 9))
    site.put(first, {"k": "e", "v": 6, "note": "of the dropped column"})
    site.put(third, {"id": "f", "count": 7, "v": "x", "note": "of the new one"})
    site.wal.delete(first, [{"k": "b"}])
    site.wal.register(closed=site.wal.now)
    assert not site.replay()
    merge_changes(site.tables, third, site.wal.now)
    found = {row["id"]: row["note"] for row in site.rows()}
    assert found == {"a": None, "c": None, "d": None, "e": None, "f": "of the new one"}
    assert not site.ledger.replay.quarantined()


@RARELY_BY_SPARK
def test_groups_keep_their_own_columns_and_versions_over_a_change(tmp_path: Path, warehouse: Warehouse) -> None:
    site = Site(tmp_path, warehouse, grouped(f"{warehouse.namespace}.g{uuid4().hex[:6]}"))
    first = site.spec
    site.put(first, {"k": "x", "a": 1, "b": "one"})
    assert not site.replay()
    second = site.alter(lambda s: add_column(s, "c", pa.float64(), "left", uuid4(), 1))
    site.put(second, {"k": "x", "a": 2, "c": 0.5})
    site.put(first, {"k": "x", "b": "two"})
    assert not site.replay()
    assert site.rows() == [{"k": "x", "a": 2, "b": "two", "c": 0.5}]
    merge_changes(site.tables, second, site.wal.now)
    assert site.rows() == [{"k": "x", "a": 2, "b": "two", "c": 0.5}]


@RARELY_BY_SPARK
def test_a_group_added_later_has_versions_of_its_own_and_reads_need_not_wait(site: Site) -> None:
    first = site.spec
    site.put(first, {"k": "a", "v": 1, "note": "one"}, {"k": "b", "v": 2})
    assert not site.replay()
    fold(site.tables, site.ledger, first, site.wal.now, 600)
    second = site.alter(lambda s: add_group(s, "Extra", [("more", pa.string(), uuid4())], 1))
    before = sorted(read(site.tables, second).read_all().to_pylist(), key=repr)
    assert before == [{"k": "a", "v": 1, "note": "one", "more": None}, {"k": "b", "v": 2, "note": None, "more": None}]
    assert not site.tables.fits(second)
    site.put(second, {"k": "a", "more": "x"}, {"k": "c", "more": "y"})
    site.put(first, {"k": "a", "v": 10, "note": "of the old definition"})
    assert not site.replay()
    wanted = [
        {"k": "a", "v": 10, "note": "of the old definition", "more": "x"},
        {"k": "b", "v": 2, "note": None, "more": None},
        {"k": "c", "v": None, "note": None, "more": "y"},
    ]
    assert site.rows() == wanted
    merge_changes(site.tables, second, site.wal.now)
    assert site.rows() == wanted
    site.wal.delete(second, [{"k": "a"}])
    site.wal.register(closed=site.wal.now)
    assert not site.replay()
    assert site.rows() == wanted[1:]
    merge_changes(site.tables, second, site.wal.now)
    assert site.rows() == wanted[1:]


@FOLDED
def test_rows_that_are_too_old_are_shown_by_neither_execution_and_go_from_disk(site: Site) -> None:
    second, spec = 1_000_000, site.alter(lambda s: set_properties(s, {"max_age_s": "100"}, 1))
    site.wal.upsert(spec, [{"k": "a", "v": 1}, {"k": "b", "v": 1}], 10 * second)
    site.wal.upsert(spec, [{"k": "b", "v": 2}], 120 * second)
    site.wal.upsert(spec, [{"k": "c", "v": 3}], 200 * second)
    site.wal.register(closed=240 * second)
    assert not site.replay()

    def as_of(at: int) -> list[dict[str, Any]]:
        here = read(site.tables, spec, as_of=at).read_all().to_pylist()
        if site.tables.dialect is SPARK:
            there = site.tables.query(f"select k, v, note from ({rows_query(site.tables, spec, at)}) r").to_pylist()
            assert sorted(map(repr, here)) == sorted(map(repr, there))
        return sorted((row["k"], row["v"]) for row in here)

    assert as_of(110 * second) == [("a", 1), ("b", 1)]
    for _ in range(2):
        assert as_of(215 * second) == [("b", 2), ("c", 3)]
        assert as_of(240 * second) == [("c", 3)]
        merge_changes(site.tables, spec, 215 * second)
    trim(site.tables, site.ledger, spec, 240 * second, 10_000.0)
    left = site.tables.query(f"select k from {site.tables.ref(spec.name)}").column(0).to_pylist()
    assert sorted(left) == ["b", "c"], "those too old a minute before the fold are gone"
    assert as_of(215 * second) == [("b", 2), ("c", 3)] and as_of(240 * second) == [("c", 3)]
    site.wal.upsert(spec, [{"k": "a", "v": 9}], 250 * second)
    site.wal.register(closed=300 * second)
    assert not site.replay()
    merge_changes(site.tables, spec, 300 * second)
    assert as_of(300 * second) == [("a", 9), ("c", 3)]


def test_frames_that_are_ahead_of_the_definition_wait_for_it_and_hold_no_other_table(site: Site) -> None:
    other = keyed(site.spec.name + "_other", SCHEMA)
    site.ledger.tables.create(other)
    ahead = add_column(site.spec, "extra", pa.string(), "", uuid4(), 1)
    for version in ahead.versions.values():
        site.ledger.tables.put_schema(version)
    site.put(ahead, {"k": "a", "v": 1, "extra": "kept"})
    site.put(other, {"k": "b", "v": 1})
    assert "have extra" in site.replay()[site.spec.name]
    assert not site.ledger.replay.quarantined()
    assert read(site.tables, other).read_all().num_rows == 1
    site.alter(lambda s: join(s, ahead))
    site.replayer.held.retry_now(site.spec.uuid)  # not to wait for the back-off
    assert not site.replay()
    assert site.rows() == [{"k": "a", "v": 1, "note": None, "extra": "kept"}]


def test_an_altered_table_is_shaped_without_new_frames(site: Site) -> None:
    site.put(site.spec, {"k": "a", "v": 1})
    assert not site.replay()
    changed = site.alter(lambda s: rename_column(s, "v", "w", 1))
    housekeeping = Housekeeping(site.tables, site.ledger, ReplaySection())
    housekeeping.run_once(lambda: False)
    assert not housekeeping.errors
    assert site.tables.fits(changed)
    assert site.rows() == [{"k": "a", "w": 1, "note": None}]


def test_iceberg_tables_follow_a_definition_though_another_commit_came_between(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.put(site.spec, {"k": "a", "v": 1})
    assert not site.replay()
    changed = site.alter(lambda s: rename_column(s, "v", "w", 1))

    def beaten(*_: Any) -> None:
        monkeypatch.undo()
        raise CommitConflictError("somebody else commits to it")

    monkeypatch.setattr(site.tables, "create", beaten)
    housekeeping = Housekeeping(site.tables, site.ledger, ReplaySection())
    housekeeping.run_once(lambda: False)
    assert not site.tables.fits(changed)
    assert not housekeeping.errors
    # What was beaten is due again when as long has passed as it took.
    wait_until(lambda: housekeeping.run_once(lambda: False) or site.tables.fits(changed), what="the table to fit")


def test_a_fold_that_meets_a_change_leaves_no_value_out(site: Site) -> None:
    first = site.spec
    site.put(first, {"k": "a", "v": 1})
    assert not site.replay()
    second = site.alter(lambda s: add_column(s, "extra", pa.string(), "", uuid4(), 1))
    site.put(second, {"k": "b", "v": 2, "extra": "kept"})
    assert not site.replay()
    with pytest.raises((CommitConflictError, SchemaError)):  # a fold that was about to begin with the old definition
        merge_changes(site.tables, first, site.wal.now)
    assert merge_changes(site.tables, second, site.wal.now) is not None
    assert site.rows()[1] == {"k": "b", "v": 2, "note": None, "extra": "kept"}


def test_columns_that_take_each_others_names_while_a_fold_commits_keep_their_values() -> None:
    tables = MemoryTables()
    spec = keyed("ops.swap", pa.schema([("k", pa.string()), ("v", pa.int64()), ("w", pa.int64())]))
    swapped = spec
    for old, new in (("v", "between"), ("w", "v"), ("between", "w")):
        swapped = rename_column(swapped, old, new, 1)
    tables.create(spec)
    group = spec.groups[0].name
    version = Version(key="a", group=group, op=0, ts=None, commit=3, origin="e:1", seq=1, row=0, value=1)
    append(tables, spec, [version], 1)
    tables.fail = lambda step: tables.create(swapped) if step == "replace ops.swap" else None
    with pytest.raises(CommitConflictError, match="altered by another commit"):
        merge_changes(tables, spec, 5)
    tables.fail = lambda step: None
    assert merge_changes(tables, swapped, 5) is not None
    assert shown(tables, swapped) == [{"k": "a", "v": None, "w": 1}]
