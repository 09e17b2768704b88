"""Each planted bug is caught by a schedule that is kept; without the bug the same schedule finds nothing."""

from __future__ import annotations

import pytest

from peer.failover import failover
from tests.simulation.successions import bugs
from tests.simulation.successions.test_successions import simulate
from tests.simulation.test_schedules import quiet

__all__ = ["quiet"]

#: The graph and the seed that catch a bug, and what is said then. Seek others when schedules change.
KEPT: dict[bugs.Plant, tuple[str, int, str]] = {
    bugs.lease_read_before_fsync: ("two", 34, "had taken over"),
    bugs.old_epochs_are_acked: ("three", 2147200602, "after writers were stopped"),
    bugs.writers_are_not_awaited: ("three", 8, "after writers were stopped"),
    bugs.anybody_is_believed: ("two", 7, "no cluster takes writes"),
    bugs.failover_does_not_wait: ("two", 1, "had taken over"),
    bugs.role_changes_before_the_succession_is_stored: ("three", 113, "two clusters take writes, and none says so"),
    bugs.old_epochs_are_applied_beyond_the_cut: ("two", 1, "frames that it left out"),
    bugs.forwarded_frames_are_not_judged: ("three", 19, "frames that it left out"),
    bugs.cuts_are_not_joined: ("three", 90, "two clusters take writes, and none says so"),
    bugs.role_is_only_in_zookeeper: ("chain", 728, "no cluster takes writes"),
}
_SEEDS = 200


@pytest.mark.parametrize("plant", KEPT, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_caught_by_a_seed_that_is_kept(
    plant: bugs.Plant, monkeypatch: pytest.MonkeyPatch, quiet: None
) -> None:
    graph, kept, said = KEPT[plant]
    monkeypatch.setattr(failover, "UNHEARD_MAX", 0)  # so that epochs meet, as they may after more changes than that
    for seed in (kept, *range(_SEEDS)):  # others, since a call more in the code makes another schedule of each seed
        _, problems = simulate(graph, seed, monkeypatch, plant)
        if any(said in problem for problem in problems):
            assert simulate(graph, seed, monkeypatch)[1] == []
            return
    raise AssertionError(f"no seed finds {plant.__name__}")
