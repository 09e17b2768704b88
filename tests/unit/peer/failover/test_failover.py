"""What a failover would lose, by what the origin announced and what has landed."""

from __future__ import annotations

from uuid import UUID

from peer.failover.loss import missing_frames
from replication.core.coverage import Ranges
from replication.core.ids import NIL_UUID, ClusterId, FileId, StreamId
from replication.core.routes.freshness import ClosedNotice

WAL = FileId(ClusterId("east", UUID(int=1)), "h0", 0)
ONE, TWO, DROPPED = (UUID(int=n) for n in (11, 12, 13))


def stream(table: UUID, group: str = "default") -> StreamId:
    return StreamId(WAL, table, group)


def test_frames_that_were_announced_and_have_not_landed_are_counted_by_table() -> None:
    announced = {stream(ONE): 9, stream(ONE, "b"): 0, stream(TWO): 4, stream(DROPPED): 5, stream(NIL_UUID): 7}
    covered = {stream(ONE): Ranges.of((0, 4), (6, 9)), stream(TWO): Ranges.of((0, 5))}
    missing = missing_frames(ClosedNotice(1, tuple(sorted(announced.items()))), covered, (ONE, TWO))
    assert missing == {ONE: 4}  # sequences 4, 5 and 9, and 0 of the other group
