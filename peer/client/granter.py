"""Who confirms that this cluster's writers may ack: its own ZooKeeper, and a peer or a witness where one is configured.

The other confirms that nobody has taken over. A failover there ends the role epoch first, and then waits as long as a
lease that was confirmed before. A lease that cannot be confirmed runs out, and nothing is acked any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from peer.client.contacts import Contacts, known_peer
from replication.config import Config
from replication.coordination.base import Tree
from replication.coordination.paths import Quorum
from replication.coordination.tls import ZookeeperTls
from replication.coordination.witness import Witness
from replication.core.ids import ClusterId
from replication.core.succession import Succession
from replication.errors import CoordinationError, ReplicationError
from replication.ledger.base import Ledger
from replication.link.base import AskedLease
from replication.writer.wal.registration import LeaseTerms

_TIMEOUT_S = 5.0


def lease_terms(config: Config, ledger: Ledger) -> LeaseTerms:
    """The terms of a writer's lease; ``close`` them. UnknownPeerError when the peer that confirms is not defined."""
    section, lease_s = config.failover, config.writer.lease_s
    if section.lease == "own":
        return LeaseTerms(lease_s)
    if section.lease == "witness":
        asked = WitnessGranter(ledger.cluster, witness_of(config), section.witness, lease_s, ledger.former)
        return LeaseTerms(lease_s, asked.newest_succession, f"ZooKeeper and the witness {section.witness}")
    known_peer(ledger, section.lease_peer)
    contacts = Contacts(ledger, config.tls, ZookeeperTls.of(config.zookeeper))
    granter = PeerGranter(contacts, section.lease_peer, lease_s)
    who = f"ZooKeeper and peer {section.lease_peer}"
    return LeaseTerms(lease_s, granter.newest_succession, who, contacts.kept.close)


def witness_of(config: Config) -> Witness:
    """The witness that is configured."""
    quorum = Quorum.parse(config.failover.witness)
    return Witness(partial(_open, quorum.servers, ZookeeperTls.of(config.zookeeper)), quorum.root)


class PeerGranter:
    """A peer that confirms that no other cluster took over from this one. It is asked in the background only.

    A peer that was lost, and that this cluster took over from, need not answer. Once it has, it must.
    """

    def __init__(self, contacts: Contacts, peer: str, lease_s: float) -> None:
        self._contacts = contacts
        self._peer = peer
        self._lease_s = lease_s

    def newest_succession(self, epoch: int) -> int:
        """The newest role epoch under which the peer knows that this cluster was succeeded, 0 for none.

        Raises:
            CoordinationError: it does not confirm that this cluster may ack under ``epoch``.
        """
        ledger = self._contacts.ledger
        peer = known_peer(ledger, self._peer)
        try:
            with self._contacts.kept_link(peer) as link:
                if (lost := self._lost(peer.cluster)) is not None:
                    ledger.successions.note_answer(lost)  # before it is asked: it may take over from then on
                known = link.successions(ledger.cluster, peer.cluster, AskedLease(epoch, self._lease_s))
        except ReplicationError as error:
            if self._lost(peer.cluster) is not None:
                return 0
            raise _unconfirmed(ledger.cluster, f"peer {self._peer}", error) from error
        ids = ledger.cluster, *ledger.former
        return max((each.epoch for each in known if each.origin in ids), default=0)

    def _lost(self, peer: ClusterId) -> Succession | None:
        """The failover by which this cluster took over from the peer, until the peer has answered since."""
        successions = self._contacts.ledger.successions
        newest = successions.known().of(peer)
        is_ours = newest is not None and newest.successor == self._contacts.ledger.cluster and not newest.is_planned
        return newest if newest is not None and is_ours and not successions.has_answered(newest) else None


class WitnessGranter:
    """A witness that confirms that no other cluster took over from this one. It is asked in the background only.

    Nor from one of ``former``, its earlier incarnations: a backup knows nothing of a failover since.
    """

    def __init__(
        self, cluster: ClusterId, witness: Witness, address: str, lease_s: float, former: Sequence[ClusterId] = ()
    ) -> None:
        self._cluster = cluster
        self._witness = witness
        self._address = address
        self._lease_s = lease_s
        self._former = former

    def newest_succession(self, epoch: int) -> int:
        """As ``PeerGranter.newest_succession``."""
        try:
            ended = self._witness.confirm(self._cluster, self._lease_s)
            return max([ended, *(self._witness.read(each).ended for each in self._former)])
        except ReplicationError as error:
            raise _unconfirmed(self._cluster, f"the witness {self._address}", error) from error


def _unconfirmed(cluster: ClusterId, who: str, error: ReplicationError) -> CoordinationError:
    return CoordinationError(
        f"{who} does not confirm that {cluster.name} may take writes: {error.what}",
        'Append again once it answers. Without it writes are taken only with [failover] lease = "own"',
    )


def _open(servers: str, tls: ZookeeperTls | None) -> Tree:
    from replication.coordination.zookeeper import ZookeeperTree  # deferred: most clusters have no witness

    tree = ZookeeperTree(servers, call_timeout_s=_TIMEOUT_S, tls=tls, is_own=False)
    try:
        tree.start(lambda: None, _TIMEOUT_S)
    except BaseException:
        tree.close()
        raise
    return tree
