"""A failover where a peer or a witness confirms leases: it waits, and says what stops the lost cluster's writers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from peer.client.cluster import Cluster
from peer.failover import lease
from peer.failover.failover import EndOrigin, failover, is_begun, plan_failover
from peer.failover.lost_writes import discard_refusal
from peer.failover.role_change import RoleChange
from peer.status.members import await_writers
from replication.commit.sequence import CommitSequence
from replication.config import Config
from replication.coordination.base import HostRecord
from replication.coordination.paths import MemberKind
from replication.coordination.witness import Witness
from replication.core.ids import ClusterId
from replication.core.roles import Role, RoleState
from replication.core.routes.carried import InboundRoute
from replication.core.succession import UNHEARD_MAX, Succession, Successions
from replication.errors import CoordinationError, RequestError, StepFailedError, SuccessionError
from replication.ledger.base import Drill, Peer
from tests.fakes.coordination import MemoryEnsemble
from tests.fakes.ledger import MemoryLedger
from tests.sites import table
from tests.unit.coordination.test_witness import opening

EAST, WEST, NORTH = (ClusterId(name, UUID(int=n)) for n, name in enumerate(("east", "west", "north"), 1))


class West:
    """West, which gets a table of east; ``waited`` are the seconds that it slept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ledger = MemoryLedger(WEST)
        self.third, self.waited = MemoryEnsemble(), list[float]()
        self.witness = Witness(opening(self.third), "/w")
        self.coordination = MemoryEnsemble().connect("/walship/west")
        self.coordination.establish(WEST, "1", role=RoleState(Role.STANDBY, 2))
        self.ledger.rules.define(Peer("east", "zk:2181/walship/east", EAST), 0)
        self.ledger.tables.create(table())
        self.ledger.landing.declare_routes([InboundRoute(EAST, table().uuid, "default", 1)])
        monkeypatch.setattr(lease, "witness_of", lambda config: self.witness)
        monkeypatch.setattr(lease, "time", SimpleNamespace(sleep=self.waited.append))

    def change(self, **section: Any) -> RoleChange:
        config = Config.model_validate({"cluster": {"name": "west"}, "failover": section})
        fields = {"ledger": self.ledger, "coordination": self.coordination, "config": config}
        return RoleChange(cast(Cluster, SimpleNamespace(id=WEST, name="west", tables=self.ledger.tables.all, **fields)))

    def role(self) -> RoleState:
        return self.coordination.role().state


@pytest.fixture
def west(monkeypatch: pytest.MonkeyPatch) -> Iterator[West]:
    west = West(monkeypatch)
    yield west
    west.coordination.close()
    west.ledger.close()


WITNESS = {"lease": "witness", "witness": "third:2181/w"}


def test_a_cluster_that_sends_nothing_here_cannot_be_taken_over_from(west: West) -> None:
    with pytest.raises(RequestError, match="^north sends no tables to west; these do: east"):
        plan_failover(west.change(), "north")
    west.ledger.close()
    west.ledger = MemoryLedger(WEST)
    with pytest.raises(RequestError, match="^no cluster sends tables to west"):
        plan_failover(west.change(), "")


def test_a_plan_predicts_the_recovery_time_that_the_last_good_drill_took(west: West) -> None:  # scenario 30
    west.ledger.drills.put(Drill("d1", "h0", "me", 1, 100, ended=2, passed=True, rto_s=4.5))
    west.ledger.drills.put(Drill("d2", "h0", "me", 3, 100, ended=4, why="a probe failed", rto_s=9.0))
    assert plan_failover(west.change(), "", force=True, incomplete=True).rto_s == 4.5


def test_where_the_own_zookeeper_confirms_nothing_waits_and_what_is_acked_from_now_on_is_told_to_be_lost(
    west: West,
) -> None:
    plan = plan_failover(west.change(), "", force=True, incomplete=True)
    assert (
        plan.fence
        == "Writers of east that still reach their own ZooKeeper go on acking until they hear of it: lost, too."
    )
    failover(west.change(), plan)
    assert west.waited == [] and west.role().role is Role.ACTIVE


@pytest.mark.parametrize("section", [{"lease": "peer", "lease_peer": "east"}, {}])
def test_a_failover_waits_for_the_longest_lease_that_was_asked_for_and_for_drift(west: West, section: Any) -> None:
    west.ledger.successions.keep_lease(EAST, 1, 20.0)
    plan = plan_failover(west.change(**section), "", force=True, incomplete=True)
    assert plan.fence == "Writers of east have stopped acking by the time that this cluster takes writes."
    assert "in 20.2 s no writer of east can ack any more: their leases have run out" in plan.steps
    failover(west.change(**section), plan)
    assert west.waited == [pytest.approx(20.2)] and west.role().role is Role.ACTIVE


def test_a_failover_does_not_take_writes_when_a_third_cluster_took_over_while_it_waited(
    west: West, monkeypatch: pytest.MonkeyPatch
) -> None:
    west.ledger.successions.keep_lease(EAST, 1, 20.0)
    plan = plan_failover(west.change(), "", force=True, incomplete=True)
    of_north = Succession(EAST, NORTH, plan.epoch + 4, 7, is_planned=False)
    waiting = SimpleNamespace(sleep=lambda _: west.ledger.successions.record(of_north))
    monkeypatch.setattr(lease, "time", waiting)
    with pytest.raises(StepFailedError, match="north has taken over from east since") as failed:
        failover(west.change(), plan)
    assert failed.value.hint.startswith("Begin again: walship ops abandon role --yes")
    assert west.role().role is Role.STANDBY, "both would be ACTIVE, and under one epoch"


