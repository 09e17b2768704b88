"""When a switchover is undone, and what it does not pass over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from peer.client import contacts
from peer.failover import switchover as switching
from peer.failover.failback import plan_failback
from peer.failover.failover import plan_failover
from peer.failover.role_change import RoleChange
from peer.failover.switchover import DrainToPeer, cancel, plan_switchover, switchover
from replication.core.ids import ClusterId
from replication.core.roles import Role, RoleState
from replication.core.succession import Succession
from replication.errors import CoordinationError, PeerUnavailableError, RequestError, StepFailedError
from replication.ledger.base import Peer
from replication.link.base import TakeOver
from replication.link.grpc_client import GrpcLink
from replication.roles.takeover import Takeover, change_role
from tests.noted import need_bootstrap
from tests.role_changes import TABLE, Killed, Pair, role_pair
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with role_pair(tmp_path) as made:
        made.write()
        made.east.handle.drain("west")
        yield made


def with_hook(context: RoleChange, folder: Path, condition: str) -> RoleChange:
    """The command with one hook, which fails when the condition holds."""
    folder.mkdir(mode=0o700)
    hook = folder / "dns"
    hook.write_text(f"#!/bin/sh\n! {condition}\n")
    hook.chmod(0o700)
    config = context.cluster.config
    section = config.failover.model_copy(update={"hooks": folder})
    context.cluster.config = config.model_copy(update={"failover": section})
    return context


def test_a_failure_in_the_last_step_before_the_peer_is_asked_undoes_the_switchover(pair: Pair, tmp_path: Path) -> None:
    command = with_hook(pair.east.command(), tmp_path / "hooks", '[ "$1 $2" = "before promote" ]')
    with pytest.raises(StepFailedError, match="hook dns before promote failed") as failed:
        switchover(command, "west")
    assert failed.value.hint.startswith("It was undone: east takes writes. Correct the hook, or take it out of")
    assert pair.east.role() == RoleState(Role.ACTIVE, 3)
    assert pair.west.role().role is Role.STANDBY
    wait_until(lambda: pair.write() == ["east"])  # its writer knows the role soon
    assert not pair.east.command().unfinished()


def test_a_switchover_that_cannot_be_undone_either_says_so_and_how_to_go_on(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = switching.change_role

    def change_once(*arguments: Any) -> RoleState:
        if pair.east.role().role is Role.ACTIVE:
            real(*arguments)
        raise CoordinationError("ZooKeeper did not answer", "Check it")

    with monkeypatch.context() as lost:
        lost.setattr(switching, "change_role", change_once)
        with pytest.raises(
            StepFailedError, match="this cluster takes no more writes .*ZooKeeper did not ans"
        ) as failed:
            switchover(pair.east.command(), "west")
    again = "Run it again, or undo it: walship switchover --cancel"
    assert failed.value.hint == f"It could not be undone (ZooKeeper did not answer). {again}"
    assert pair.east.role() == RoleState(Role.STANDBY, 2)
    assert cancel(pair.east.command()) == RoleState(Role.ACTIVE, 3)


def test_a_cluster_made_active_while_it_drains_stays_so_and_its_peer_does_not_take_over(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    east, real = pair.east.site, DrainToPeer.verify

    def readonly_off(step: DrainToPeer, context: RoleChange) -> bool:
        change_role(east.ledger, east.coordination, lambda state: state.becomes(Role.ACTIVE))
        return real(step, context)

    monkeypatch.setattr(DrainToPeer, "verify", readonly_off)
    with pytest.raises(StepFailedError, match="the role of east was changed meanwhile") as failed:
        switchover(pair.east.command(), "west")
    assert failed.value.hint == "It was undone: east takes writes. Begin again, or leave it so"
    assert pair.east.role() == RoleState(Role.ACTIVE, 3)
    assert pair.west.role().role is Role.STANDBY
    assert not pair.east.command().unfinished()


@pytest.mark.parametrize("by_hand", [False, True])  # True: it was interrupted, and is cancelled
def test_a_switchover_is_undone_without_taking_writes_again_when_a_third_cluster_took_over_meanwhile(
    pair: Pair, by_hand: bool
) -> None:
    east, north = pair.east.site, ClusterId("north", uuid4())
    context = pair.east.command()

    def north_takes_over(text: str) -> None:
        if text.startswith("west takes writes"):
            taken = Succession(east.cluster, north, 1003, 7, is_planned=False)
            Takeover(east.ledger, east.coordination).step_down(east.ledger.successions.record(taken))
            if by_hand:
                raise Killed

    context.report = north_takes_over
    if by_hand:
        with pytest.raises(Killed):
            switchover(context, "west")
        pair.east.bury()
        assert cancel(pair.east.command()) == RoleState(Role.STANDBY, 1003)
    else:
        with pytest.raises(StepFailedError, match="the role of east was changed meanwhile") as failed:
            switchover(context, "west")
        assert failed.value.hint.startswith("It was undone: east is STANDBY by another change of its role")
    assert pair.east.role() == RoleState(Role.STANDBY, 1003), "north takes writes"
    assert not pair.east.command().unfinished()


def test_the_peer_gets_what_is_missing_there_before_writes_stop(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = switching.pending_bytes, [5]  # a peer that has just returned is sent to only after its backoff
    monkeypatch.setattr(switching, "pending_bytes", lambda *given: left.pop() if left else real(*given))
    command, told, roles = pair.east.command(), list[str](), list[Role]()
    command.report = told.append
    drain = command.cluster.drain

    def drained(*given: Any, **named: Any) -> Any:
        roles.append(pair.east.role().role)
        return drain(*given, **named)

    monkeypatch.setattr(command.cluster, "drain", drained)
    switchover(command, "west")
    assert roles[0] is Role.ACTIVE and told[0] == "west gets 5 bytes that are missing there, while writes go on"


def needs_bootstrap(pair: Pair) -> None:
    need_bootstrap(pair.east.site.ledger, "west", pair.east.handle.table(TABLE).uuid)


def is_disabled(pair: Pair) -> None:
    pair.east.site.ledger.rules.disable("west", pair.east.handle.table(TABLE).uuid, ["default"], pair.east.site.term)


SEND_OR_DROP = "walship enablereplication -t TABLE --bootstrap west; or, if west dropped it: walship droptable TABLE"
ENDED = pytest.mark.parametrize(
    ("end_rule", "reason"),
    [
        (needs_bootstrap, "ops.t is not whole at west: walship bootstrap west -t ops.t --wait 600"),
        (is_disabled, f"ops.t would not be at west: {SEND_OR_DROP}"),
    ],
)


def test_a_peer_that_gets_some_groups_of_a_table_only_cannot_take_over(pair: Pair) -> None:
    groups, peering = {"shown": ["open"], "kept": ["hidden"]}, pair.east.handle.peering
    pair.east.handle.create_table("ops.wide", "id long, open string, hidden string", ["id"], groups=groups)
    refusals = []
    for enabled in ((), ("shown",), ("kept",)):
        if enabled:
            peering.enable("ops.wide", enabled, "west", from_now=True, count_rows=lambda _: 0)
        refusals.append(plan_switchover(pair.east.command(), "west").refusals)
    remedy = f"would not be at west: {SEND_OR_DROP}"
    assert refusals == [(f"ops.wide {remedy}",), (f"ops.wide (group kept) {remedy}",), ()]


def test_a_peer_that_is_another_cluster_by_now_cannot_take_over(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    now = pair.west.site.cluster
    defined = Peer("west", pair.west.address, ClusterId("west", uuid4()))
    monkeypatch.setattr(RoleChange, "peer", lambda *_: defined)
    (refusal,) = plan_switchover(pair.east.command(), "west").refusals
    assert refusal.startswith(f"west is {now} now, but was defined as {defined.cluster}: walship deletecluster west")
    with pytest.raises(RequestError, match="west cannot take over from east now"):
        switchover(pair.east.command(), "west")
    assert pair.east.role() == RoleState(Role.ACTIVE, 1)


def test_a_peer_that_has_an_earlier_incarnation_of_this_cluster_for_a_peer_refuses_before_writes_stop(
    pair: Pair,
) -> None:
    before = ClusterId("east", uuid4())
    pair.west.site.ledger.rules.define(Peer("east", pair.east.address, before), pair.west.site.term)
    command, told = pair.east.command(), list[str]()
    command.report = told.append
    with pytest.raises(StepFailedError, match=f"peer east of west is {before}, not ") as failed:
        switchover(command, "west")
    assert failed.value.hint == "It was undone: east takes writes. On west: walship deletecluster east"
    assert not any("takes no more writes" in text for text in told)
    assert pair.east.role() == RoleState(Role.ACTIVE, 1), "a newer epoch would refuse the appends that are under way"


def test_a_table_that_needs_a_bootstrap_there_and_was_dropped_here_holds_no_switchover_up(pair: Pair) -> None:
    needs_bootstrap(pair)
    pair.east.handle.drop_table(TABLE)
    assert plan_switchover(pair.east.command(), "west").refusals == (), "a bootstrap of it can no longer be begun"
    assert plan_failback(pair.east.command(), "west").bootstraps == {}
    pair.east.handle.drain("west")
    assert switchover(pair.east.command(), "west").successor == "west"


def test_a_peer_that_names_an_impossible_role_epoch_cannot_take_over(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pair.west.receiver is not None
    reception = pair.west.receiver._reception
    real = reception.describe
    monkeypatch.setattr(reception, "describe", lambda caller: replace(real(caller), role_epoch=1 << 61))
    for plan in (plan_switchover(pair.east.command(), "west"), plan_failback(pair.east.command(), "west")):
        assert f"west cannot have the role epoch that it names: role epoch {1 << 61} is too far above 1" in str(plan)
    with pytest.raises(RequestError, match="west cannot take over from east now"):
        switchover(pair.east.command(), "west")
    assert pair.east.role() == RoleState(Role.ACTIVE, 1), "none above it would be left for the next failover"


def ack_without_shipping(pair: Pair) -> None:
    pair.east.working.close()
    wait_until(lambda: pair.write() == ["east"])  # its writer knows the role soon


def interrupt(pair: Pair, as_it_stops: Callable[[Pair], object]) -> None:
    """Kill a switchover once east is STANDBY and has bytes pending."""
    command = pair.east.command()

    def report(text: str) -> None:
        if "takes no more writes" in text:
            as_it_stops(pair)
        elif "gets everything" in text:
            raise Killed

    command.report = report
    with pytest.raises(Killed):
        switchover(command, "west")
    pair.east.bury()
    assert pair.east.role().role is Role.STANDBY


@ENDED
def test_a_rule_that_ends_with_rows_pending_undoes_the_switchover(
    pair: Pair, end_rule: Callable[[Pair], None], reason: str
) -> None:
    command = pair.east.command()

    def report(text: str) -> None:
        if "takes no more writes" in text:
            ack_without_shipping(pair)
            end_rule(pair)

    command.report = report
    with pytest.raises(StepFailedError, match=reason) as failed:
        switchover(command, "west")
    assert failed.value.hint.startswith("It was undone: east takes writes. ")
    assert (pair.east.role().role, pair.west.role().role) == (Role.ACTIVE, Role.STANDBY)


@ENDED
def test_an_interrupted_switchover_is_refused_when_a_rule_ended_meanwhile_and_can_be_cancelled(
    pair: Pair, end_rule: Callable[[Pair], None], reason: str
) -> None:
    interrupt(pair, ack_without_shipping)
    end_rule(pair)
    assert plan_switchover(pair.east.command(), "west").refusals == (reason,)
    with pytest.raises(StepFailedError, match=reason) as failed:
        switchover(pair.east.command(), "west")
    assert "walship switchover --cancel" in failed.value.hint
    assert pair.west.role().role is Role.STANDBY
    assert cancel(pair.east.command()).role is Role.ACTIVE
    wait_until(lambda: pair.write() == ["east"])  # its writer knows the role soon


def test_a_peer_that_took_over_is_the_successor_though_its_answer_was_lost(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = GrpcLink.take_over

    def unanswered(link: GrpcLink, asked: TakeOver) -> None:
        real(link, asked)
        if asked.succession is not None:
            raise PeerUnavailableError("west did not answer in time")

    monkeypatch.setattr(GrpcLink, "take_over", unanswered)
    with pytest.raises(StepFailedError, match="west did not answer in time"):
        switchover(pair.east.command(), "west")
    successions = pair.east.site.ledger.successions
    assert successions.known().of(pair.east.site.cluster) is None and pair.west.role().role is Role.ACTIVE
    assert switchover(pair.east.command(), "west").epoch == 2
    found = successions.known().of(pair.east.site.cluster)
    assert found is not None and (found.successor, found.epoch) == (pair.west.site.cluster, 2)


def test_the_plans_of_an_interrupted_switchover_are_that_it_is_finished(pair: Pair) -> None:
    interrupt(pair, ack_without_shipping)
    worker = "no worker of east runs, which would send the rest: walship up"
    plan = plan_switchover(pair.east.command(), "west")
    assert plan.refusals == (worker,) and plan.pending_bytes
    pair.east.ship_to(pair.west)
    pair.east.handle.drain("west")
    for plan in (plan_switchover(pair.east.command(), "west"), plan_failback(pair.east.command(), "west")):
        assert (plan.refusals, plan.epoch, plan.pending_bytes) == ((), 2, 0)
        assert len(plan.steps) == 4 and plan.steps[-1] == "west takes writes (ACTIVE, epoch 2)"
    pair.west.is_away = True
    plan = plan_switchover(pair.east.command(), "west")
    assert [each.split("(")[0] for each in plan.refusals] == ["west does not answer "]
    pair.west.is_away = False
    assert switchover(pair.east.command(), "west").epoch == switchover(pair.east.command(), "west").epoch == 2
    for plan in (plan_switchover(pair.east.command(), "west"), plan_failback(pair.east.command(), "west")):
        assert (plan.steps, plan.refusals, plan.epoch) == ((), (), 2), "it is done"
    pair.await_same(pair.west)


def test_the_plan_of_an_interrupted_switchover_whose_role_was_changed_says_how_to_end_it(pair: Pair) -> None:
    interrupt(pair, ack_without_shipping)
    pair.east.ship_to(pair.west)
    coordination, ledger = pair.east.site.coordination, pair.east.site.ledger
    change_role(ledger, coordination, lambda _: RoleState(Role.ACTIVE, 5))
    plan = plan_switchover(pair.east.command(), "west")
    assert plan.refusals == ("the role of east was changed meanwhile: walship switchover --cancel",)
    with pytest.raises(StepFailedError, match="the role was changed meanwhile"):
        switchover(pair.east.command(), "west")
    assert cancel(pair.east.command()) == RoleState(Role.ACTIVE, 5)


def test_a_switchover_that_another_process_cancels_meanwhile_is_cancelled(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(pair, ack_without_shipping)

    def also_there(*arguments: Any) -> RoleState:
        state = change_role(*arguments)
        pair.east.command().forget()
        return state

    monkeypatch.setattr(switching, "change_role", also_there)
    assert cancel(pair.east.command()) == RoleState(Role.ACTIVE, 3)


def test_a_peer_that_is_lost_in_the_middle_of_a_switchover_has_a_way_out(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(pair, ack_without_shipping)

    def no_answer(*_: object) -> None:
        raise CoordinationError("ZooKeeper did not answer", "")

    monkeypatch.setattr(contacts, "read_public", no_answer)
    remedy = "walship ops abandon role --yes, then walship failover east --from west"
    refusal = plan_switchover(pair.east.command(), "west").refusals[0]
    assert "west does not answer" in refusal and refusal.endswith(f"if it is lost: {remedy}")
    with pytest.raises(CoordinationError, match="nothing was undone: west does not answer") as lost:
        cancel(pair.east.command())
    assert lost.value.hint.endswith(f"If it is lost: {remedy}") and pair.east.role().role is Role.STANDBY
    pair.east.command().forget()  # as abandoned
    assert plan_switchover(pair.east.command(), "west").refusals[0] == "east is STANDBY: run it on the ACTIVE cluster"
    monkeypatch.undo()
    refusal = plan_switchover(pair.east.command(), "west").refusals[0]
    assert refusal == "east is STANDBY, and so is west. If no other cluster is ACTIVE, first: walship readonly off"


def test_plans_say_that_a_role_change_of_another_kind_is_unfinished(pair: Pair) -> None:
    interrupt(pair, ack_without_shipping)
    wait_until(lambda: bool(pair.east.site.ledger.landing.routes()), what="the route back")
    plan = plan_failover(pair.east.command(), "west", force=True)
    verbs = "walship switchover west; to undo it: walship switchover --cancel"
    assert f"another role change of this cluster is unfinished: {verbs}" in plan.refusals
