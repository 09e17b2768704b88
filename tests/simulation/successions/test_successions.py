"""Seeded schedules of role changes, all of it failing: links, ZooKeepers, processes, clocks, and commands at any call.

In the end every command is finished or undone, and what was acked is everywhere, or was announced as lost before.
``WALSHIP_TEST_SIMULATION_S`` gives it more time than a usual run; ``WALSHIP_TEST_SIMULATION_SEED`` repeats one.
"""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest

from tests.simulation.successions import bugs, check, commands, stepped
from tests.simulation.successions.world import GRAPHS, World
from tests.simulation.test_schedules import SEED, quiet, seeds

__all__ = ["quiet"]
_RUN_S = float(os.environ.get("WALSHIP_TEST_SIMULATION_S", "12"))
_STEPS = 60


def simulate(
    graph: str, seed: int, monkeypatch: pytest.MonkeyPatch, plant: bugs.Plant | None = None
) -> tuple[Counter[str], list[str]]:
    """One schedule, with a planted bug or none: what happened, and what should not have."""
    with monkeypatch.context() as patched:
        stepped.patch(patched)
        world = World(graph, seed, patched)
        commands.patch(patched, world)
        people = commands.Commands(world)
        if plant is not None:
            plant(patched, world)
        world.trouble = world.chance.choice((0.0, 0.3, 1.0))
        for _ in range(_STEPS):
            world.move()
            if world.chance.random() < 0.06:
                people.any()
        check.settle(world, people)
        check.check(world)
        world.close()
    return world.events, world.problems


@pytest.mark.parametrize("graph", GRAPHS)
def test_role_changes_lose_nothing_that_was_not_announced(
    graph: str, monkeypatch: pytest.MonkeyPatch, quiet: None
) -> None:
    until_s = time.monotonic() + _RUN_S / len(GRAPHS)
    happened = Counter[str]()
    schedules, begun = 0, time.process_time()
    for seed in seeds():
        events, problems = simulate(graph, seed, monkeypatch)
        happened += events
        schedules += 1
        assert not problems, (
            f"{problems}\nrepeat it: {SEED}={seed} .venv/bin/pytest {os.path.relpath(__file__)} -k {graph}"
        )
        if time.monotonic() > until_s:
            break
    print(f"{schedules / (time.process_time() - begun) * 60:.0f} schedules a minute: {dict(happened)}")
