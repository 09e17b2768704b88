"""Who confirms a writer's lease beside its own ZooKeeper, and what a cluster does without an answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest

from peer.client.granter import PeerGranter, WitnessGranter, lease_terms
from peer.grants.rights import CallerRights
from peer.receive.successions import SuccessionRequests
from replication.config import Config
from replication.coordination.witness import Witness
from replication.core.ids import ClusterId
from replication.core.roles import LEASE_S_MAX
from replication.core.succession import Succession
from replication.errors import (
    CoordinationError,
    LeaseLostError,
    PeerRefusedError,
    PeerUnavailableError,
    ReadOnlyClusterError,
    UnknownPeerError,
)
from replication.ledger.base import Ledger, Peer
from replication.link.base import AskedLease
from replication.writer.wal.registration import LeaseTerms, WriterRegistration
from replication.writer.wal.wal_series import Place
from tests.fakes.coordination import MemoryEnsemble
from tests.fakes.ledger import MemoryLedger
from tests.unit.coordination.test_witness import opening
from tests.unit.writer.site import DIRECTORY, EAST, Site

WEST = ClusterId("west", UUID(int=2))


class There:
    """West as east reaches it: the connection and its receiver; ``is_up`` says whether it answers."""

    def __init__(self, here: Ledger, there: MemoryLedger) -> None:
        self.ledger = here
        self.is_up = True
        self.loses_calls = False
        self._requests = SuccessionRequests(there, CallerRights(there), None)

    @contextmanager
    def kept_link(self, peer: Peer) -> Iterator[There]:
        if not self.is_up:
            raise PeerUnavailableError("west cannot be reached")
        yield self

    def successions(self, source: ClusterId, expected: ClusterId, lease: AskedLease) -> tuple[Succession, ...]:
        if self.loses_calls:
            raise PeerUnavailableError("west did not answer")
        return self._requests.of(source, lease)


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    site.ledger.rules.define(Peer("west", "zk:2181/walship/west", WEST), 0)
    yield site
    site.close()


@pytest.fixture
def west() -> Iterator[MemoryLedger]:
    ledger = MemoryLedger(WEST)
    yield ledger
    ledger.close()


def granter(there: There) -> Any:
    return PeerGranter(there, "west", 10.0)  # type: ignore[arg-type]


def test_a_writer_that_its_peer_does_not_confirm_stops_acking_when_the_lease_runs_out(
    site: Site, west: MemoryLedger
) -> None:
    there, now = There(site.ledger, west), [1_000_000_000]
    terms = LeaseTerms(10.0, granter(there).newest_succession, "ZooKeeper and peer west")
    held = WriterRegistration(
        site.ledger, site.coordination, site.files, Place(DIRECTORY, "h0", "boot-1"), terms, lambda: now[0]
    )
    there.is_up = False
    with pytest.raises(CoordinationError, match=r"peer west does not confirm .* west cannot be reached"):
        held.renew()
    published = list[int]()
    now[0] += 9_999_999_999
    held.publish(1, lambda: published.append(1))
    now[0] += 1
    with pytest.raises(LeaseLostError, match="without ZooKeeper and peer west"):
        held.publish(1, lambda: published.append(2))
    there.is_up = True
    held.renew()
    held.publish(1, lambda: published.append(3))
    west.successions.take_over(EAST, WEST, 2, 7)
    held.renew()
    with pytest.raises(ReadOnlyClusterError):
        held.publish(1, lambda: published.append(4))
    assert published == [1, 3] and west.successions.lease(EAST) == (1, 10.0)
    held.close(clean=True)


def test_a_writer_whose_peer_or_witness_is_cut_off_from_the_start_is_refused(site: Site, west: MemoryLedger) -> None:
    there = There(site.ledger, west)
    there.is_up = False

    def opened() -> Any:
        raise CoordinationError("ZooKeeper at third:2181 did not answer")

    for terms, who in (
        (granter(there), "peer west"),
        (WitnessGranter(EAST, Witness(opened, "/w"), "third:2181/w", 10.0), "the witness third:2181/w"),
    ):
        lease = LeaseTerms(10.0, terms.newest_succession)
        with pytest.raises(CoordinationError, match=f'{who} does not confirm that east may .* lease = "own"'):
            WriterRegistration(site.ledger, site.coordination, site.files, Place(DIRECTORY, "h0", "b"), lease)


def test_a_peer_that_was_lost_need_not_confirm_until_it_has_answered_again(site: Site, west: MemoryLedger) -> None:
    there = There(site.ledger, west)
    asked = granter(there)
    there.is_up = False
    with pytest.raises(CoordinationError):
        asked.newest_succession(5)
    site.ledger.successions.record(Succession(WEST, EAST, 5, 7, is_planned=False))
    assert asked.newest_succession(5) == 0
    there.is_up = there.loses_calls = True  # it may have heard the question, and may take over from then on
    with pytest.raises(CoordinationError):
        asked.newest_succession(5)
    there.is_up = False
    with pytest.raises(CoordinationError):
        granter(there).newest_succession(5)
    there.is_up, there.loses_calls = True, False
    assert asked.newest_succession(5) == 0 and west.successions.lease(EAST) == (5, 10.0)


def test_a_lease_for_which_no_failover_should_wait_is_refused(site: Site, west: MemoryLedger) -> None:
    there = There(site.ledger, west)
    with pytest.raises(PeerRefusedError, match="confirms no lease of 601 s"):
        there.successions(EAST, WEST, AskedLease(1, LEASE_S_MAX + 1))
    assert west.successions.lease(EAST) == (0, 0.0)


def test_the_peer_that_is_configured_must_be_defined(site: Site) -> None:
    failover = {"lease": "peer", "lease_peer": "north"}
    config = Config.model_validate({"cluster": {"name": "east"}, "failover": failover})
    with pytest.raises(UnknownPeerError, match="north"):
        lease_terms(config, site.ledger)
    own = lease_terms(Config.model_validate({"cluster": {"name": "east"}}), site.ledger)
    assert (own.lease_s, own.confirm(1)) == (10.0, 0)


def test_a_restored_cluster_is_not_confirmed_under_an_epoch_that_was_ended_of_its_former_id(
    site: Site, west: MemoryLedger
) -> None:
    before, witness = ClusterId("east", UUID(int=99)), Witness(opening(MemoryEnsemble()), "/w")
    west.successions.record(Succession(before, WEST, 5, 7, is_planned=False))
    witness.end(before, 5, WEST)
    asked = granter(There(site.ledger, west))
    assert asked.newest_succession(1) == 0, "another cluster had this name"
    site.ledger.former = (before,)
    assert asked.newest_succession(1) == 5
    for former, newest in (((), 0), ((before,), 5)):
        by_witness = WitnessGranter(EAST, witness, "third:2181/w", 10.0, former)
        assert by_witness.newest_succession(1) == newest
