"""Only a cluster that a person here has defined can order this one to take writes, and only in its own place."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest

from peer.grants.rights import CallerRights
from peer.receive.successions import SuccessionRequests
from replication.coordination.session import Coordination
from replication.core.grants import Caller, Grant
from replication.core.ids import ClusterId
from replication.core.roles import Role, RoleState
from replication.core.routes.carried import InboundRoute
from replication.core.succession import Succession
from replication.errors import PeerRefusedError, SuccessionError
from replication.ledger.base import Peer
from replication.link.base import Hello, TakeOver
from replication.roles.takeover import Takeover
from tests.fakes.coordination import MemoryEnsemble
from tests.fakes.ledger import MemoryLedger
from tests.sites import table

OWN, EAST, NORTH = (ClusterId(name, UUID(int=n)) for n, name in enumerate(("own", "east", "north"), 1))
BY_CERTIFICATE = Caller(EAST, certified=frozenset({"east"}))
ORDER = Succession(EAST, OWN, 5, 7, is_planned=True)
STANDBY, ADDRESS = RoleState(Role.STANDBY, 2), "localhost:2181/walship/east"


class Place:
    """A STANDBY cluster that gets a table from east."""

    def __init__(self, coordination: Coordination) -> None:
        self.ledger = MemoryLedger(OWN)
        self.coordination = coordination
        coordination.establish(OWN, "1", role=STANDBY)
        spec = table()
        self.ledger.tables.create(spec)
        self.ledger.landing.declare_routes([InboundRoute(EAST, spec.uuid, "default", 1)])
        self.requests = SuccessionRequests(self.ledger, CallerRights(self.ledger), Takeover(self.ledger, coordination))

    @property
    def role(self) -> RoleState:
        return self.coordination.role().state


@pytest.fixture
def place() -> Iterator[Place]:
    with Coordination(MemoryEnsemble().tree(), "/own") as coordination:
        made = Place(coordination)
        yield made
        made.ledger.close()


def test_a_caller_with_a_grant_for_tables_only_cannot_make_this_cluster_active(place: Place) -> None:
    place.ledger.grants.put(Grant(EAST, ("ops.*",)), 1)
    with pytest.raises(PeerRefusedError, match="own does not let east decide") as refused:
        place.requests.take_over(TakeOver(EAST, OWN, ADDRESS, ORDER), BY_CERTIFICATE)
    assert refused.value.reason == "NOT_GRANTED" and "walship definecluster east" in refused.value.hint
    assert place.role == STANDBY and place.ledger.successions.known().all == () and not place.ledger.rules.peers()


@pytest.mark.parametrize("has_grant", [False, True])  # of walship grants add, or of an invitation
def test_a_defined_peer_names_its_own_successor_and_no_others(place: Place, has_grant: bool) -> None:
    place.ledger.rules.define(Peer("east", ADDRESS, EAST), 0)
    if has_grant:
        place.ledger.grants.put(Grant(EAST, by="root"), 1)
    for forged in (
        Succession(NORTH, OWN, 5, 7, is_planned=True),
        Succession(EAST, NORTH, 5, 7, is_planned=True),
        Succession(EAST, OWN, 5, 7, is_planned=False),
    ):
        with pytest.raises(PeerRefusedError, match="cannot order this succession"):
            place.requests.take_over(TakeOver(EAST, OWN, ADDRESS, forged), BY_CERTIFICATE)
    assert place.role == STANDBY
    place.requests.take_over(TakeOver(EAST, OWN, ADDRESS, ORDER), BY_CERTIFICATE)
    assert place.role == RoleState(Role.ACTIVE, 5) and place.requests.of(EAST) == (ORDER,)


def test_a_cancelled_order_is_refused_and_one_that_was_carried_out_cannot_be_cancelled(place: Place) -> None:
    place.ledger.rules.define(Peer("east", ADDRESS, EAST), 0)
    place.requests.take_over(TakeOver(EAST, OWN, cancelled=5), BY_CERTIFICATE)
    with pytest.raises(SuccessionError, match="cancelled"):
        place.requests.take_over(TakeOver(EAST, OWN, ADDRESS, ORDER), BY_CERTIFICATE)
    assert place.role == STANDBY
    later = Succession(EAST, OWN, 7, 8, is_planned=True)
    place.requests.take_over(TakeOver(EAST, OWN, ADDRESS, later), BY_CERTIFICATE)
    with pytest.raises(SuccessionError, match="taken over from east already"):
        place.requests.take_over(TakeOver(EAST, OWN, cancelled=7), BY_CERTIFICATE)


@pytest.mark.parametrize("address", ["", "no address", "/", "x" * 2000, "a:1/r\n; drop"])
def test_what_is_no_address_of_a_sender_is_not_kept(place: Place, address: str) -> None:
    place.requests.learn(Hello(EAST, OWN, 1, "1", zookeepers=address))
    assert place.ledger.successions.address(EAST) == ""


def test_a_cluster_that_was_restored_is_told_what_became_of_its_former_id(place: Place) -> None:
    ended = Succession(ClusterId("east", UUID(int=99)), OWN, 5, 7, is_planned=False)
    place.ledger.successions.record(ended)
    assert place.requests.of(EAST) == (ended,) and place.requests.of(NORTH) == ()
