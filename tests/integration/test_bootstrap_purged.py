"""Deletes whose tombstones are gone when a bootstrap is written: the peer's rows go, and nothing else does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from peer.tables.fold import merge_changes
from peer.tables.maintenance import purged, trim
from replication.core.definition.alter import rename_column, set_properties
from replication.core.routes.bootstrap import Coverage, Purged
from replication.ledger.base import Bootstrap, Quarantined, ReplayCheckpoint
from tests.bootstrap_pair import Pair, bootstraps, ids, other_pair
from tests.fakes.tables import MemoryTables
from tests.integration.conftest import Warehouse
from tests.integration.test_bootstrap import Killed
from tests.replaying import TableSite
from tests.sites import rows, table
from tests.tables_made import cell, grouped
from tests.waiting import wait_until

DAY = 86_400_000_000


def now() -> int:
    return time.time_ns() // 1000


def stored(site: TableSite, name: str) -> int:
    return site.tables.query(f'select * from "{name}" where _op > 0').num_rows


class World(Pair):
    """East and west, where ``wal`` is 60 days behind and ``present`` is not."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.wal.ahead_us = -60 * DAY
        self.present = self.east.wal("w1")

    def send(self) -> None:
        """All that east has, and will have."""
        self.east.send_to(self.west, self.spec)
        self.connect()

    def part(self) -> None:
        """West is sent nothing any more."""
        self.stack.close()
        groups = [group.name for group in self.spec.groups]
        self.east.ledger.rules.disable("west", self.spec.uuid, groups, self.east.term)

    def catch_up(self) -> None:
        self.east.register()
        self.east.replay()

    def forget(self, last: pa.Table) -> None:
        """East's tombstones go; ``last`` is written after them."""
        self.catch_up()
        self.present.append(self.spec, last)
        self.fold_and_trim()
        assert stored(self.east, self.spec.name + "__tombstones") == 0
        assert stored(self.east, self.spec.name + "__changes") == 0

    def fold_and_trim(self) -> None:
        with self.east.worker():
            wait_until(self._is_caught_up)
        merge_changes(self.east.tables, self.spec, now())
        trim(self.east.tables, self.east.ledger, self.spec, now(), 0.0)

    def _is_caught_up(self) -> bool:
        self.catch_up()
        times = self.east.ledger.time.replicated(self.spec.uuid, every_origin=True)
        return bool(times) and min(found.t for found in times.values()) > now() - DAY

    def bootstrap(self) -> None:
        self.begin()
        self.connect()
        self.finish()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def parted(world: World, *more: pa.Table) -> None:
    """West has rows 0 to 3 of long ago and knows nothing of the delete of row 1, which east has purged.

    They both have ``more``, which is new.
    """
    world.send()
    world.write(0, 4)
    for each in more:
        world.present.append(world.spec, each)
    world.catch_up()
    world.level()
    world.part()
    world.wal.delete(world.spec, [{"id": 1}])
    world.forget(rows(9, 1))


@pytest.mark.parametrize("is_folded", [False, True])
def test_a_row_whose_delete_is_forgotten_goes(world: World, is_folded: bool) -> None:
    world.send()
    world.write(0, 4)
    world.level()
    if is_folded:
        world.west.fold(world.spec)
    world.part()
    world.wal.delete(world.spec, [{"id": 1}])
    world.forget(rows(9, 1))
    assert ids(world.west, world.spec) == [0, 1, 2, 3]
    world.bootstrap()
    world.level()
    assert ids(world.west, world.spec) == [0, 2, 3, 9]
    world.west.fold(world.spec)
    assert ids(world.west, world.spec) == [0, 2, 3, 9]
    world.wal.append(world.spec, rows(1, 1))
    world.catch_up()
    world.level()
    assert ids(world.west, world.spec) == [0, 1, 2, 3, 9]


def test_a_key_may_have_any_name(world: World) -> None:
    other_pair(world, rename_column(table("ops.named"), "id", "w", 1))
    world.send()
    world.wal.append(world.spec, rows(0, 4).rename_columns(["w", "text"]))
    world.level()
    world.part()
    world.wal.delete(world.spec, [{"w": 1}])
    world.forget(rows(9, 1).rename_columns(["w", "text"]))
    world.bootstrap()
    assert sorted(row["w"] for row in world.west.shown(world.spec)) == [0, 2, 3, 9]


def test_it_goes_from_any_warehouse(world: World, warehouse: Warehouse) -> None:
    other_pair(world, table(f"{warehouse.namespace}.flown"))
    world.west.tables = warehouse.tables
    world.west.restart()
    parted(world)
    world.west.fold(world.spec)
    world.bootstrap()
    assert ids(world.west, world.spec) == [0, 2, 3, 9]
    world.west.fold(world.spec)
    assert ids(world.west, world.spec) == [0, 2, 3, 9]


