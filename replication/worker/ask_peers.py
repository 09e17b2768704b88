"""Asks peers, before a worker starts, whether one of them took over from this cluster while it was down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

from replication import log
from replication.coordination.base import Public
from replication.coordination.session import Coordination
from replication.core.ids import ClusterId
from replication.core.roles import Role
from replication.core.shipping.chunk import Assignment, Tail
from replication.core.succession import Succession
from replication.errors import FormatError, ReplicationError
from replication.ledger.base import Peer
from replication.link.base import PeerLink
from replication.roles.takeover import Takeover

ASK_S_MAX = 2.0
_log = log.get(__name__)


def ask_who_took_over(
    takeover: Takeover,
    connect: Callable[[str, str], PeerLink],
    read_public: Callable[[str], Public],
    learn: Callable[[Succession, ClusterId], None],
) -> None:
    """Look in the ledger, then ask all peers, at once; those that do not answer in time are left out.

    Of each first the receivers that this cluster last sent to, then those that its ZooKeeper lists: it may have moved,
    or be paused. A tail that a peer refuses later asks it again.
    """
    try:
        if takeover.coordination.role().state.role is not Role.ACTIVE:
            return
        for each in takeover.ledger.successions.known().all:  # who heard of it may have been killed before it acted
            learn(each, each.successor)
        peers = takeover.ledger.rules.peers()
        tails = _tails(takeover.coordination)
    except ReplicationError as error:
        _log.warning("peers_not_asked", error=str(error))
        return
    own = takeover.ledger.cluster

    def receivers(peer: Peer) -> Iterator[str]:
        if peer.name in tails:
            yield from tails[peer.name].receivers
        try:
            yield from read_public(peer.zookeepers).receivers
        except ReplicationError as error:
            _log.info("peer_not_asked", peer=peer.name, address=peer.zookeepers, error=str(error))

    def ask(peer: Peer) -> None:
        for address in receivers(peer):
            try:
                with closing(connect(address, peer.name)) as link:
                    for succession in link.successions(own, peer.cluster):
                        learn(succession, peer.cluster)
                    return
            except Exception as error:  # whatever a peer answers, the worker starts
                _log.info("peer_not_asked", peer=peer.name, address=address, error=str(error))

    asking = [threading.Thread(target=ask, args=(peer,), name=f"ask {peer.name}", daemon=True) for peer in peers]
    for thread in asking:
        thread.start()
    deadline = time.monotonic() + ASK_S_MAX
    for thread in asking:
        thread.join(max(0.0, deadline - time.monotonic()))


def _tails(coordination: Coordination) -> dict[str, Tail]:
    """The tails that were assigned last, by peer."""
    tails: dict[str, Tail] = {}
    for read in coordination.assignments().values():
        with suppress(FormatError):  # the master replaces it
            tails |= {tail.peer: tail for tail in Assignment.decode(read.content).tails}
    return tails
