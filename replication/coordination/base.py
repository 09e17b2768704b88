"""What coordination asks of a store, and the values it keeps there.

``Tree`` is the small protocol: versioned nodes, ephemeral ones among them, sessions and one-shot watches. It is
implemented over ZooKeeper (``zookeeper.py``) and in memory (``memory.py``); election, membership, roles, assignments
and announcements are written once above it (``session.py``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from replication.core.ids import ClusterId
from replication.core.roles import RoleState
from replication.errors import FormatError

Woken = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Node:
    """A node's content, its version (from 0) and the session that owns it when it is ephemeral, else 0."""

    content: bytes
    version: int
    owner: int


class Tree(Protocol):
    """A tree of nodes. Every call may raise CoordinationError, after which the outcome of a write is unknown.

    A watch is called at most once, from any thread, must not block, and says only "read again"; it is also called when
    the connection is lost. ``woken`` of ``start`` is called likewise at every change of the session's state.
    """

    def start(self, woken: Woken, timeout_s: float) -> None:
        """Connect; CoordinationError when that takes longer than ``timeout_s``."""

    def close(self) -> None:
        """End the session, its ephemeral nodes with it. Idempotent."""

    def begin_anew(self) -> None:
        """Take what the store has now, be it older than what was seen: its data were lost, or put back from a copy."""

    def session(self) -> int:
        """The id of the session when connected, else 0."""

    def get(self, path: str, watch: Woken | None = None) -> Node | None:
        """The node, or None when there is none; ``watch`` is set in both cases."""

    def children(self, path: str) -> tuple[str, ...]:
        """Names of the children, sorted; empty when the node does not exist."""

    def create(self, path: str, content: bytes, *, ephemeral: bool = False, sequential: bool = False) -> str | None:
        """Create and return the path; None when it exists or its parent does not."""

    def set(self, path: str, content: bytes, version: int = -1) -> int | None:
        """Write if ``version`` is the current one (-1: any) and return the new one; None if it is not or no node is."""

    def delete(self, path: str) -> None:
        """Delete; nothing happens when there is no such node."""

    def check(self, path: str, version: int) -> bool:
        """Whether ``version`` is in force, decided by the quorum among its writes, not by a server that may lag."""


@dataclass(frozen=True, slots=True)
class Public:
    """What a cluster shows to others: who it is, its version, and where its receivers listen (``host:port``)."""

    cluster: ClusterId
    version: str
    receivers: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """JSON."""
        return _json({"cluster": str(self.cluster), "version": self.version, "receivers": list(self.receivers)})

    @staticmethod
    def decode(content: bytes) -> Public:
        """Read the JSON form; FormatError when it is none."""
        fields = _fields(content, "public part")
        try:
            return Public(
                ClusterId.parse(fields["cluster"]), str(fields["version"]), tuple(map(str, fields["receivers"]))
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise FormatError(f"the public part lacks {error}") from None


@dataclass(frozen=True, slots=True)
class HostRecord:
    """A host of the cluster.

    ``store`` names storage that hosts share: workers whose hosts have the same non-empty one can read each other's
    files, at ``data_dir``. Empty for local disks. ``keeps_tables`` is False when the host is told to run no replay.
    ``identity`` tells its data directory from another's; empty when it is not known.
    """

    slot: str
    data_dir: str
    ledger_url: str
    store: str = ""
    keeps_tables: bool = True
    identity: str = ""

    def encode(self) -> bytes:
        """JSON."""
        return _json(asdict(self))

    @staticmethod
    def decode(content: bytes) -> HostRecord:
        """Read the JSON form; FormatError when it is none."""
        fields = _fields(content, "host node")
        try:
            texts = {name: str(fields[name]) for name in ("slot", "data_dir", "ledger_url", "store")}
            keeps, identity = bool(fields.get("keeps_tables", True)), str(fields.get("identity", ""))
            return HostRecord(**texts, keeps_tables=keeps, identity=identity)
        except KeyError as error:
            raise FormatError(f"the host node lacks {error}") from None


def keeps_tables(hosts: Iterable[HostRecord]) -> bool:
    """Whether a cluster replays into tables: unless every host that it has, alive or not, is told to run no replay."""
    told = [host.keeps_tables for host in hosts]
    return any(told) or not told


@dataclass(frozen=True, slots=True)
class Member:
    """A live worker, receiver or writer and what it says of itself."""

    name: str
    fields: dict[str, Any]
    session: int


@dataclass(frozen=True, slots=True)
class RoleRead:
    """A role and the version of its node, for a change conditional on it."""

    state: RoleState
    version: int


@dataclass(frozen=True, slots=True)
class AssignmentRead:
    """A worker's assignment as bytes, and the node's version."""

    content: bytes
    version: int


def encode_fields(fields: dict[str, Any]) -> bytes:
    """What a member says of itself, as JSON."""
    return _json(fields)


def decode_fields(content: bytes) -> dict[str, Any]:
    """Read the JSON form; FormatError when it is none."""
    return _fields(content, "member node")


def _json(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()


def _fields(content: bytes, what: str) -> dict[str, Any]:
    try:
        fields = json.loads(content)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise FormatError(f"the {what} in ZooKeeper holds {content[:80]!r}", "Another program writes below this root")
    return fields