def test_a_delete_that_the_peer_got_as_a_frame_needs_nothing(world: World) -> None:
    world.send()
    world.write(0, 4)
    world.wal.delete(world.spec, [{"id": 1}])
    world.catch_up()
    world.level()
    world.part()
    world.forget(rows(9, 1))
    versions = set(world.west.versions(world.spec))
    world.bootstrap()
    world.level()
    assert len(set(world.west.versions(world.spec)) - versions) == 1


def test_a_later_version_of_the_peer_itself_stays(world: World) -> None:
    parted(world)
    world.west.wal().append(world.spec, rows(1, 1))
    world.west.register()
    world.west.replay()
    world.bootstrap()
    assert ids(world.west, world.spec) == [0, 1, 2, 3, 9]


def test_a_row_that_the_source_lost_otherwise_stays_when_no_delete_of_its_time_is_forgotten(world: World) -> None:
    parted(world, rows(5, 1))
    for name in (world.spec.name, world.spec.name + "__changes"):
        world.east.tables.delete(name, "id = 5")
    world.bootstrap()
    assert ids(world.west, world.spec) == [0, 2, 3, 5, 9]


def test_the_other_group_of_a_key_stays(world: World) -> None:
    other_pair(world, grouped("ops.g"))
    world.send()
    world.wal.append(world.spec, pa.table({"k": ["x", "y"], "a": [1, 2], "b": ["one", "two"]}))
    world.catch_up()
    world.level()
    world.part()
    world.wal.delete(world.spec, [{"k": "x"}, {"k": "y"}])
    world.wal.append(world.spec, pa.table({"k": ["y"], "b": ["new"]}))
    world.forget(pa.table({"k": ["z"], "a": [9], "b": ["last"]}))
    world.bootstrap()
    world.level()
    assert world.west.shown(world.spec) == [{"k": "y", "a": None, "b": "new"}, {"k": "z", "a": 9, "b": "last"}]


def test_a_group_that_the_bootstrap_does_not_bring_stays(world: World) -> None:
    other_pair(world, grouped("ops.g"))
    world.send()
    world.wal.append(world.spec, pa.table({"k": ["x"], "a": [1], "b": ["one"]}))
    world.catch_up()
    world.level()
    world.part()
    world.wal.delete(world.spec, [{"k": "x"}])
    world.forget(pa.table({"k": ["z"], "a": [9], "b": ["last"]}))
    world.begin(["left"])
    world.connect()
    world.finish()
    assert world.west.shown(world.spec) == [{"k": "x", "a": None, "b": "one"}, {"k": "z", "a": 9, "b": None}]


def test_cells_go_by_the_users_timestamps(world: World) -> None:
    other_pair(world, cell("ops.cells"))
    old = now() - 60 * DAY
    at = {"family": "f", "qualifier": "q", "visibility": ""}
    given = [(b"r", "f", old), (b"r", "m", old), (b"s", "f", old), (b"t", "f", now() - DAY)]
    cells = [{**at, "row": row, "family": family, "value": row, "timestamp": ts} for row, family, ts in given]
    world.send()
    world.wal.cells(world.spec, cells)
    world.catch_up()
    world.level()
    world.part()
    world.wal.cells(world.spec, [{**at, "row": b"r", "timestamp": old + 1, "delete": True}])
    world.wal.cells(world.spec, [{**at, "row": b"r", "family": "m", "timestamp": old + 1, "delete": True}])
    world.catch_up()
    world.present.cells(world.spec, [{**at, "row": b"u", "value": b"u"}])
    world.fold_and_trim()
    assert stored(world.east, world.spec.name + "__tombstones") == 0
    world.east.tables.delete(world.spec.name, "\"row\" = 't'::blob")
    world.bootstrap()
    assert [row["row"] for row in world.west.shown(world.spec)] == [b"s", b"t", b"u"]


@pytest.mark.parametrize("step", ["tombstone_rows", "append", "appended", "marked"])
def test_a_peer_killed_at_any_step_shows_the_same_afterwards(world: World, step: str) -> None:
    parted(world)
    west, at = world.west, list[str]()
    mark = west.ledger.replay.checkpoint_applied
    changes = world.spec.name + "__changes"
    seen = stored(west, changes)
    world.begin()
    world.connect()
    world.east.keeper.run_once()
    wait_until(lambda: any(row.closed for row in bootstraps(west)))

    def die(reached: str) -> None:
        if step == reached and not at:
            at.append(reached)
            raise Killed

    def fails(name: str) -> None:
        there = stored(west, changes) > seen
        if there and changes in name:
            what = name.partition(" ")[0]
            is_rows = any(row["id"] == 9 for row in west.tables.query(f'select id from "{changes}"').to_pylist())
            die("tombstone_rows" if what == "appended" and not is_rows else what)

    def marks(given: ReplayCheckpoint) -> None:
        mark(given)
        if any(row.file in given.positions for row in bootstraps(west)):
            die("marked")

    assert isinstance(west.tables, MemoryTables)
    west.tables.fail = fails
    west.ledger.replay.checkpoint_applied = marks  # type: ignore[method-assign]
    wait_until(lambda: west.replayer.round() and at, what=f"the kill when {step}")
    west.restart()
    world.finish()
    world.level()
    assert ids(west, world.spec) == [0, 2, 3, 9]
    assert stored(west, changes) == seen + 1


