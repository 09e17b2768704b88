"""What prevents a failover, with its remedy; nothing is changed by a plan or a refusal."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from peer.client.cluster import Cluster
from peer.failover import failover as failing
from peer.failover.failback import plan_failback
from peer.failover.failover import TakeWrites, failover, is_begun, plan_failover
from peer.failover.role_change import RoleChange
from peer.failover.switchover import PreparePeer
from replication.commit.step import step_to_json
from replication.config import Config
from replication.core.ids import ClusterId
from replication.core.phase import Phase
from replication.core.roles import Role, RoleState
from replication.core.routes.carried import InboundRoute
from replication.core.succession import UNHEARD_MAX, Succession
from replication.errors import CoordinationError, RequestError, StepFailedError, UnfinishedSequenceError
from replication.ledger.base import Peer
from replication.ledger.commit_steps import NewSequence, SequenceId
from replication.roles.takeover import change_role
from tests.fakes.coordination import MemoryEnsemble
from tests.fakes.ledger import MemoryLedger
from tests.sites import table

EAST, WEST, NORTH = (ClusterId(name, UUID(int=n)) for n, name in enumerate(("east", "west", "north"), 1))
STANDBY = RoleState(Role.STANDBY, 2)
LATER = 7 + UNHEARD_MAX


@pytest.fixture
def change() -> Iterator[RoleChange]:
    """West, which gets two tables of east; the bootstrap of one is under way."""
    ledger = MemoryLedger(WEST)
    with MemoryEnsemble().connect("/walship/west") as coordination:
        coordination.establish(WEST, "1", role=STANDBY)
        ledger.rules.define(Peer("east", "zk:2181/walship/east", EAST), 0)
        for spec, phase in ((table(), Phase.BOOTSTRAPPING), (table("ops.weather"), Phase.LIVE)):
            ledger.tables.create(spec)
            ledger.landing.declare_routes([InboundRoute(EAST, spec.uuid, "default", 1, {}, phase=phase)])
        config = Config.model_validate({"cluster": {"name": "west"}})
        cluster = SimpleNamespace(
            id=WEST, name="west", ledger=ledger, coordination=coordination, config=config, tables=ledger.tables.all
        )
        yield RoleChange(cast(Cluster, cluster))
    ledger.close()


def test_a_failover_before_the_first_bootstrap_is_complete_is_refused_with_the_reason(
    change: RoleChange,
) -> None:  # scenario 29
    plan = plan_failover(change, "", force=True)
    assert any("the bootstrap of ops.flights from east is not complete" in each for each in plan.refusals)
    assert not any("ops.weather" in each for each in plan.refusals)
    assert any("--incomplete" in each for each in plan.refusals)
    with pytest.raises(RequestError, match="west cannot take over from east now") as refused:
        failover(change, plan)
    assert "ops.flights from east is not complete" in refused.value.hint
    assert change.cluster.coordination.role().state == STANDBY
    assert change.unfinished() is None and change.cluster.ledger.successions.known().all == ()


def test_with_incomplete_it_takes_over_with_what_is_there(change: RoleChange) -> None:
    plan = plan_failover(change, "", force=True, incomplete=True)
    assert plan.refusals == () and plan.upto == 0 and not is_begun(change, plan)
    failover(change, plan)
    assert change.cluster.coordination.role().state == RoleState(Role.ACTIVE, plan.epoch)


def test_a_failover_beside_a_third_cluster_that_has_taken_over_is_refused(
    change: RoleChange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing, "answer", lambda *_: None)  # east is lost
    assert plan_failover(change, "east", incomplete=True).refusals == ()
    known = change.cluster.ledger.successions
    known.record(Succession(EAST, NORTH, 1002, 7, is_planned=False))
    with pytest.raises(RequestError) as refused:
        failover(change, plan_failover(change, "east", incomplete=True))
    assert "north has taken over from east (epoch 1002), and both would take writes" in refused.value.hint
    assert "walship failover west --from north; else --force" in refused.value.hint
    assert change.cluster.coordination.role().state == STANDBY
    assert plan_failover(change, "east", force=True, incomplete=True).refusals == ()
    known.record(Succession(NORTH, EAST, 1003, 8, is_planned=True))
    assert plan_failover(change, "east", incomplete=True).refusals == (), "east is the one that was ACTIVE last"


def test_a_failover_on_a_cluster_whose_former_id_took_over_before_is_not_refused_with_its_own_name(
    change: RoleChange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing, "answer", lambda *_: None)  # east is lost
    ledger, former = change.cluster.ledger, ClusterId("west", UUID(int=99))
    cast(Any, ledger).former = (former,)
    ledger.successions.record(Succession(EAST, former, 1002, 7, is_planned=False))
    assert plan_failover(change, "east", incomplete=True).refusals == ()


def test_of_two_clusters_of_one_name_as_after_a_wipe_the_lost_one_is_named_by_its_id(change: RoleChange) -> None:
    ledger, anew = change.cluster.ledger, ClusterId("east", UUID(int=98))
    ledger.landing.declare_routes([InboundRoute(anew, change.cluster.tables()[1].uuid, "default", 1, {})])
    with pytest.raises(RequestError, match="several clusters that are called east have sent") as refused:
        plan_failover(change, "east")
    assert str(EAST) in refused.value.what and str(anew) in refused.value.what
    assert "walship failover west --from ID" in refused.value.hint
    plan = plan_failover(change, str(anew), force=True, incomplete=True)
    assert plan.origin == "east" and not is_begun(change, plan)
    assert failover(change, plan).successor == "west"
    (known,) = ledger.successions.known().all
    assert known.origin == anew


def interrupt(change: RoleChange, patched: pytest.MonkeyPatch) -> StepFailedError:
    """A failover from east fails once it has ended east's epochs, on a cluster to which north sends, too."""
    table = change.cluster.tables()[1].uuid
    change.cluster.ledger.landing.declare_routes([InboundRoute(NORTH, table, "default", 1, {}, phase=Phase.LIVE)])

    def no_answer(*_: object) -> None:
        raise CoordinationError("lost", "")

    with patched.context() as patch:
        patch.setattr(TakeWrites, "execute", no_answer)
        with pytest.raises(StepFailedError) as failed:
            failover(change, plan_failover(change, "east", force=True, incomplete=True))
    assert change.cluster.ledger.successions.known().of(EAST)
    return failed.value


