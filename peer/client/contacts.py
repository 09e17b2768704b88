"""Calls to other clusters. A cluster's ZooKeeper lists its receivers; one of them is called."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, TypeGuard, TypeVar

from peer.polling import polls
from replication import __version__
from replication.coordination.base import Public
from replication.coordination.paths import Quorum
from replication.coordination.tls import ZookeeperTls
from replication.core.ids import ClusterId
from replication.errors import (
    CoordinationError,
    PeerRefusedError,
    PeerUnavailableError,
    ReplicationError,
    RequestError,
    TransferError,
    UnknownPeerError,
)
from replication.ledger.base import Ledger, Peer
from replication.link.base import PROTOCOL, Description, PeerLink, Reason
from replication.settings import TlsSection

if TYPE_CHECKING:
    from replication.link.grpc_client import GrpcLink

ANSWER_TIMEOUT_S = 10.0
_KEPT_S = 30.0
_CLUSTERS_MAX = 64
_To = TypeVar("_To")
_Link = TypeVar("_Link")


@dataclass(frozen=True, slots=True)
class Proof:
    """What proves that a person may grant at the other cluster: an invitation, or an administrator's certificate."""

    invitation: str = ""
    administrator: TlsSection | None = None


NO_PROOF = Proof()


@dataclass(frozen=True, slots=True)
class ContactedPeer:
    """A peer that answered: its ZooKeeper, what it publishes there, and how its receiver describes itself."""

    quorum: Quorum
    public: Public
    described: Description


class KeptLinks(Generic[_To, _Link]):
    """Connections that later calls use again, for ``kept_s`` each. Safe for threads; ``close`` ends all."""

    def __init__(self, kept_s: float = _KEPT_S) -> None:
        self._kept_s = kept_s
        self._lock = threading.Lock()
        self._links: dict[_To, tuple[_Link, float, ExitStack]] = {}

    def find(self, to: _To) -> _Link | None:
        """The connection to a peer; None when there is none, or it is old."""
        with self._lock:
            link, until_s, _ = self._links.get(to, (None, 0.0, None))
        if link is None or until_s > time.monotonic():
            return link
        self.drop(to, link)
        return None

    def keep(self, to: _To, link: _Link, closing: ExitStack) -> None:
        """Keep a connection in place of an earlier one; ``closing`` closes it."""
        with self._lock:
            earlier = self._links.get(to)
            self._links[to] = (link, time.monotonic() + self._kept_s, closing)
        if earlier is not None:
            earlier[2].close()

    def drop(self, to: _To, link: _Link | None) -> None:
        """Close a connection; another thread may use it, and then connects again."""
        with self._lock:
            found = self._links.get(to)
            if found is None or found[0] is not link:
                return
            del self._links[to]
        found[2].close()

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            links, self._links = self._links, {}
        for _, _, opened in links.values():
            opened.close()


