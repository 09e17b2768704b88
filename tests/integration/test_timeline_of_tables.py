"""What was done to a table is on the timeline: replay, folds, bootstraps and drills, complete and inflight."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from peer.timeline.of_tables import instants_of_table, table_instants
from replication.core.timeline.instants import Action, Instant, InstantState
from replication.ledger.drills import Drill
from tests.bootstrap_pair import Pair, bootstraps
from tests.replaying import TableSite


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def done(site: TableSite, pair: Pair) -> list[Instant]:
    return table_instants(site.ledger, site.tables, pair.spec)


def test_a_table_s_commits_bootstraps_folds_and_drills_are_instants(both: Pair) -> None:  # 003-4
    east, west = both.east, both.west
    assert done(east, both) == []
    both.write(0, 10)
    assert {each.action for each in done(east, both)} == {Action.REPLAY}
    both.begin()
    (sent,) = (each for each in done(east, both) if each.action is Action.BOOTSTRAP)
    assert (sent.state, sent.key, sent.completed) == (InstantState.INFLIGHT, "for west", 0) and sent.time > 0
    both.connect()
    both.finish()
    both.level()
    assert {each.action for each in done(east, both)} == {Action.REPLAY}, "it is no longer being sent"
    both.write(10, 10)
    both.level()
    west.fold(both.spec)
    west.ledger.drills.put(Drill("d1", "h0", "p", 2**50, 2**51))
    west.ledger.drills.put(Drill("d0", "h0", "p", 2**49, 2**51, ended=2**49 + 5))
    west.ledger.drills.put(Drill("killed", "h0", "p", 2**50, 2**50 + 1))
    for row in bootstraps(west):
        west.ledger.files.retire(row.file, west.term)
    found = done(west, both)
    assert [each.action for each in found[-3:]] == [Action.FOLD, Action.DRILL, Action.DRILL]
    assert {each.action for each in found[:-3]} == {Action.BOOTSTRAP, Action.REPLAY}
    assert [each.is_pending for each in found] == [False] * (len(found) - 1) + [True], "the drill that runs"
    assert [each.completed or each.time for each in found] == sorted(each.completed or each.time for each in found)
    assert {each.dataset for each in found} == {both.spec.name}


def test_a_table_is_found_by_its_name_in_the_cluster_s_ledger(both: Pair) -> None:
    west = both.west
    west.ledger.tables.create(both.spec)
    west.ledger.drills.put(Drill("d1", "h0", "p", 2**50, 2**51))
    found = instants_of_table(west.config, both.spec.name)
    assert found is not None and [(each.action, each.key) for each in found] == [(Action.DRILL, "d1")]
    assert instants_of_table(west.config, "ops.none") is None
