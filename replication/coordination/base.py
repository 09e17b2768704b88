"""The protocol of a coordination store, and the values that are kept there.

``Tree`` is the protocol: versioned nodes, which may be ephemeral, sessions and one-shot watches. It is implemented over
ZooKeeper (``zookeeper.py``). Election, membership, roles, assignments and announcements are implemented on top of it
(``session.py``).
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, Protocol

from replication.core.ids import ClusterId
from replication.core.roles import RoleState
from replication.errors import FormatError
from replication.settings import split_address

Woken = Callable[[], None]
_RECEIVERS_CHARS_MAX = 16 << 10


@dataclass(frozen=True, slots=True)
class Node:
    """A node's content, its version (from 0), and the session that owns it: 0 unless it is ephemeral."""

    content: bytes
    version: int
    owner: int


class Tree(Protocol):
    """A tree of nodes. Every call may raise CoordinationError; the outcome of a write is then unknown.

    A watch is called at most once, from any thread, when the node, or which children it has, may have changed or the
    connection is lost. It must not block, and the caller must read again. Equal watches of a node may count as one.
    ``start``'s ``woken`` is called at every change of the session's state.
    """

    def start(self, woken: Woken, timeout_s: float) -> None:
        """Connect; CoordinationError when that takes longer than ``timeout_s``."""

    def close(self) -> None:
        """End the session and remove its ephemeral nodes. Idempotent."""

    def begin_anew(self) -> None:
        """Accept the store's present state even if it is older than what was read: its data were lost or restored."""

    def session(self) -> int:
        """The id of the session when connected, else 0."""

    def get(self, path: str, watch: Woken | None = None) -> Node | None:
        """Return the node, or None when it does not exist; sets ``watch`` in both cases."""

    def children(self, path: str, watch: Woken | None = None) -> tuple[str, ...]:
        """Names of the children, sorted. Empty when the node does not exist, and then ``watch`` is not set."""

    def create(self, path: str, content: bytes, *, ephemeral: bool = False, sequential: bool = False) -> str | None:
        """Create a node and return its path; None when the node exists or its parent does not."""

    def replace(self, path: str, content: bytes) -> bool:
        """Delete a node and create it as this session's, in one step; False, and no effect, when it does not exist."""

    def set(self, path: str, content: bytes, version: int = -1) -> int | None:
        """Write if ``version`` is current (-1: any); return the new version, or None if it is not or no node exists."""

    def delete(self, path: str) -> None:
        """Delete a node; no effect when it does not exist."""

    def secure(self, root: str) -> None:
        """Let only the cluster change nodes at and below its root. ConfigError when they are another one's."""

    def check(self, path: str, version: int) -> bool:
        """Whether ``version`` is current: decided by the quorum, in the order of writes, not by a server that lags."""


@dataclass(frozen=True, slots=True)
class Public:
    """What other clusters may read: the cluster's id, its version, and its receivers' addresses (``host:port``).

    Of the addresses, the first 16 KiB count: assignments of workers hold them for every peer.
    """

    cluster: ClusterId
    version: str
    receivers: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Encode as JSON."""
        receivers = _first(self.receivers)
        return encode_fields({"cluster": str(self.cluster), "version": self.version, "receivers": list(receivers)})

    @staticmethod
    def decode(content: bytes) -> Public:
        """Decode JSON; FormatError when it is malformed."""
        fields = decode_fields(content, "public part")
        try:
            receivers = _first(map(str, fields["receivers"]))
            for address in receivers:
                split_address(address)
            return Public(ClusterId.parse(fields["cluster"]), str(fields["version"]), receivers)
        except ValueError as error:
            raise FormatError(f"the public part names no receiver: {str(error)[:300]}") from None
        except (KeyError, TypeError, AttributeError) as error:
            raise FormatError(f"the public part lacks {error}") from None


def _first(receivers: Iterable[str]) -> tuple[str, ...]:
    """The first receivers, up to ``_RECEIVERS_CHARS_MAX``."""
    sizes = accumulate(map(len, receivers := tuple(receivers)))
    return receivers[: bisect_right(tuple(sizes), _RECEIVERS_CHARS_MAX)]


@dataclass(frozen=True, slots=True)
class HostRecord:
    """A host of the cluster.

    ``keeps_tables`` is False when the host is configured to run no replay. ``identity`` is the id of its data
    directory; empty when unknown. ``lease_s`` is for how long its writers ack without a confirmed role; 0 when unknown.
    """

    slot: str
    data_dir: str
    ledger_url: str
    keeps_tables: bool = True
    identity: str = ""
    lease_s: float = 0.0

    def encode(self) -> bytes:
        """Encode as JSON."""
        return encode_fields(asdict(self))

    @staticmethod
    def decode(content: bytes) -> HostRecord:
        """Decode JSON; FormatError when it is malformed."""
        fields = decode_fields(content, "host node")
        try:
            texts = {name: str(fields[name]) for name in ("slot", "data_dir", "ledger_url")}
            keeps, identity = bool(fields.get("keeps_tables", True)), str(fields.get("identity", ""))
            lease_s = float(fields.get("lease_s", 0.0))
            return HostRecord(**texts, keeps_tables=keeps, identity=identity, lease_s=lease_s)
        except KeyError as error:
            raise FormatError(f"the host node lacks {error}") from None


def keeps_tables(hosts: Iterable[HostRecord]) -> bool:
    """Whether a cluster replays into tables: False only if all its hosts, alive or not, are configured not to."""
    configured = [host.keeps_tables for host in hosts]
    return any(configured) or not configured


@dataclass(frozen=True, slots=True)
class Member:
    """A live worker, receiver or writer and the fields of its node."""

    name: str
    fields: dict[str, Any]
    session: int


@dataclass(frozen=True, slots=True)
class RoleRead:
    """A role and the version of its node, for conditional changes."""

    state: RoleState
    version: int


def encode_fields(fields: dict[str, Any]) -> bytes:
    """Encode as JSON."""
    return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()


def decode_fields(content: bytes, what: str = "member node") -> dict[str, Any]:
    """Decode JSON; FormatError when it is malformed."""
    try:
        fields = json.loads(content)
    except (RecursionError, ValueError):
        fields = None
    if not isinstance(fields, dict):
        raise FormatError(f"the {what} in ZooKeeper holds {content[:80]!r}", "Another program writes below this root")
    return fields