@dataclass(frozen=True, slots=True)
class Contacts:
    """The clusters that this one can call: its peers, their peers, and so on.

    ``link_tls`` is for calls to receivers, ``zookeeper_tls`` for reading from ZooKeeper, ``kept`` for ``kept_link``.
    """

    ledger: Ledger
    link_tls: TlsSection
    zookeeper_tls: ZookeeperTls | None = None
    kept: KeptLinks[Peer, PeerLink] = field(default_factory=KeptLinks)

    def locate(self, name: str, deadline_s: float = math.inf) -> Peer:
        """Find a cluster by name: among the peers, then among their peers, and so on.

        Past ``deadline_s``, of the monotonic clock, the search ends with the first that does not answer.

        Raises:
            UnknownPeerError: every cluster that can be reached was asked, and none has a peer of that name.
            PeerUnavailableError: that cluster, or one that may lead to it, does not answer.
        """
        known = {peer.name: peer for peer in self.ledger.rules.peers()}
        waiting, asked = deque(known.values()), {self.ledger.cluster.name}
        silent: dict[str, ReplicationError] = {}
        while name not in known and waiting and len(asked) <= _CLUSTERS_MAX:
            if silent and time.monotonic() > deadline_s:
                break
            here = waiting.popleft()
            if here.name in asked:
                continue
            asked.add(here.name)
            try:
                there = self.reach(here.name, here.zookeepers).described.peers
            except ReplicationError as error:
                silent[here.name] = error  # another cluster may lead there
                continue
            for far in sorted(there, key=lambda each: each != name)[:_CLUSTERS_MAX]:
                if name not in known and far not in known and far not in asked:
                    try:
                        _, public = read_public(there[far], self.zookeeper_tls)
                    except ReplicationError as error:
                        silent[far] = error
                        if time.monotonic() > deadline_s:
                            break
                        continue
                    known[far] = Peer(far, there[far], public.cluster)
                    waiting.append(known[far])
        if name not in known and silent:
            who, why = (name, silent[name]) if name in silent else next(iter(silent.items()))
            state = (
                "cannot be asked" if name == who else f"is not a peer, and {who}, which may lead to it, cannot be asked"
            )
            raise PeerUnavailableError(f"{name} {state}: {why.what}", why.hint or "Try again later")
        return known[name] if name in known else known_peer(self.ledger, name)

    def reach(self, name: str, zookeepers: str, proof: Proof = NO_PROOF) -> ContactedPeer:
        """Ask a cluster for its identity, in its ZooKeeper and at one of its receivers, and show it a proof.

        Raises:
            ConfigError: ``zookeepers`` is not an address.
            PeerUnavailableError: nothing answers there.
            RequestError: ZooKeeper and the receiver are of two clusters.
            PeerRefusedError: its version does not go with this one, or it refuses the proof.
        """
        for _ in polls(ANSWER_TIMEOUT_S, 0.25):  # its master publishes receivers once a second
            quorum, public = read_public(zookeepers, self.zookeeper_tls)
            if public.receivers:
                break
        if proof.administrator is not None:
            with replace(self, link_tls=proof.administrator).link_to(name, public.receivers):
                pass  # the answer to the first call says that it grants
        with self.link_to(name, public.receivers) as link:
            described = link.describe(proof.invitation)
        if described.cluster != public.cluster:
            raise RequestError(
                f"ZooKeeper at {zookeepers} is of {public.cluster}, but the receiver is of {described.cluster}",
                "Two clusters share that root or address; start the right receiver",
            )
        if described.protocol != PROTOCOL or _series(described.version) != _series(__version__):
            raise PeerRefusedError(
                f"{public.cluster.name} runs walship {described.version}, which cannot be used with {__version__} here",
                "Upgrade the older one first",
                reason="VERSION",
            )
        return ContactedPeer(quorum, public, described)

    @contextmanager
    def link(self, peer: Peer) -> Iterator[PeerLink]:
        """A connection to one of a peer's receivers. PeerUnavailableError when it is another cluster's by now."""
        _, public = read_public(peer.zookeepers, self.zookeeper_tls)
        if public.cluster != peer.cluster:
            raise PeerUnavailableError(
                f"peer {peer.name} is {public.cluster} now, but was defined as {peer.cluster}",
                f"If it was restored: walship deletecluster {peer.name}, then definecluster again",
            )
        with self.link_to(peer.name, public.receivers, peer.cluster) as link:
            yield link

    def has_link(self, peer: Peer) -> bool:
        """Whether ``kept_link`` needs no new connection."""
        return self.kept.find(peer) is not None

    @contextmanager
    def kept_link(self, peer: Peer) -> Iterator[PeerLink]:
        """As ``link``, by the connection of an earlier call if that is still good. For calls without a stream."""
        link = self.kept.find(peer)
        if link is None:
            with ExitStack() as opened:
                link = opened.enter_context(self.link(peer))
                self.kept.keep(peer, link, opened.pop_all())
        try:
            yield link
        except TransferError:
            self.kept.drop(peer, link)
            raise

    @contextmanager
    def link_by(self, cluster: str) -> Iterator[PeerLink]:
        """A connection to a peer by its name, or to any cluster by its address."""
        if "/" not in cluster:
            with self.link(known_peer(self.ledger, cluster)) as link:
                yield link
            return
        _, public = read_public(cluster, self.zookeeper_tls)
        if public.cluster == self.ledger.cluster:
            raise RequestError(f"{cluster} is this cluster itself", "Name another one")
        with self.link_to(public.cluster.name, public.receivers) as link:
            yield link

    @contextmanager
    def link_to(self, name: str, addresses: Sequence[str], cluster: ClusterId | None = None) -> Iterator[GrpcLink]:
        """A connection to the first receiver of a cluster that answers, by their ``host:port``.

        One of another cluster than ``cluster``, if that is given, is passed over: addresses are used again.
        """
        if not addresses:
            raise PeerUnavailableError(f"cluster {name} lists no receiver", "Start one there: walship up")
        from replication.link import grpc_client, tls  # deferred: most verbs call no other cluster

        credentials = tls.load(self.link_tls)
        last: ReplicationError = PeerUnavailableError(f"no receiver of {name} answers")
        for address in addresses:
            link = grpc_client.connect(
                address,
                name,
                self.ledger.cluster,
                tls=credentials,
                allow_plaintext=self.link_tls.allow_plaintext,
            )
            try:
                described = link.describe()
                if cluster is not None and described.cluster != cluster:
                    raise PeerUnavailableError(f"the receiver at {address} is of {described.cluster}, not {cluster}")
            except BaseException as error:
                link.close()
                if not may_succeed_later(error):
                    raise
                last = error
                continue
            with closing(link):
                yield link
            return
        raise PeerUnavailableError(f"no receiver of {name} answers: {last.what}", last.hint or "Is it running there?")


