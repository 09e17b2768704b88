"""The ledger's contract: drills that run, and a bounded history."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replication.ledger.base import Drill, Ledger
from replication.ledger.sql.parts import drills as part


def test_a_drill_is_kept_and_replaced_newest_first(ledger: Ledger) -> None:
    first, second = Drill("d1", "h0", "me", 1, 100), Drill("d2", "h0", "me", 2, 100)
    for drill in (first, second):
        ledger.drills.put(drill)
    ended = replace(first, instant=7, ended=9, passed=True, why="", rpo_s=0.5, rto_s=1.5, kept_until=50, report="r")
    ledger.drills.put(ended)
    assert ledger.drills.all() == [second, ended]


def test_only_the_newest_drills_are_kept(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "HISTORY_MAX", 3)
    for number in range(1, 7):  # each second one was killed
        ledger.drills.put(Drill(f"d{number}", "h0", "me", number, 100, ended=number % 2))
    assert [drill.id for drill in ledger.drills.all()] == ["d6", "d5", "d4"]


def test_a_drill_holds_its_tags_while_it_runs_and_as_long_as_it_said() -> None:
    running = Drill("d", "h0", "me", 0, 100)
    assert running.holds_tags(99, lambda owner: False)
    assert not running.holds_tags(100, lambda owner: False)
    assert not running.holds_tags(99, lambda owner: owner == "me")
    ended = replace(running, ended=50, kept_until=500)
    assert ended.holds_tags(499, lambda owner: True) and not ended.holds_tags(500, lambda owner: False)
