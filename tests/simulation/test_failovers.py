"""Seeded failovers: what is told to be lost is lost, row for row, and what counts is consistent in all tables."""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peer.failover import lost_writes
from peer.failover.failover import failover, plan_failover
from peer.failover.opening import CONSISTENT, EVERYTHING
from replication.core.ids import ClusterId
from replication.core.succession import Succession
from replication.ledger.sql.parts.successions import SqlSuccessions
from tests.simulation.failing_over import Acked, World
from tests.simulation.test_schedules import quiet

__all__ = ["quiet"]

SEED = "WALSHIP_TEST_FAILOVER_SEED"
_USUAL = 6
_KEPT = 0


def lost_rows(world: World) -> Counter[tuple[str, int, int, bool]]:
    """West's lost writes: (table, commit time, key, whether it is a delete)."""
    found: Counter[tuple[str, int, int, bool]] = Counter()
    for spec in world.specs:
        for batch in lost_writes.rows_of(world.west.handle, spec.name):
            found.update((spec.name, row["_commit"], row["id"], row["_op"] != 0) for row in batch.to_pylist())
    return found


def named(acked: list[Acked]) -> Counter[tuple[str, int, int, bool]]:
    return Counter((row.table, row.commit, row.id, row.text is None) for row in acked)


def fail_over(world: World) -> Counter[str]:
    """One failover, the return of what was lost, and a decision; what happened."""
    chance, west = world.chance, world.west
    world.run(chance.randint(20, 160))
    if not west.ledger.landing.routes():  # a short run, in which nothing came
        return Counter(nothing=1)
    landed = west.ledger.landing.coverage()
    here = [row for row in world.acked if row.stream in landed and landed[row.stream].contains(row.sequence)]
    at = chance.choice((CONSISTENT, CONSISTENT, EVERYTHING))
    plan = plan_failover(west.context, "east", at=at)
    if plan.refusals:
        assert at == CONSISTENT and not west.ledger.time.landed(world.east.id).t, plan.refusals
        return Counter(refused=1)
    done = failover(west.context, plan)
    counting = [row for row in here if not plan.upto or row.commit <= plan.upto]
    if plan.upto:
        assert named(counting) == named([row for row in world.acked if row.commit <= plan.upto])
    told = {each.table: each.rows for each in plan.loss.tables if each.rows}
    assert told == Counter(row.table for row in here if row not in counting)
    west.apply()
    assert west.rows() == world.rows(counting)
    newer = [row for spec in world.specs for row in west.put(spec, [chance.randrange(12)], "new")]
    world.catch_up()
    lost = [row for row in world.acked if row not in counting]
    assert lost_rows(world) == named(lost)  # what was told to be lost is lost, row for row
    west.register()
    west.apply()
    assert west.rows() == world.rows([*counting, *newer])
    decided = ("merge", "discard", "none")[world.seed % 3]
    if decided == "merge":
        places = {(kept.table, kept.file) for kept in west.ledger.replay.quarantined()}
        landed_in = sum(row.source is not None for row in west.ledger.files.all())
        lost_writes.merge(west.handle)
        merged_in = sum(row.source is not None for row in west.ledger.files.all()) - landed_in
        assert merged_in <= len(places)  # not one for each frame
        west.apply()
        assert west.rows() == world.rows([*world.acked, *newer])
        assert not lost_rows(world)
    elif decided == "discard":
        lost_writes.discard(west.handle)
        assert lost_writes.merge(west.handle) == 0  # what is discarded stays so
        west.apply()
        assert west.rows() == world.rows([*counting, *newer])
    back = sum(told.values())
    return Counter({"lost": len(lost), "taken back": back, decided: 1, "cut": bool(done.upto)})


def lands_late(patched: pytest.MonkeyPatch, world: World, cut_too_late: bool) -> None:
    """East goes on after its epoch was ended. A planted bug takes the cut afterwards: what landed late counts, too."""
    real = SqlSuccessions.take_over

    def take_over(self: SqlSuccessions, origin: ClusterId, *rest: Any) -> Succession:
        made = real(self, origin, *rest)
        for _ in range(20):
            for move in (world.write, world.east.register, world.east.ship, world.west.receive):
                move()
        if not cut_too_late:
            return made
        covered = world.west.ledger.landing.coverage()
        return self.record(
            replace(made, cut={each: had for each, had in covered.items() if each.wal.cluster == origin})
        )

    patched.setattr(SqlSuccessions, "take_over", take_over)


def simulate(seeds: list[int], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    happened = Counter[str]()
    for run, seed in enumerate(seeds):
        world = World(seed, folder / str(run), monkeypatch)
        try:
            happened += fail_over(world)
        except BaseException:
            print(f"\nrepeat it: {SEED}={seed} .venv/bin/pytest tests/simulation/test_failovers.py -k told")
            raise
        finally:
            world.close()
    return happened


def seeds(number: int) -> list[int]:
    if SEED in os.environ:
        return [int(os.environ[SEED])]
    first = random.SystemRandom().randrange(1 << 32) if number > _USUAL else 0  # a usual run is the same each time
    return [first + n for n in range(number)]  # each decision is taken in a third of them


@pytest.mark.parametrize("number", [_USUAL, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_what_a_failover_tells_to_be_lost_is_lost_row_for_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: None, number: int
) -> None:
    happened = simulate(seeds(number), tmp_path, monkeypatch)
    if SEED not in os.environ:
        assert happened["taken back"] and happened["lost"] and happened["merge"] and happened["discard"], happened


@pytest.mark.parametrize("cut_too_late", [False, True])
def test_a_cut_that_is_taken_too_late_is_caught_by_a_seed_that_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: None, cut_too_late: bool
) -> None:
    world = World(_KEPT, tmp_path, monkeypatch)
    lands_late(monkeypatch, world, cut_too_late)
    try:
        if cut_too_late:
            with pytest.raises(AssertionError):
                fail_over(world)
        else:
            assert fail_over(world)["lost"]
    finally:
        world.close()