def test_a_failover_that_is_to_go_on_is_not_forgotten_when_a_third_cluster_took_over_from_the_origin_since(
    west: West,
) -> None:
    context, end = west.change(), EndOrigin(str(EAST), 1003)
    context.cluster.ledger.steps.put_all([CommitSequence(west.ledger.steps, "west", "role", [end]).stored_form()])
    west.ledger.successions.record(Succession(EAST, WEST, 1003, 7, is_planned=False))
    west.ledger.successions.record(Succession(EAST, NORTH, 1007, 8, is_planned=False))
    plan = plan_failover(context, "east", force=True)
    assert is_begun(context, plan) and plan.epoch == 1003, "what it has yet to take back would stay in the tables"


def test_a_peer_that_was_not_asked_since_the_other_took_over_does_not_claim_to_stop_it(west: West) -> None:
    west.ledger.successions.keep_lease(EAST, 1, 20.0)
    west.ledger.successions.record(Succession(WEST, EAST, 4, 7, is_planned=False))
    change = west.change(lease="peer", lease_peer="east")
    assert "go on acking" in plan_failover(change, "", force=True, incomplete=True).fence
    west.ledger.successions.keep_lease(EAST, 4, 20.0)
    assert "have stopped" in plan_failover(change, "", force=True, incomplete=True).fence


def test_a_witness_confirms_no_lease_once_a_failover_waits(west: West) -> None:
    west.witness.confirm(EAST, 20.0)
    plan = plan_failover(west.change(**WITNESS), "", force=True, incomplete=True)
    assert plan.steps[0] == "the witness confirms no more leases of east" and "have stopped" in plan.fence
    failover(west.change(**WITNESS), plan)
    assert west.waited == [pytest.approx(20.2)] and west.witness.confirm(EAST, 1.0) == plan.epoch


def test_a_failover_whose_witness_does_not_answer_is_refused(west: West) -> None:
    def cut(call: str, path: str) -> None:
        raise CoordinationError("no answer")

    west.third.fault = cut
    change = west.change(**WITNESS)
    plan = plan_failover(change, "", force=True, incomplete=True)
    (refusal,) = plan.refusals
    assert "the witness third:2181/w does not answer (no answer)" in refusal and 'lease = "own"' in refusal
    with pytest.raises(RequestError, match="west cannot take over from east now"):
        failover(change, plan)
    assert west.role() == RoleState(Role.STANDBY, 2) and change.unfinished() is None


def test_a_failover_of_which_the_witness_may_have_heard_does_not_say_that_nothing_was_changed(
    west: West, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = west.witness.end

    def ends_without_an_answer(*arguments: Any) -> float:
        real(*arguments)
        raise CoordinationError("no answer")

    change = west.change(**WITNESS)
    with monkeypatch.context() as patch, pytest.raises(StepFailedError, match="no answer") as failed:
        patch.setattr(west.witness, "end", ends_without_an_answer)
        failover(change, plan_failover(change, "", force=True, incomplete=True))
    assert failed.value.hint == "It goes on there when it is run again: walship failover west --from east"
    failover(change, plan_failover(change, "", force=True, incomplete=True))
    assert west.role().role is Role.ACTIVE


def test_a_second_cluster_cannot_take_over_from_one_where_a_witness_knows_the_first(west: West) -> None:
    west.witness.end(EAST, 3 + UNHEARD_MAX, NORTH)
    change = west.change(**WITNESS)
    with pytest.raises(StepFailedError, match="north:.* took over from east") as refused:
        failover(change, plan_failover(change, "", force=True, incomplete=True))
    assert isinstance(refused.value.__cause__, SuccessionError)
    assert refused.value.hint == (
        'Nothing was changed. See walship status there. If that cluster is lost, too: set [failover] lease = "own"'
        " here, then walship failover west --from east"
    )
    assert change.unfinished() is None
    assert west.role() == RoleState(Role.STANDBY, 2) and west.ledger.successions.known().all == ()
    own = west.change()
    failover(own, plan_failover(own, "east", force=True, incomplete=True))
    assert west.role() == RoleState(Role.ACTIVE, 3 + UNHEARD_MAX)


def test_a_standby_may_discard_lost_writes_only_while_the_cluster_that_left_them_out_is_active() -> None:
    first = Succession(EAST, WEST, 3, 7, is_planned=False)
    assert discard_refusal(Successions((first,)), first) is None
    back = Successions((first, Succession(WEST, EAST, 4, 8, is_planned=True)))
    what, hint = discard_refusal(back, first) or ("", "")
    assert what.startswith("east is ACTIVE, and may have applied what west left out")
    assert "Merge them" in hint and "walship switchover west" in hint


def test_a_role_change_waits_for_a_writer_whose_session_ended_while_it_runs(west: West) -> None:
    west.ledger.time.register_writer("w1", "h0", 1, "boot", 2)
    began = time.monotonic()
    await_writers(west.ledger, west.coordination, 3, 0.2)
    assert time.monotonic() - began >= 0.2
    with ExitStack() as closing:
        closing.callback(west.coordination.enrol(MemberKind.WRITERS, "w1", {"epoch": 3}).leave)
        await_writers(west.ledger, west.coordination, 3, 3600.0)


def test_a_role_change_waits_as_long_as_the_lease_of_a_writer_on_a_host_with_a_longer_one(west: West) -> None:
    west.ledger.time.register_writer("h1-1-a", "h1", 1, "boot", 1)
    west.coordination.put_host(HostRecord("h1", "/data", "", lease_s=1.0))
    begun = time.monotonic()
    await_writers(west.ledger, west.coordination, 3, 0.1)
    assert time.monotonic() - begun > 1.0, "it may have acked until then"
