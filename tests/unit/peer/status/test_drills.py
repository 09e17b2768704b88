"""What drills say of a cluster whose clock was wrong when one of them ran."""

from __future__ import annotations

from peer.status.drills import drill_health, drill_warning
from replication.ledger.base import Drill
from replication.wall_clock import now_us

DAY_US = 86_400_000_000


def drilled(begun: int, *, passed: bool) -> Drill:
    why = "" if passed else "a probe failed"
    return Drill(f"{begun}_0000", "h0", "", begun, begun + 1, ended=begun + 1, passed=passed, why=why)


def test_a_drill_that_ran_while_the_clock_was_ahead_hides_neither_a_failure_nor_that_none_was_run_for_long() -> None:
    now = now_us()
    for failed_ahead, passed_now in ((False, True), (True, True), (False, False)):
        old = drilled(now - 30 * DAY_US, passed=passed_now)
        health = drill_health([drilled(now + 300 * DAY_US, passed=not failed_ahead), old])
        assert health.drilled == (old.ended if passed_now else 0)
        assert health.failure == ("" if passed_now else f"{old.id}: a probe failed")
        said = drill_warning("west", health.drilled, health.failure, 8 * 86400.0, now)
        assert ("was 30.0 days ago" in said) == passed_now and said.endswith("walship drill west")
