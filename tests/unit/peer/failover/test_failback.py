"""Which rows a bootstrap leaves out when a lost cluster returns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from peer.failover import failback as returning
from peer.failover.failback import failback, plan_failback, sequences_at_peer
from peer.failover.failover import failover, plan_failover
from peer.failover.opening import EVERYTHING
from peer.failover.role_change import RoleChange
from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.roles import Role, RoleState
from replication.core.routes.bootstrap import Purged
from replication.core.routes.freshness import Reach, Replicated
from replication.core.succession import Succession
from replication.errors import RequestError, WaitTimeoutError
from replication.ledger.base import Peer, Quarantined, SkewedClock
from replication.roles.takeover import change_role
from replication.wall_clock import now_us
from tests.fakes.ledger import MemoryLedger
from tests.role_changes import role_pair
from tests.waiting import wait_until

EAST, WEST, NORTH = (ClusterId(name, UUID(int=n)) for n, name in enumerate(("east", "west", "north"), 1))
TABLE = UUID(int=9)
THERE = Ranges.of((0, 3))


def stream(cluster: ClusterId) -> StreamId:
    return StreamId(FileId(cluster, "h0", 0), TABLE, "default")


class Context:
    """West, which took over from east; east has three frames of its own, and none of west's."""

    def __init__(self, ledger: MemoryLedger) -> None:
        self.own, self.peer = WEST, Peer("east", "zk:1/east", EAST)
        self.here = {stream(EAST): Ranges.of((0, 5)), stream(WEST): Ranges.of((0, 2))}
        landing = SimpleNamespace(coverage=lambda table: self.here)
        parts = {"landing": landing, "successions": ledger.successions, "bootstraps": ledger.bootstraps}
        self.cluster = SimpleNamespace(ledger=SimpleNamespace(**parts))

    def link(self, name: str) -> Any:
        def reached(asked: dict[StreamId, int]) -> dict[StreamId, Reach]:
            assert asked == {each: ranges.end - 1 for each, ranges in self.here.items()}
            none = Reach(False, False, False)
            return {each: Reach(False, False, False, covered=THERE) if each == stream(EAST) else none for each in asked}

        return nullcontext(SimpleNamespace(reached=reached))

    def known(self) -> dict[StreamId, Ranges]:
        return sequences_at_peer(cast(RoleChange, self), self.peer, TABLE)


@pytest.fixture
def ledger() -> Iterator[MemoryLedger]:
    made = MemoryLedger(WEST)
    yield made
    made.close()


def test_what_the_peer_has_is_left_out_once_this_cluster_took_over_from_it(ledger: MemoryLedger) -> None:
    context = Context(ledger)
    assert context.known() == {}
    ledger.successions.record(Succession(EAST, WEST, 2, 1000, is_planned=False))
    assert context.known() == {stream(EAST): THERE}


def test_all_rows_are_sent_when_a_delete_may_be_purged_that_the_peer_never_got(ledger: MemoryLedger) -> None:
    ledger.successions.record(Succession(EAST, WEST, 2, 1000, is_planned=False))
    context = Context(ledger)
    ledger.bootstraps.note_purged(TABLE, Purged(before=1000))  # of what east had
    assert context.known()
    ledger.bootstraps.note_purged(TABLE, Purged(before=1001))
    assert context.known() == {}


def test_all_rows_are_sent_of_a_table_that_a_third_cluster_feeds(ledger: MemoryLedger) -> None:
    ledger.successions.record(Succession(EAST, WEST, 2, 1000, is_planned=False))
    context = Context(ledger)
    context.here[stream(NORTH)] = Ranges.of((0, 1))
    assert context.known() == {}


def test_a_failback_is_refused_while_lost_writes_are_kept_that_cannot_be_read_here(tmp_path: Path) -> None:
    with role_pair(tmp_path) as pair:
        pair.write()
        pair.east.handle.drain("west")
        ledger = pair.east.site.ledger
        file = next(row.file for row in ledger.files.all())
        copy = "/on-another-host/quarantine/h0-0.frame"
        place = (file, 256, 300, pair.east.handle.table("ops.t").uuid)
        lost = Quarantined(*place, "late", copy, 5, succession="west -> east, epoch 2")
        ledger.replay.quarantine(lost, (StreamId(file, lost.table, "default"), 0))
        (refusal,) = plan_failback(pair.east.command(), "west").refusals
        assert "1 frame of lost writes" in refusal and copy in refusal and "--leave-lost-writes" in refusal
        assert plan_failback(pair.east.command(), "west", leave=True).refusals == ()


def test_a_failback_to_a_cluster_that_was_never_lost_says_so(tmp_path: Path) -> None:
    with role_pair(tmp_path) as pair:
        west = pair.west.site
        change_role(west.ledger, west.coordination, lambda _: RoleState(Role.ACTIVE, 1))
        told = "west is ACTIVE, and no cluster took over from it: it takes writes already"
        wait_until(lambda: plan_failback(pair.east.command(), "west").refusals == (told,), what="its role")
        pair.east.site.ledger.successions.record(
            Succession(west.ledger.cluster, pair.east.site.ledger.cluster, 2, 1000, is_planned=False)
        )
        (refusal,) = plan_failback(pair.east.command(), "west").refusals
        assert "has not learned yet that east took over" in refusal
        change_role(pair.east.site.ledger, pair.east.site.coordination, lambda _: RoleState(Role.STANDBY, 1))
        assert plan_failback(pair.east.command(), "west").refusals[0] == (
            "east is STANDBY, and west is ACTIVE already. To change places, on west: walship switchover east"
        )