def test_a_bootstrap_of_an_older_walship_changes_nothing_else(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    parted(world)
    monkeypatch.setattr("peer.bootstrap.export.purged", lambda *_: Purged())
    world.bootstrap()
    assert ids(world.west, world.spec) == [0, 1, 2, 3, 9]


def test_what_was_forgotten_stays_known_when_tombstones_live_longer_now(world: World) -> None:
    parted(world)
    world.east.ledger.tables.alter(world.spec.uuid, lambda s: set_properties(s, {"history_s": str(90 * 86_400)}, 1))
    world.spec = world.east.ledger.tables.get(world.spec.name)
    world.bootstrap()
    assert ids(world.west, world.spec) == [0, 2, 3, 9]


def test_rows_that_grew_too_old_at_the_source_stay_where_they_do_not(world: World) -> None:
    parted(world)
    aged = world.east.ledger.tables.alter(world.spec.uuid, lambda s: set_properties(s, {"max_age_s": "86400"}, 1))
    world.east.restart()
    world.catch_up()
    world.spec = aged
    world.fold_and_trim()
    assert ids(world.east, aged) == [9]
    world.east.ledger.rules.enable(
        "west", aged.uuid, ["default"], aged.name, world.east.term, bootstrap=True, with_properties=False
    )
    world.connect()
    world.finish()
    assert ids(world.west, world.west.ledger.tables.get(aged.name)) == [0, 1, 2, 3, 9]


def test_a_cluster_that_took_such_a_bootstrap_tells_it_to_the_next_one(world: World, tmp_path: Path) -> None:
    south = TableSite(tmp_path, "south")
    world.west.ledger.tables.create(world.spec)
    world.west.send_to(south, world.spec)
    world.send()
    world.write(0, 4)
    world.level()
    with south.receiver() as receiver, world.west.worker():
        world.west.assign(south.cluster, receiver.port)
        wait_until(lambda: south.replay() and south.tables.exists(world.spec.name) and len(ids(south, world.spec)) == 4)
    world.west.ledger.rules.disable("south", world.spec.uuid, ["default"], world.west.term)
    world.part()
    world.wal.delete(world.spec, [{"id": 1}])
    world.forget(rows(9, 1))
    world.bootstrap()
    assert ids(world.west, world.spec) == [0, 2, 3, 9]
    rules = world.west.ledger.rules
    rules.enable("south", world.spec.uuid, ["default"], world.spec.name, world.west.term, bootstrap=True)
    with south.receiver() as receiver, world.west.worker():
        world.west.assign(south.cluster, receiver.port)

        def there() -> bool:
            world.west.keeper.run_once()
            south.replay()
            return ids(south, world.spec) == [0, 2, 3, 9]

        wait_until(there, what="the same rows at south")
    south.close()


def test_where_a_frame_was_given_up_nothing_counts_as_deleted(world: World) -> None:
    parted(world)
    east, spec = world.east, world.spec
    assert purged(east.ledger, spec, now())
    given_up = Quarantined(world.wal.file, 256, 300, spec.uuid, "no row", "", now(), 0)
    east.ledger.replay.quarantine(given_up, (next(iter(east.ledger.landing.coverage(spec.uuid))), 0))
    assert not purged(east.ledger, spec, now())


def test_a_row_that_came_after_the_coverage_was_told_keeps_its_key(world: World) -> None:
    parted(world)
    east, other = world.east, world.east.wal("w2")
    told = east.ledger.bootstraps.covered

    def covered(wanted: Bootstrap) -> tuple[list[Coverage], int]:
        """As it was right before something of another WAL was replayed."""
        found = told(wanted)
        other.append(world.spec, rows(0, 1))
        world.catch_up()
        return found

    east.ledger.bootstraps.covered = covered  # type: ignore[method-assign]
    world.begin()
    east.keeper.run_once()
    east.ledger.bootstraps.covered = told  # type: ignore[method-assign]
    shown = set[tuple[int, ...]]()

    def look(*_: object) -> None:
        shown.add(tuple(ids(world.west, world.spec)))

    world.connect()
    assert isinstance(world.west.tables, MemoryTables)
    world.west.tables.fail = look
    world.finish()
    world.level()
    assert shown and all(0 in each for each in shown)
    assert ids(world.west, world.spec) == [0, 2, 3, 9]


def test_the_frame_carries_what_is_forgotten_beside_the_sequences() -> None:
    spec = grouped("ops.g")
    coverage = Coverage.of(spec.uuid, "left", {})
    made = coverage.beside((), Purged(3, 5))
    assert Coverage.decode(made.encode(), spec.uuid, "left") == made
    assert Coverage.decode(b"[]", spec.uuid, "left") == coverage
