"""Who confirms leases in the simulation of successions: the own ZooKeeper, a peer, or a witness beyond links."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from peer.client.granter import PeerGranter, WitnessGranter
from replication.config import Config
from replication.coordination.base import Tree
from replication.coordination.witness import Witness
from replication.errors import CoordinationError
from replication.ledger.base import Ledger, Peer
from replication.writer.wal.registration import LeaseTerms

if TYPE_CHECKING:
    from tests.simulation.successions.site import Site
    from tests.simulation.successions.world import Line

LEASE_S = 10.0
HOST = "h0"
WITNESS = "witness"
#: Who confirms the leases of whom, where a peer does.
PEERS = {"east": "west", "west": "north", "north": "west"}


@cache
def config_of(name: str, lease: str, peer: str) -> Config:
    """The configuration of a cluster."""
    failover = {
        "own": {},
        "peer": {"lease": "peer", "lease_peer": peer},
        "witness": {"lease": "witness", "witness": "third:2181/w"},
    }
    return Config.model_validate(
        {
            "cluster": {"name": name, "host": HOST},
            "writer": {"lease_s": LEASE_S},
            "zookeeper": {"servers": "localhost:2181"},
            "failover": failover[lease],
        }
    )


def lease_terms(site: Site) -> LeaseTerms:
    """As ``peer.client.granter.lease_terms``."""
    section = site.config.failover
    if section.lease == "peer":
        return LeaseTerms(LEASE_S, PeerGranter(Links(site), section.lease_peer, LEASE_S).newest_succession)  # type: ignore[arg-type]
    if section.lease == "witness":
        return LeaseTerms(LEASE_S, WitnessGranter(site.id, witness(site), WITNESS, LEASE_S).newest_succession)
    return LeaseTerms(LEASE_S)


def witness(site: Site) -> Witness:
    """The witness, as a cluster reaches it."""
    return Witness(lambda: Far(site), "/w")  # type: ignore[arg-type, return-value]


class Links:
    """``Contacts`` for leases."""

    def __init__(self, site: Site) -> None:
        self._site = site

    @property
    def ledger(self) -> Ledger:
        """The caller's."""
        return self._site.ledger

    @contextmanager
    def kept_link(self, peer: Peer) -> Iterator[Line]:
        """A connection is good once the peer has described itself."""
        line = self._site.world.line(self._site, self._site.world.sites[peer.name])
        line.describe()
        yield line


class Far:
    """A session with the witness over links that may be cut in one direction."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._tree: Tree = site.world.witness.tree()
        self._tree.start(lambda: None, 1.0)

    def close(self) -> None:
        """End the session."""
        self._tree.close()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._tree, name)
        world, here = self._site.world, self._site.name

        def called(*args: Any, **kwargs: Any) -> Any:
            world.point(name)
            if (here, WITNESS) in world.cuts:
                raise CoordinationError("the witness cannot be reached")
            answer = call(*args, **kwargs)
            if (WITNESS, here) in world.cuts:
                raise CoordinationError("the witness did not answer")
            world.point(name)
            return answer

        return called
