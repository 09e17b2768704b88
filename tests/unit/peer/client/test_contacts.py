"""Finding clusters that peers lead to."""

from __future__ import annotations

import pytest

from peer.client.contacts import NO_PROOF, ContactedPeer, Contacts, Proof
from peer.client.waiting import Waiting
from replication.coordination.base import Public
from replication.coordination.paths import Quorum
from replication.core.position import Position
from replication.errors import PeerUnavailableError, WaitTimeoutError
from replication.link.base import Description
from replication.settings import TlsSection
from tests.contract.ledger_stores import EAST, WEST, peer
from tests.fakes.ledger import MemoryLedger


def test_a_search_past_its_time_ends_with_the_first_that_does_not_answer() -> None:
    ledger, asked = MemoryLedger(WEST), list[str]()
    for number in range(5):
        ledger.rules.define(peer(f"p{number}", EAST), 0)

    class Away(Contacts):
        def reach(self, name: str, zookeepers: str, proof: Proof = NO_PROOF) -> ContactedPeer:
            asked.append(name)
            raise PeerUnavailableError("no answer within 5 s")

    waiting = Waiting(ledger, Away(ledger, TlsSection()))
    with pytest.raises(WaitTimeoutError, match="far is not a peer, and p0"):
        waiting.wait(Position(WEST), "far", "visible", 0.0)
    assert asked == ["p0"]
    with pytest.raises(PeerUnavailableError, match="far is not a peer"):
        waiting.contacts.locate("far")
    assert len(asked) == 6
    ledger.close()


def test_a_cluster_that_a_relay_names_is_found_without_asking_those_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, relay, asked = MemoryLedger(WEST), peer("south", EAST), list[str]()
    ledger.rules.define(relay, 0)
    beside = {f"b{number}": f"zk-b{number}:1/b" for number in range(1000)}

    class Hub(Contacts):
        def reach(self, name: str, zookeepers: str, proof: Proof = NO_PROOF) -> ContactedPeer:
            said = Description(relay.cluster, "test", "ACTIVE", 1, peers={**beside, "far": "zk-far:1/far"})
            return ContactedPeer(Quorum.parse("zk:1/south"), Public(relay.cluster, "test"), said)

    def read(zookeepers: str, _: object) -> tuple[Quorum, Public]:
        asked.append(zookeepers)
        if "far" not in zookeepers:
            raise PeerUnavailableError("no answer within 5 s")
        return Quorum.parse(zookeepers), Public(EAST, "test")

    monkeypatch.setattr("peer.client.contacts.read_public", read)
    hub = Hub(ledger, TlsSection())
    assert hub.locate("far").zookeepers == "zk-far:1/far" and asked == ["zk-far:1/far"]
    with pytest.raises(PeerUnavailableError, match="elsewhere is not a peer"):
        hub.locate("elsewhere")
    assert len(asked) < 100, "a cluster may name very many"
    ledger.close()
