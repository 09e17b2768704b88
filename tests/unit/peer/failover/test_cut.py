"""What lands while a failover makes its cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.failover import failover as failing
from peer.failover.failover import failover, plan_failover
from peer.failover.opening import Opening
from peer.failover.role_change import RoleChange
from replication.core.ids import ClusterId
from replication.core.succession import Cut
from tests.role_changes import TABLE, role_pair
from tests.sites import SCHEMA
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy

LOG = "ops.log"


def test_a_frame_of_a_keyless_table_that_lands_as_the_cut_is_made_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with role_pair(tmp_path) as pair:
        east, west = pair.east, pair.west
        spec = east.handle.create_table(LOG, SCHEMA, [])
        east.handle.peering.enable(LOG, (), "west", from_now=True, count_rows=lambda _: 0)
        landing, time = west.site.ledger.landing, west.site.ledger.time

        def write(number: int) -> None:
            east.handle.upsert(LOG, [{"id": number, "text": "x"}])

        def landed() -> int:
            return sum(ranges.total for ranges in landing.coverage(spec.uuid).values())

        for number in range(3):
            pair.write()
            write(number)
        east.handle.drain("west")
        upto = max(row.commit_hi for row in west.site.ledger.files.all())
        wait_until(lambda: time.landed(east.site.cluster).t >= upto, what="a closed time")
        real = failing.counting_sequences

        def counting(context: RoleChange, origin: ClusterId, upto: int) -> tuple[Cut | None, Opening]:
            made = real(context, origin, upto)
            write(99)
            wait_until(lambda: landed() == 4, what="the late row")
            return made

        monkeypatch.setattr(failing, "counting_sequences", counting)
        west.site.ledger.replay.note_replayer("h0", True)
        failover(west.command(), plan_failover(west.command(), "east", force=True))
        (succession,) = west.site.ledger.successions.known().all
        assert sum(ranges.total for stream, ranges in succession.cut.items() if stream.table == spec.uuid) == 4
        assert not west.command().unfinished() and west.site.ledger.replay.quarantined() == []


def test_a_table_without_a_key_opens_with_all_that_landed_and_the_plan_says_so(tmp_path: Path) -> None:
    with role_pair(tmp_path) as pair:
        east, west = pair.east, pair.west
        spec = east.handle.create_table(LOG, SCHEMA, [])
        east.handle.peering.enable(LOG, (), "west", from_now=True, count_rows=lambda _: 0)
        time = west.site.ledger.time

        def landed() -> int:
            """Write a row to both tables; the newest commit time, once everything up to it has landed."""
            pair.write()
            east.handle.upsert(LOG, [{"id": 1, "text": "x"}])
            east.handle.drain("west")
            newest = max(row.commit_hi for row in west.site.ledger.files.all())
            wait_until(lambda: time.landed(east.site.cluster).t >= newest, what="a closed time")
            return newest

        at, _ = landed(), landed()
        plan = plan_failover(west.command(), "east", at=at, force=True)
        assert plan.loss is not None and plan.loss.uncut == (f"{LOG}: it has no key",)
        failover(west.command(), plan)
        (succession,) = west.site.ledger.successions.known().all
        everywhere = {stream: ranges.total for stream, ranges in west.site.ledger.landing.coverage().items()}
        left_out = {
            stream.table: everywhere[stream] - ranges.total
            for stream, ranges in succession.cut.items()
            if stream in everywhere
        }
        assert left_out == {spec.uuid: 0, east.handle.table(TABLE).uuid: 1}