def may_succeed_later(error: BaseException) -> TypeGuard[ReplicationError]:
    """Whether a call may succeed later, or at another receiver: this one does not answer, or not now."""
    is_busy = isinstance(error, PeerRefusedError) and error.reason == Reason.NOT_READY
    return is_busy or isinstance(error, PeerUnavailableError)


def known_peer(ledger: Ledger, name: str) -> Peer:
    """The peer of that name; UnknownPeerError lists the peers that exist."""
    peers = ledger.rules.peers()
    for peer in peers:
        if peer.name == name:
            return peer
    known = ", ".join(peer.name for peer in peers) or "none yet; see walship definecluster"
    raise UnknownPeerError(f"cluster {ledger.cluster.name} has no peer {name!r}", f"Peers: {known}")


def with_root(zookeepers: str, name: str) -> str:
    """A ZooKeeper address with its root, which is ``/walship/NAME`` by default."""
    return zookeepers if "/" in zookeepers else f"{zookeepers}/walship/{name}"


def possible_quorums(zookeepers: str) -> list[Quorum]:
    """The quorums that an address may mean, likelier first. ConfigError when it is not ``host:port[,…]/root``."""
    given = Quorum.parse(zookeepers)
    return [given, *([Quorum(given.servers, f"/walship{given.root}")] if given.root.count("/") == 1 else [])]


def read_public(zookeepers: str, tls: ZookeeperTls | None = None) -> tuple[Quorum, Public]:
    """What a cluster publishes in ZooKeeper, and where; ``…/east`` also finds ``…/walship/east``.

    Raises:
        ConfigError: ``zookeepers`` is not ``host:port[,host:port]/root``.
        PeerUnavailableError: nothing answers there, or no cluster was ever started at that root.
    """
    from replication.coordination.zookeeper import connect_public  # deferred: most commands need no ZooKeeper

    problem: CoordinationError | None = None
    for quorum in possible_quorums(zookeepers):
        try:
            return quorum, connect_public(quorum.servers, quorum.root, tls=tls)
        except CoordinationError as error:
            problem = problem or error
    assert problem is not None, "there is at least one candidate"
    raise PeerUnavailableError(
        problem.what, problem.hint or "Check that the cluster runs there, and the address, root and TLS files"
    )


def _series(version: str) -> str:
    """The numbers that two versions must share: the major, and before 1.0 also the minor number."""
    numbers = version.split(".")
    return ".".join(numbers[:2]) if numbers[0] == "0" else numbers[0]
