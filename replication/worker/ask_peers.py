"""Asks peers, before a worker starts, whether one of them took over from this cluster while it was down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from replication import log
from replication.core.ids import ClusterId
from replication.core.roles import Role
from replication.core.shipping.chunk import Assignment, Tail
from replication.core.succession import Succession
from replication.errors import ReplicationError
from replication.link.base import PeerLink
from replication.roles.takeover import Takeover

ASK_S_MAX = 2.0
_log = log.get(__name__)


def ask_who_took_over(
    takeover: Takeover,
    connect: Callable[[str, str], PeerLink],
    learn: Callable[[Succession, ClusterId], None],
) -> None:
    """Ask all peers that this cluster last sent to, at once; those that do not answer in time are left out.

    A tail that such a peer refuses later asks it again.
    """
    try:
        if takeover.coordination.role().state.role is not Role.ACTIVE:
            return
        reads = takeover.coordination.assignments().values()
        tails = {tail.peer: tail for read in reads for tail in Assignment.decode(read.content).tails}
    except ReplicationError as error:
        _log.warning("peers_not_asked", error=str(error))
        return
    own = takeover.ledger.cluster

    def ask(tail: Tail) -> None:
        for address in tail.receivers:
            try:
                link = connect(address, tail.peer)
            except ReplicationError:
                continue
            try:
                for succession in link.successions(own, tail.peer_cluster):
                    learn(succession, tail.peer_cluster)
                return
            except ReplicationError as error:
                _log.info("peer_not_asked", peer=tail.peer, address=address, error=str(error))
            finally:
                link.close()

    asking = [
        threading.Thread(target=ask, args=(tail,), name=f"ask {tail.peer}", daemon=True) for tail in tails.values()
    ]
    for thread in asking:
        thread.start()
    deadline = time.monotonic() + ASK_S_MAX
    for thread in asking:
        thread.join(max(0.0, deadline - time.monotonic()))