@pytest.mark.parametrize("ahead_us", [0, 3_600_000_000])
def test_a_failback_waits_for_lost_writes_of_the_cluster_that_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_us: int
) -> None:
    with role_pair(tmp_path) as pair:
        pair.write()
        pair.await_same(pair.east)
        pair.east.working.close()  # it sends nothing more
        pair.write()
        pair.east.is_away = True
        now = now_us()
        if ahead_us:
            pair.west.site.ledger.time.note_ahead(SkewedClock(pair.east.site.ledger.cluster, now + ahead_us, now))
        failover(pair.west.command(), plan_failover(pair.west.command(), "east", at=EVERYTHING))
        change_role(pair.east.site.ledger, pair.east.site.coordination, lambda _: RoleState(Role.STANDBY, 2))
        pair.east.is_away = False
        context, ledger = pair.west.command(), pair.west.site.ledger
        context.timeout_s = 0.0
        landed = {pair.east.site.ledger.cluster: Replicated(now + ahead_us - 1)}  # just before the failover
        monkeypatch.setattr(type(ledger.time), "replicated", lambda *_: landed)
        (step, *_) = plan_failback(context, "east").steps
        assert step == "east sends what it acked before west took over: lost writes, to decide on"
        with monkeypatch.context() as never_told:
            never_told.setattr(type(ledger.time), "replicated", lambda *_: {})
            assert plan_failback(context, "east").steps[0] == step
        with pytest.raises(WaitTimeoutError, match="east has not sent all"):
            failback(context, "east")

        def arrives(text: str) -> None:
            assert text == "east sends what it acked before west took over"
            monkeypatch.setattr(returning, "_has_sent_all", lambda *_: True)
            place = (next(row.file for row in ledger.files.all()), 256, 300, pair.west.handle.table("ops.t").uuid)
            lost = Quarantined(*place, "late", "/copy", 5, succession="east -> west, epoch 2")
            ledger.replay.quarantine(lost, (StreamId(lost.file, lost.table, "default"), 0))

        context.report = arrives
        with pytest.raises(RequestError) as refused:
            failback(context, "east")
        assert "1 frame of lost writes" in str(refused.value) and pair.west.role().role is Role.ACTIVE


@pytest.mark.parametrize("successor", [WEST, NORTH])  # north: another cluster, which keeps its lost writes
def test_a_failback_waits_for_lost_writes_also_where_this_cluster_was_restored_since_it_took_over(
    tmp_path: Path, successor: ClusterId
) -> None:
    with role_pair(tmp_path) as pair:
        pair.write()
        pair.await_same(pair.east)
        west, east = pair.west.site.ledger, pair.east.site.ledger.cluster
        cast(Any, west).former = (WEST,)
        west.successions.record(Succession(east, successor, 1002, now_us() + 3_600_000_000, is_planned=False))
        context = pair.west.command()
        assert returning._has_sent_all(context, Peer("east", "", east)) == (successor == NORTH)


def test_a_failback_waits_for_what_is_in_wals_as_long_as_for_bootstraps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = list[float]()
    monkeypatch.setattr(returning, "pending_bytes", lambda *_: 5)
    with role_pair(tmp_path) as pair:
        pair.write()
        pair.east.handle.drain("west")
        command = pair.east.command()
        real = command.cluster.drain

        def drained(peer: str, *, timeout_s: float = 3600.0) -> object:
            waited.append(timeout_s)
            return real(peer, timeout_s=timeout_s)

        monkeypatch.setattr(command.cluster, "drain", drained)
        assert failback(command, "west").successor == "west"
    assert waited[0] == 24 * 3600.0, "a long absence leaves more than an hour of sending"


def test_a_failback_passes_over_a_table_that_is_dropped_as_its_bootstrap_is_to_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(returning, "unready_tables", lambda *_: [(TABLE, "ops.gone")])
    with role_pair(tmp_path) as pair:
        returning._bootstrap(pair.east.command(), "west")


def test_a_lost_cluster_steps_down_though_its_role_was_changed_since_it_was_last_heard(tmp_path: Path) -> None:
    with role_pair(tmp_path) as pair:
        pair.write()
        pair.await_same(pair.east)
        pair.east.is_away = True
        east = pair.east.site
        for role in (Role.STANDBY, Role.ACTIVE) * 3:
            change_role(east.ledger, east.coordination, lambda state, role=role: state.becomes(role))
        failover(pair.west.command(), plan_failover(pair.west.command(), "east", at=EVERYTHING))
        pair.east.is_away = False
        wait_until(lambda: pair.east.role() == replace(pair.west.role(), role=Role.STANDBY), what="its return")
