"""The random graphs of ``tests/property/convergence.py`` on real Iceberg tables: few steps, fixed seeds."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from peer.tables.fold import merge_changes
from peer.tables.latest import Folded
from replication.core.definition.schema import TableSpec
from replication.tables.spark.iceberg import IcebergTables
from tests.integration.conftest import Warehouse, spark_warehouse
from tests.property.convergence import HOUR, World
from tests.tables_made import cell, grouped, keyed
from tests.versions import Version, append, model, shown

SLOW = [pytest.param(made, 3, marks=pytest.mark.slow) for made in (keyed("ops.t"), grouped("ops.g"), cell("ops.c"))]


@pytest.mark.parametrize(("made", "turns"), [(cell("ops.c"), 1), *SLOW])
def test_all_clusters_end_equal_on_real_tables(spark_tables: IcebergTables, made: TableSpec, turns: int) -> None:
    namespace = spark_warehouse(spark_tables).namespace
    spec = replace(made, name=f"{namespace}.t", history_s=3 * 3600)
    groups = [group.name for group in spec.groups]
    everything = frozenset(groups)
    world = World(spec, 2, {(0, 1): everything, (1, 0): everything}, spark_tables)
    random = Random(5)
    for turn in range(turns):
        for _ in range(10):
            at, group = random.randrange(2), random.choice(groups)
            key = random.choice("abc") + (group if spec.kind == "cell" else "")
            op = random.choice([0, 0, 1, 2] if spec.kind == "cell" else [0, 0, 1])
            age = random.choice([-1, 0, 1, 2]) if op == 2 or (spec.kind == "cell" and random.random() < 0.5) else None
            world.write(at, key, group, op, None if age is None else age * HOUR, random.randrange(10))
            world.ship(*random.choice([(0, 1), (1, 0)]), [random.randrange(30) for _ in range(3)])
        for at in (0, 1):
            world.replay(at)
            world.fold(at, random.choice([0.0, 1e9]))
            world.trim(at)
            if turn == turns // 2:
                world.lose_snapshots(at, "")
            world.check(at)
            world.clusters[at].skew = random.choice([-HOUR, 0, HOUR])
        world.pass_time(random.randrange(6))
    world.ship_all(backwards=True)
    world.pass_time(5)
    for at in (0, 1):
        world.replay(at)
        world.fold(at, 0.0)
        world.trim(at)
        assert world.shown(at) == world.expected(at)


def test_a_hold_ends_without_anything_new_to_fold(warehouse: Warehouse) -> None:
    spec, tables = keyed(f"{warehouse.namespace}.t"), warehouse.tables
    tables.create(spec)
    group = spec.groups[0].name
    versions = [
        Version(key=str(commit), group=group, op=0, ts=None, commit=commit, origin="e:1", seq=commit, row=0, value=1)
        for commit in (3, 20)
    ]
    for number, (version, upto) in enumerate(zip(versions, (5, None), strict=True), 1):
        append(tables, spec, [version], number)
        merge_changes(tables, spec, upto)
    assert Folded.newest(tables.history(spec.name)).holds and tables.history(spec.name).tags
    merge_changes(tables, spec, 30)
    assert Folded.newest(tables.history(spec.name)) == Folded(2, 30, 2, 30) and not tables.history(spec.name).tags
    assert shown(tables, spec) == model(versions, spec)
