"""Each planted bug is caught by a schedule that is kept; without the bug the same schedule finds nothing."""

from __future__ import annotations

import pytest

from tests.simulation.successions import bugs
from tests.simulation.successions.test_successions import simulate
from tests.simulation.test_schedules import quiet

__all__ = ["quiet"]

#: The graph and the seed that catch a bug, and what is said then. Seek others when schedules change.
KEPT: dict[bugs.Plant, tuple[str, int, str]] = {
    bugs.lease_read_before_fsync: ("two", 34, "had taken over"),
    bugs.writers_are_not_awaited: ("two", 8, "after writers were stopped"),
    bugs.anybody_is_believed: ("chain", 6, "no cluster takes writes"),
}


@pytest.mark.parametrize("plant", KEPT, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_caught_by_a_seed_that_is_kept(
    plant: bugs.Plant, monkeypatch: pytest.MonkeyPatch, quiet: None
) -> None:
    graph, seed, said = KEPT[plant]
    _, problems = simulate(graph, seed, monkeypatch, plant)
    assert any(said in problem for problem in problems), problems
    assert simulate(graph, seed, monkeypatch)[1] == []
