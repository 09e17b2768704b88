"""The search for the ACTIVE cluster, from one whose writers are refused: by successions, then at those that send here.

Each hop opens the next cluster on this machine and goes on from that cluster's ledger. So every address was defined by
a person or named by the cluster itself. Epochs only grow along the way: the search never ends at a cluster that is
behind.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from peer.client.contacts import Contacts
from peer.client.opened import OpenedParts
from replication.config import Config
from replication.coordination.paths import Quorum
from replication.coordination.tls import ZookeeperTls
from replication.core.ids import ClusterId
from replication.core.roles import Role
from replication.errors import ConfigError, NoWorkerError, ReadOnlyClusterError, ReplicationError
from replication.ledger.base import Ledger
from replication.roles.active import address_of, known_active

HOPS_MAX = 8
_CONNECT_S = 1.0


@dataclass(frozen=True, slots=True)
class OpenedCluster:
    """An opened cluster on this host; ``epoch`` is its role epoch, if it is ACTIVE."""

    config: Config
    parts: OpenedParts
    epoch: int = 0

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.config.cluster.name


@dataclass(slots=True)
class ActiveSearch:
    """One search.

    Args:
        open_at: opens the cluster at a ZooKeeper address on this machine. Raises ReplicationError if it is not a host.
        newest: the highest role epoch that is known; ACTIVE clusters below it are behind.

    Attributes:
        notes: what was found at each cluster, for the error.
    """

    open_at: Callable[[str], OpenedCluster]
    newest: int
    notes: list[str] = field(default_factory=list)

    def run(self, begin: OpenedCluster) -> OpenedCluster | None:
        """The ACTIVE cluster, which may be ``begin`` itself; None when none is found. Others are closed again.

        Raises:
            ReadOnlyClusterError: this machine is not a host of the next one.
        """
        here, visited = begin, {begin.parts.ledger.cluster}
        for _ in range(HOPS_MAX):
            if self._is_active(here):
                return OpenedCluster(here.config, here.parts, self.newest)
            address = self._next(here, visited)
            if here is not begin:
                here.parts.close()
            if not address:
                return None
            try:
                here = self.open_at(address)
            except (NoWorkerError, ConfigError) as error:
                raise ReadOnlyClusterError(f"{'; '.join(self.notes)}; {error.what}", error.hint) from None
            except ReplicationError as error:
                self.notes.append(str(error))
                return None
            visited.add(here.parts.ledger.cluster)
        if here is not begin:
            here.parts.close()
        return None

    def _is_active(self, place: OpenedCluster) -> bool:
        try:
            state = place.parts.coordination.role().state
        except ReplicationError as error:
            self.notes.append(f"{place.name} does not answer ({error.what})")
            return False
        self._note(place.name, state.role.value, state.epoch)
        is_behind = state.epoch < self.newest
        self.newest = max(self.newest, state.epoch)
        return state.role is Role.ACTIVE and not is_behind

    def _next(self, place: OpenedCluster, visited: set[ClusterId]) -> str:
        """The address of the cluster to go on with: an ACTIVE one, or the successor, which knows more."""
        ledger = place.parts.ledger
        contacts = Contacts(ledger, place.config.tls, ZookeeperTls.of(place.config.zookeeper), place.parts.links)
        try:
            candidates = list(_candidates(ledger))
        except ReplicationError as error:
            self.notes.append(f"the ledger of {place.name} does not answer ({error.what})")
            return ""
        for cluster, address, is_successor in candidates:
            if cluster in visited or not address:
                continue
            if not _listens(address):
                self.notes.append(f"{cluster.name} does not answer")
                continue
            try:
                there = contacts.reach(cluster.name, address).described
            except ReplicationError as error:
                self.notes.append(f"{cluster.name} does not answer ({error.what})")
                continue
            is_active = there.role == Role.ACTIVE.value
            self._note(cluster.name, there.role, there.role_epoch)
            if there.cluster == cluster and there.role_epoch >= self.newest and (is_active or is_successor):
                return address
        return ""

    def _note(self, name: str, role: str, epoch: int) -> None:
        self.notes.append(f"{name} is {role} (epoch {epoch})")


def _listens(address: str) -> bool:
    """Whether a ZooKeeper server takes connections there; a lost site is found out sooner than by its time-outs."""
    for server in Quorum.parse(address).servers.split(","):
        host, _, port = server.rpartition(":")
        with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S):
            return True
    return False


def _candidates(ledger: Ledger) -> Iterator[tuple[ClusterId, str, bool]]:
    """The clusters to ask, with their addresses, and whether it is the last known successor."""
    if (active := known_active(ledger)) is not None:
        yield active.cluster, active.zookeepers, True
    for source in dict.fromkeys(route.source for route in ledger.landing.routes()):
        yield source, address_of(ledger, source), False
    for peer in ledger.rules.peers():
        yield peer.cluster, peer.zookeepers, False
