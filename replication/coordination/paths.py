"""Every node walship keeps in ZooKeeper, in one place.

::

    <root>/public               json: cluster id, version, receivers; the only part other clusters read
    <root>/role                 json: ACTIVE or STANDBY, with its epoch
    <root>/peers                empty; its version is bumped when rules or peers change in the ledger
    <root>/masters/<id>-<seq>   ephemeral, sequential: candidates; the lowest leads
    <root>/replayers/<id>-<seq> the same, for replay
    <root>/derivers/<id>-<seq>  the same, for deriving tables
    <root>/workers/<slot>       ephemeral      <root>/receivers/<slot>  ephemeral, json: address
    <root>/writers/<id>         ephemeral      <root>/hosts/<slot>      json: data directory, ledger, store
    <root>/assignments/<slot>   json: what one worker ships; written by the master, at most 256 KiB
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv6Address

from replication.core.ids import ROOT, check_name
from replication.errors import ConfigError

NODE_BYTES_MAX = 256 * 1024
PORT = 2181  # the default for servers without a port
_SERVER = re.compile(r"(?P<host>[A-Za-z0-9._-]{1,253}|\[(?P<v6>[0-9A-Fa-f:.]+)\])(:(?P<port>[0-9]{1,5}))?\Z")


class MemberKind(StrEnum):
    """Kinds of ephemeral members."""

    WORKERS = "workers"
    RECEIVERS = "receivers"
    WRITERS = "writers"


class Election(StrEnum):
    """The tasks that one elected host at a time performs."""

    MASTERS = "masters"
    REPLAYERS = "replayers"
    DERIVERS = "derivers"


@dataclass(frozen=True, slots=True)
class Quorum:
    """Where a cluster's ZooKeeper is: ``zk1:2181,zk2:2181`` and the cluster's root in it."""

    servers: str
    root: str

    def __str__(self) -> str:
        """``zk1:2181,zk2:2181/walship/east``."""
        return self.servers + self.root

    @staticmethod
    def parse(text: str) -> Quorum:
        """Parse ``host[:port][,host[:port]…]/root``; the default port is 2181. ConfigError when it is malformed."""
        servers, slash, root = text.strip().partition("/")
        root = (slash + root).rstrip("/")
        hosts = [_server(host) for host in servers.split(",")]
        if not all(hosts) or not ROOT.match(root):
            raise ConfigError(
                f"{text!r} names no cluster in ZooKeeper",
                "Write host:port[,host:port...]/root, for example zk1:2181,zk2:2181,zk3:2181/walship/east",
            )
        return Quorum(",".join(filter(None, hosts)), root)


def _server(text: str) -> str | None:
    """``host:port`` with the default port; None when it is malformed."""
    found = _SERVER.match(text)
    if found is None or int(found["port"] or PORT) > 65535:
        return None
    if found["v6"] is not None:
        try:
            IPv6Address(found["v6"])
        except ValueError:
            return None
    return f"{found['host']}:{found['port'] or PORT}"


class Paths:
    """The nodes of the cluster at ``root``.

    Attributes:
        public: the part that other clusters may read.
        role: the role and its epoch.
        announcements: the node whose version changes when the ledger's rules must be read again.
        hosts: the parent of the hosts.
        assignments: the parent of the assignments.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.public, self.role, self.announcements = f"{root}/public", f"{root}/role", f"{root}/peers"
        self.hosts, self.assignments = f"{root}/hosts", f"{root}/assignments"

    def candidates(self, election: Election) -> str:
        """The parent of an election's candidates."""
        return f"{self.root}/{election.value}"

    def members(self, kind: MemberKind) -> str:
        """The parent of the members of ``kind``."""
        return f"{self.root}/{kind.value}"

    def member(self, kind: MemberKind, name: str) -> str:
        """One member."""
        return f"{self.members(kind)}/{check_name(name, kind.value)}"

    def host(self, slot: str) -> str:
        """One host."""
        return f"{self.hosts}/{check_name(slot, 'host slot')}"

    def assignment(self, slot: str) -> str:
        """The assignment of the worker on ``slot``."""
        return f"{self.assignments}/{check_name(slot, 'host slot')}"

    @property
    def parents(self) -> tuple[str, ...]:
        """Every node that must exist before members can be created, parents first."""
        ancestors = self.root.split("/")[1:]
        chain = tuple("/" + "/".join(ancestors[: n + 1]) for n in range(len(ancestors)))
        elections, kinds = map(self.candidates, Election), map(self.members, MemberKind)
        return (*chain, *elections, self.hosts, self.assignments, *kinds)
