"""What a failover would lose, by what the origin announced and what has landed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from peer.failover.loss import loss_of, missing_frames
from peer.failover.opening import Opening
from peer.status.drills import drill_health, drill_warning
from replication.core.coverage import Ranges
from replication.core.ids import NIL_UUID, ClusterId, FileId, StreamId
from replication.core.routes.freshness import ClosedNotice
from replication.files.owner import owner_name
from replication.ledger.base import Drill, SkewedClock
from replication.wall_clock import now_us

WAL = FileId(ClusterId("east", UUID(int=1)), "h0", 0)
ONE, TWO, DROPPED = (UUID(int=n) for n in (11, 12, 13))


def stream(table: UUID, group: str = "default") -> StreamId:
    return StreamId(WAL, table, group)


def test_frames_that_were_announced_and_have_not_landed_are_counted_by_table() -> None:
    announced = {stream(ONE): 9, stream(ONE, "b"): 0, stream(TWO): 4, stream(DROPPED): 5, stream(NIL_UUID): 7}
    covered = {stream(ONE): Ranges.of((0, 4), (6, 9)), stream(TWO): Ranges.of((0, 5))}
    missing = missing_frames(ClosedNotice(1, tuple(sorted(announced.items()))), covered, (ONE, TWO))
    assert missing == {ONE: 4}  # sequences 4, 5 and 9, and 0 of the other group


@pytest.mark.parametrize("upto", [0, 1])
@pytest.mark.parametrize(
    ("ahead_s", "noted_s", "is_under"), [(-30, 0, True), (-30, 90, False), (-90, 0, False), (3600, 0, False)]
)
def test_no_loss_counts_as_small_if_the_lost_clusters_clock_is_ahead(
    upto: int, ahead_s: int, noted_s: int, is_under: bool
) -> None:
    now = now_us()
    announced, noted = now + ahead_s * 1_000_000, now + noted_s * 1_000_000
    ledger: Any = SimpleNamespace(
        time=SimpleNamespace(
            announced=lambda _: ClosedNotice(announced, ()),
            ahead=lambda: [SkewedClock(WAL.cluster, noted, now)],
            reached=lambda _: {},
        ),
        tables=SimpleNamespace(all=list),
    )
    loss = loss_of(ledger, WAL.cluster, Opening(upto and announced))
    assert loss.is_under(60) is is_under and (loss.seconds is None) is (ahead_s > 0)


def test_frames_that_are_left_out_of_a_table_that_was_dropped_just_now_are_no_loss() -> None:
    time = {"announced": lambda _: ClosedNotice(0, ()), "ahead": list, "reached": lambda _: {}}
    ledger: Any = SimpleNamespace(time=SimpleNamespace(**time), tables=SimpleNamespace(all=list))
    left_out: Any = SimpleNamespace(header=SimpleNamespace(table=DROPPED, row_count=3), bytes=100)
    assert loss_of(ledger, WAL.cluster, Opening(1, (left_out,))).tables == ()


def test_a_takeover_is_warned_of_without_a_good_drill_of_late() -> None:
    day = 86_400_000_000
    ended = Drill("d2", "h0", "gone", 1, 2, ended=day, passed=True)
    failed = Drill("d3", "h0", "gone", 3, 4, ended=2 * day, why="a probe")
    killed = Drill("d4", "h0", "gone", 3, 4)
    running = Drill("d5", "h0", owner_name(), 3, 1 << 62)
    warnings = []
    for drills in ([], [running, ended], [failed, ended], [killed, ended]):
        health = drill_health(drills)
        warnings.append(drill_warning("west", health.drilled, health.failure, 86_400.0, day + day // 2))
    assert warnings[0] == "no drill of west was ever run: walship drill west"
    assert warnings[1] == ""
    assert warnings[2] == "the last drill of west did not pass (d3: a probe): walship drill west"
    assert "d4: it was killed" in warnings[3]
    stale = drill_warning("west", day, "", 86_400.0, 3 * day)
    assert stale == "the last good drill of west was 2.0 days ago: walship drill west"