def test_an_interrupted_failover_goes_on_with_its_own_origin_when_several_clusters_send_here(
    change: RoleChange, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert interrupt(change, monkeypatch).hint.endswith("walship failover west --from east")
    for name in ("", "east"):
        plan = plan_failover(change, name, force=True)
        assert plan.origin == "east" and is_begun(change, plan)
    assert failover(change, plan_failover(change, "", force=True)).origin == "east"
    assert change.cluster.coordination.role().state.role is Role.ACTIVE and change.unfinished() is None


def test_an_interrupted_failover_ends_when_the_cluster_was_made_active_by_hand_meanwhile(
    change: RoleChange, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(change, monkeypatch)
    change_role(change.cluster.ledger, change.cluster.coordination, lambda _: RoleState(Role.ACTIVE, LATER))
    assert failover(change, plan_failover(change, "east", force=True)).origin == "east"
    assert change.cluster.coordination.role().state == RoleState(Role.ACTIVE, LATER) and change.unfinished() is None


def test_an_interrupted_failover_of_a_cluster_whose_role_was_changed_says_how_to_begin_again(
    change: RoleChange, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(change, monkeypatch)
    change_role(change.cluster.ledger, change.cluster.coordination, lambda _: RoleState(Role.STANDBY, LATER))
    with pytest.raises(StepFailedError, match=f"west has role epoch {LATER} already") as failed:
        failover(change, plan_failover(change, "east", force=True))
    assert failed.value.hint == "Begin again: walship ops abandon role --yes, then walship failover west --from east"
    change.forget()
    assert failover(change, plan_failover(change, "east", force=True, incomplete=True)).epoch == LATER + 1 + UNHEARD_MAX
    assert change.cluster.coordination.role().state == RoleState(Role.ACTIVE, LATER + 1 + UNHEARD_MAX)


def test_the_plan_of_a_failover_says_that_another_one_is_unfinished(
    change: RoleChange, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(change, monkeypatch)
    plan = plan_failover(change, "north", force=True, incomplete=True)
    assert plan.refusals[0] == "another role change of this cluster is unfinished: walship failover west --from east"
    with pytest.raises(RequestError, match="another role change of this cluster is unfinished"):
        failover(change, plan)
    assert plan_failover(change, "east", force=True).refusals == ()


def test_a_role_change_that_another_process_has_just_begun_is_not_called_one_to_abandon(change: RoleChange) -> None:
    steps = change.cluster.ledger.steps
    steps.put_all([NewSequence(SequenceId("west", "role"), (step_to_json(PreparePeer("east")),))], "another", 60.0)
    with pytest.raises(UnfinishedSequenceError, match="another role change of west has just begun") as refused:
        change.run((PreparePeer("east"),))
    assert "abandon" not in refused.value.hint
    assert change.cluster.coordination.role().state == STANDBY


def test_a_role_change_begun_on_the_cluster_that_is_to_take_writes_says_where_to_run_it() -> None:
    own = SimpleNamespace(id=EAST, name="east", ledger=SimpleNamespace())
    with pytest.raises(RequestError, match="east is this cluster itself") as refused:
        plan_failback(RoleChange(cast(Cluster, own)), "east")
    assert "walship --cluster OTHER switchover east; after a failover: failback east" in refused.value.hint
