"""How many simulated schedules of role changes one core gets through in a minute.

Each is a run of ``tests/simulation/successions`` with its own seed, in each of the graphs in turn. CPU time counts.
"""

from __future__ import annotations

import time

import pytest

from tests.bench.measure import QUICK, Figure, at_least
from tests.simulation.successions.test_successions import simulate
from tests.simulation.successions.world import GRAPHS
from tests.simulation.test_schedules import unlogged

SEEDS = 5 if QUICK else 200


def run() -> list[Figure]:
    """The rate."""
    with unlogged(), pytest.MonkeyPatch.context() as patched:
        _simulate(1, patched)  # which makes the ledgers that every schedule begins with
        begun = time.process_time()
        _simulate(SEEDS, patched)
        took_s = time.process_time() - begun
    rate = SEEDS * len(GRAPHS) / took_s * 60
    return [at_least("simulated schedules of role changes: a minute of a core", rate, "", 1000)]


def _simulate(seeds: int, patched: pytest.MonkeyPatch) -> None:
    for seed in range(seeds):
        for graph in GRAPHS:
            _, problems = simulate(graph, seed, patched)
            assert not problems, (graph, seed, problems)
