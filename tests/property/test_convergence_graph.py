"""Any graph, filters, orders and clocks; folds, trims, tombstone expiry and lost snapshots between: all end equal."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.core.definition.schema import TableSpec
from tests.budget import examples
from tests.property.convergence import HOUR, World
from tests.tables_made import cell, grouped, keyed

pytestmark = pytest.mark.heavy

HISTORY_H = 3
SPECS = [
    dataclasses.replace(spec, history_s=HISTORY_H * 3600) for spec in (keyed("ops.t"), grouped("ops.g"), cell("ops.c"))
]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    spec: TableSpec = draw(st.sampled_from(SPECS))
    count = draw(st.integers(2, 5))
    groups = [group.name for group in spec.groups]
    some = st.frozensets(st.sampled_from(groups), min_size=1)
    pairs = list(itertools.permutations(range(count), 2))
    routes = draw(st.dictionaries(st.sampled_from(pairs), some, min_size=1, max_size=8))
    if draw(st.booleans()):  # a ring: everything gets everywhere
        routes |= {(at, (at + 1) % count): frozenset(groups) for at in range(count)}
    return World(spec, count, routes)


def step(data: st.DataObject, world: World) -> None:
    at = data.draw(st.integers(0, len(world.clusters) - 1), "at")
    what = data.draw(st.sampled_from(["write", "write", "write", "ship", "ship", "replay", "fold", "clock", "tidy"]))
    match what:
        case "write":
            cells = world.spec.kind == "cell"
            op = data.draw(st.sampled_from([0, 0, 1, 2] if cells else [0, 0, 1]), "op")
            age = data.draw(st.none() | st.integers(-2, HISTORY_H), "age") if cells and op != 1 else None
            if op == 2 and age is None:
                age = 0
            group = data.draw(st.sampled_from([g.name for g in world.spec.groups]), "group")
            key = data.draw(st.sampled_from("ab"), "key") + (group if cells else "")  # a cell's key names its group
            value = data.draw(st.none() | st.integers(0, 9), "value")
            world.write(at, key, group, op, None if age is None else age * HOUR, value)
        case "ship":
            route = data.draw(st.sampled_from(sorted(world.routes)), "route")
            world.ship(*route, data.draw(st.lists(st.integers(0, 30), max_size=4), "picks"))
        case "replay":
            world.replay(at)
            world.check(at)
        case "fold":
            if data.draw(st.booleans(), "replay first"):
                world.replay(at)
            world.fold(at, data.draw(st.sampled_from([0.0, 3600.0, 1e9]), "hold"))
            world.trim(at)
            world.check(at)
        case "clock":
            world.clusters[at].skew = data.draw(st.sampled_from([-HOUR, 0, 0, HOUR, HOUR // 7]), "skew")
            world.pass_time(data.draw(st.integers(0, 2 * HISTORY_H + 2), "hours"))
        case "tidy":
            world.lose_snapshots(at, data.draw(st.sampled_from(["", "__changes", "__tombstones"]), "which"))
            world.check(at)


@examples(5)
@given(worlds(), st.integers(5, 40), st.data())
def test_all_clusters_end_equal(world: World, steps: int, data: st.DataObject) -> None:
    for _ in range(steps):
        step(data, world)
    world.ship_all(backwards=data.draw(st.booleans()))
    for at in range(len(world.clusters)):
        world.replay(at)
        assert world.shown(at) == world.expected(at)
        world.fold(at, 0.0)
        world.trim(at)
        assert world.shown(at) == world.expected(at)


KEYED, _, CELLS = SPECS
ONE_ROUTE = {(0, 1): frozenset({"meta", "default"}), (1, 0): frozenset({"meta", "default"})}


def test_a_delete_at_a_time_ahead_hides_what_is_put_below_it_however_much_later() -> None:
    world = World(CELLS, 2, ONE_ROUTE)
    world.write(0, "a", "meta", 2, -2 * HOUR, None)
    for _ in range(4):  # the put may be HISTORY_H hours older than its writing, and so older than the delete
        world.pass_time(1)
        world.ship_all(backwards=False)
        for at in (0, 1):
            world.replay(at)
            world.fold(at, 0.0)
            world.trim(at)
    world.write(0, "a", "meta", 0, 3 * HOUR, 1)
    world.ship_all(backwards=False)
    for at in (0, 1):
        world.replay(at)
        world.check(at)
        assert world.shown(at) == []


def test_a_delete_outlives_every_older_row_that_is_still_among_the_changes() -> None:
    """The older row came last, so it stays for the replay's sake; then somebody's maintenance forgets the folds."""
    world = World(KEYED, 2, ONE_ROUTE)
    world.write(1, "a", "default", 0, None, 1)
    world.pass_time(1)
    world.write(0, "a", "default", 1, None, None)
    world.replay(0)
    world.ship_all(backwards=False)
    world.replay(0)
    world.pass_time(2 * HISTORY_H)
    world.fold(0, 1e9)
    world.trim(0)
    world.check(0)
    world.lose_snapshots(0, "")
    world.check(0)
    world.fold(0, 0.0)
    world.check(0)


def test_deletes_are_purged_once_nothing_older_can_come() -> None:
    world = World(KEYED, 2, ONE_ROUTE)
    world.write(0, "a", "default", 0, None, 1)
    world.write(1, "a", "default", 1, None, None)
    world.ship_all(backwards=False)
    for _ in range(3):
        for at in (0, 1):
            world.write(at, "b", "default", 0, None, at)
            world.replay(at)
            world.fold(at, 0.0)
            world.trim(at)
        assert world.tombstones(0) > 0
        world.ship_all(backwards=False)
    world.pass_time(HISTORY_H + 1)
    for at in (0, 1, 0, 1):
        world.write(at, "b", "default", 0, None, at)
        world.ship_all(backwards=False)
        world.replay(at)
        world.fold(at, 0.0)
        world.trim(at)
        world.check(at)
    assert [world.tombstones(at) for at in (0, 1)] == [0, 0]
