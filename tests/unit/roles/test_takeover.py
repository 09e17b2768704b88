"""Who can report to a cluster that another one took over."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest

from replication.coordination.session import Coordination
from replication.core.ids import ClusterId
from replication.core.roles import Role, RoleState
from replication.core.routes.carried import Carried, InboundRoute
from replication.core.succession import Succession
from replication.errors import SuccessionError
from replication.ledger.base import Peer
from replication.roles.active import known_active
from replication.roles.takeover import Takeover, change_role
from tests.fakes.coordination import MemoryEnsemble
from tests.fakes.ledger import MemoryLedger

OWN, EAST, WEST, NORTH = (ClusterId(n, UUID(int=i)) for i, n in enumerate(("own", "east", "west", "north"), 1))
TABLE = UUID(int=9)


@pytest.fixture
def takeover() -> Iterator[Takeover]:
    ledger = MemoryLedger(OWN)
    with Coordination(MemoryEnsemble().tree(), "/own") as coordination:
        coordination.establish(OWN, "1")
        yield Takeover(ledger, coordination)
    ledger.close()


def of(origin: ClusterId, successor: ClusterId, epoch: int = 2) -> Succession:
    return Succession(origin, successor, epoch, 7, is_planned=False)


def test_a_cluster_that_carries_no_frames_of_the_origin_cannot_end_its_epochs(takeover: Takeover) -> None:
    takeover.ledger.landing.declare_routes([InboundRoute(WEST, TABLE, "default", 1)])
    with pytest.raises(SuccessionError, match="west reports that west took over from east, which it cannot know"):
        takeover.learn(of(EAST, WEST), WEST)
    assert takeover.ledger.successions.known().all == ()
    assert takeover.ledger.landing.keep_epoch(EAST, 1) == 1


def test_the_origin_or_a_route_that_carries_it_is_believed(takeover: Takeover) -> None:
    takeover.learn(of(EAST, WEST), EAST)
    takeover.ledger.landing.declare_routes(
        [InboundRoute(WEST, TABLE, "default", 1, {}, carried=(Carried(NORTH, (NORTH, WEST)),))]
    )
    takeover.learn(of(NORTH, WEST), WEST)
    assert {each.origin for each in takeover.ledger.successions.known().all} == {EAST, NORTH}


def test_a_cluster_steps_down_only_for_a_successor_that_it_sends_to(takeover: Takeover) -> None:
    with pytest.raises(SuccessionError):
        takeover.learn(of(OWN, WEST), WEST)
    assert takeover.coordination.role().state == RoleState(Role.ACTIVE, 1)
    takeover.ledger.rules.define(Peer("west", "localhost:2181/walship/west", WEST), 0)
    with pytest.raises(SuccessionError):
        takeover.learn(of(OWN, WEST), EAST)
    takeover.learn(of(OWN, WEST), WEST)
    assert takeover.coordination.role().state == RoleState(Role.STANDBY, 2)


def test_a_cluster_steps_down_when_another_peer_reports_its_successor_which_may_be_away(takeover: Takeover) -> None:
    takeover.ledger.rules.define(Peer("north", "localhost:2181/walship/north", NORTH), 0)
    with pytest.raises(SuccessionError):  # whoever takes over here is a peer
        takeover.learn(of(OWN, WEST), NORTH)
    takeover.ledger.rules.define(Peer("west", "localhost:2181/walship/west", WEST), 0)
    takeover.learn(of(OWN, WEST), NORTH)
    assert takeover.coordination.role().state == RoleState(Role.STANDBY, 2)


def test_a_cluster_that_was_restored_and_has_a_new_id_steps_down_for_the_successor_of_its_former_one(
    takeover: Takeover,
) -> None:
    ledger = takeover.ledger
    former = ClusterId("own", UUID(int=99))
    ledger.former = (former,)
    ledger.landing.declare_routes(
        [InboundRoute(WEST, TABLE, "default", 1, {}, carried=(Carried(former, (former, WEST)),))]
    )
    takeover.learn(of(former, WEST), WEST)
    assert takeover.coordination.role().state == RoleState(Role.ACTIVE, 1), "nothing is sent to west"
    ledger.rules.define(Peer("west", "localhost:2181/walship/west", WEST), 0)
    takeover.learn(of(former, WEST), WEST)
    assert takeover.coordination.role().state == RoleState(Role.STANDBY, 2)
    active = known_active(ledger)
    assert active is not None and active.cluster == WEST, "writers are told where to write"
    takeover.promote(Succession(WEST, OWN, 3, 7, is_planned=True))
    takeover.learn(of(former, WEST), WEST)
    assert takeover.coordination.role().state == RoleState(Role.ACTIVE, 3), "it has taken over again since"
    assert known_active(ledger) is None


def test_a_cluster_with_a_newer_epoch_does_not_take_over_and_stores_nothing(takeover: Takeover) -> None:
    for role in (Role.STANDBY, Role.ACTIVE, Role.STANDBY):
        change_role(takeover.ledger, takeover.coordination, lambda state, role=role: state.becomes(role))
    with pytest.raises(SuccessionError, match="own has role epoch 4 already"):
        takeover.promote(Succession(EAST, OWN, 3, 7, is_planned=True))
    takeover.cancel(EAST, 3)  # so the origin can take writes again


def test_a_second_successor_under_one_epoch_is_kept_as_a_contradiction(takeover: Takeover) -> None:
    takeover.learn(of(EAST, WEST), EAST)
    takeover.ledger.landing.declare_routes(
        [InboundRoute(NORTH, TABLE, "default", 1, {}, carried=(Carried(EAST, (EAST, NORTH)),))]
    )
    for _ in range(2):
        with pytest.raises(SuccessionError, match="two clusters have taken over"):
            takeover.learn(of(EAST, NORTH), NORTH)
    assert takeover.ledger.successions.contradictions() == (of(EAST, NORTH),)
    assert takeover.ledger.successions.known().all == (of(EAST, WEST),)


def test_a_takeover_that_was_stopped_before_the_role_changed_is_to_be_run_again(takeover: Takeover) -> None:
    change_role(takeover.ledger, takeover.coordination, lambda state: state.becomes(Role.STANDBY))
    begun = Succession(EAST, OWN, 3, 7, is_planned=True)
    takeover.ledger.successions.accept(begun)
    with pytest.raises(SuccessionError, match="own has begun to take over from east, .* is not ACTIVE yet") as refused:
        takeover.cancel(EAST, 3)
    assert refused.value.hint == "Run it again: walship switchover own, on east"
    takeover.promote(begun)
    with pytest.raises(SuccessionError, match="own has taken over from east already") as refused:
        takeover.cancel(EAST, 3)
    assert refused.value.hint.startswith("To finish it, on east: walship switchover own; then back, on own: walship")
