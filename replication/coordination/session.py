"""A cluster's coordination as one process sees it: ``Coordination`` over any ``Tree``.

Every value read may be stale at once, and a session may end at any time without notice. So nothing here is proof.
Leadership and membership are read again once a watch says that they may have changed, or in a new session. Decisions
are fenced by the ledger's term. Assignments and roles change conditionally on a version. A role that a lease depends on
is confirmed by the quorum.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, TypeVar

from replication.coordination.base import HostRecord, Member, Node, Public, RoleRead, Tree, Woken, decode_fields
from replication.coordination.keeper import LOST_DATA_S, REREAD_S, Keeper, Subscription
from replication.coordination.known_nodes import KnownNodes
from replication.coordination.membership import Candidacy, Membership, in_order
from replication.coordination.paths import NODE_BYTES_MAX, Election, MemberKind, Paths
from replication.core.ids import ClusterId
from replication.core.roles import RoleState
from replication.errors import ConfigError, CoordinationError, NotLeaderError, RequestError, StaleEpochError

_TRIES = 8
_T = TypeVar("_T")


class Coordination:
    """A session with the ZooKeeper of one cluster. Thread-safe; close it, or use it as a context.

    Every call may raise CoordinationError when ZooKeeper is unreachable. Reading again later is always safe.

    Args:
        tree: the store; started and closed here.
        connect_timeout_s: how long the first connection may take.
        reread_s: watched nodes and own members are read again at least this often.
        lost_data_s: after servers have refused this client for so long, it accepts that they have lost data.
    """

    def __init__(
        self,
        tree: Tree,
        root: str,
        *,
        connect_timeout_s: float = 15.0,
        reread_s: float = REREAD_S,
        lost_data_s: float = LOST_DATA_S,
    ) -> None:
        self.paths = Paths(root)
        self._tree = tree
        self._known = KnownNodes(tree)
        self._keeper = Keeper(tree, root, reread_s, connect_timeout_s, lost_data_s)
        self._root: _Root | None = None

    def __enter__(self) -> Coordination:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session: its members and candidates are removed at once, its thread is joined. Idempotent."""
        self._keeper.close()

    def establish(
        self, cluster: ClusterId, version: str, former: Collection[ClusterId] = (), role: RoleState | None = None
    ) -> None:
        """Create the cluster's missing nodes: public part, role, announcements. Idempotent.

        A root of one of ``former``, the cluster's earlier incarnations, is taken over. Its assignments are deleted,
        since receivers may refuse their terms. The role is ACTIVE at first. A stored role with a lower epoch than
        ``role`` comes from lost data and is replaced by ``role``.

        Raises:
            ConfigError: the root belongs to another cluster, or to another incarnation of this one.
        """
        if self._root is None:
            establish = partial(self.establish, cluster, version, former)
            self._root = _Root(self, establish, self._keeper, role)
            self._keeper.keep(self._root)
        for path in self.paths.parents:
            self._tree.create(path, b"")
        self._tree.secure(self.paths.root)
        self._tree.create(self.paths.role, (role or RoleState()).encode())  # ``role`` at once: never briefly ACTIVE
        self._tree.create(self.paths.announcements, b"")
        self._tree.create(self.paths.public, Public(cluster, version).encode())
        public = self.public()
        if public.cluster in former:
            for slot in self._tree.children(self.paths.assignments):
                self._delete(self.paths.assignment(slot))
            self.publish(Public(cluster, version))
            public = self.public()
        if public.cluster != cluster:
            raise ConfigError(
                f"the ZooKeeper root {self.paths.root} belongs to {public.cluster}, not to {cluster}",
                "Give each cluster its own root or ZooKeeper",
            )
        read = self.role()
        if role is not None and read.state.epoch < role.epoch:
            with contextlib.suppress(StaleEpochError):  # another process of this cluster set it first
                self.set_role(role, read.version)

    def public(self) -> Public:
        """Read the public part; CoordinationError when no cluster was established at this root."""
        node = self._known.get(self.paths.public)
        if node is None:
            raise self._no_cluster()
        return Public.decode(node.content)

    def publish(self, public: Public) -> None:
        """Replace the public part if it differs. NotLeaderError when another master wrote first."""
        known = self._known.get(self.paths.public)
        if known is not None and known.content == public.encode():
            return
        node = self._tree.get(self.paths.public)
        if node is None:
            raise self._no_cluster()
        if node.content != public.encode() and self._set(self.paths.public, public.encode(), node.version) is None:
            raise NotLeaderError(f"{self.paths.public} was written by another master")

    def role(self) -> RoleRead:
        """Read the role, confirmed by the quorum as in force at some moment during this call; valid for a lease."""
        for _ in range(_TRIES):
            node = self._tree.get(self.paths.role)
            if node is None:
                raise self._no_cluster()
            if self._tree.check(self.paths.role, node.version):
                return _role(node)
        raise CoordinationError(f"the role of {self.paths.root} changes faster than it can be read")

    def set_role(self, state: RoleState, version: int) -> int:
        """Change the role if ``version`` is current; return the new version. StaleEpochError otherwise."""
        written = self._set(self.paths.role, state.encode(), version)
        if written is None:
            raise StaleEpochError(
                f"the role of {self.paths.root} was changed by another process",
                "Check the role with walship status, then try again",
            )
        return written

    def watch_role(self, deliver: Callable[[RoleRead], None]) -> Subscription[RoleRead]:
        """Deliver the role now and after each change. It may be stale: confirm a lease with ``role()``."""
        return self._watch(self.paths.role, _role, deliver)

    def put_host(self, host: HostRecord) -> None:
        """Write or replace the record of one host. Raises ConfigError: the slot belongs to another data directory."""
        for _ in range(_TRIES):
            known = self._tree.get(self.paths.host(host.slot))
            if known is not None:
                self._check_same(HostRecord.decode(known.content), host)
            if self._put(self.paths.host(host.slot), host.encode(), known) is not None:
                break  # else another process wrote since, perhaps one of another data directory
        else:
            raise self._no_cluster()
        if self._root is not None:
            self._root.host = host

    def _put(self, path: str, content: bytes, known: Node | None) -> int | str | None:
        return self._create(path, content) if known is None else self._set(path, content, known.version)

    def _check_same(self, record: HostRecord, host: HostRecord) -> None:
        if record.identity and host.identity and record.identity != host.identity:
            is_same = record.data_dir == host.data_dir
            lost = f"If only its file host.id was lost, write {record.identity} to it. Else " if is_same else ""
            raise ConfigError(
                f"the host slot {host.slot} of {self.paths.root} belongs to the data directory {record.data_dir} "
                f"(id {record.identity[:8]}), not to {'this one' if is_same else host.data_dir}",
                f"{lost}{'give' if lost else 'Give'} each host a slot of its own ([cluster] host) that was never used"
                " before",
            )

    def hosts(self) -> tuple[HostRecord, ...]:
        """Every host registered and not removed, by slot."""
        nodes = [self._known.get(self.paths.host(slot)) for slot in self._known.children(self.paths.hosts)]
        return tuple(HostRecord.decode(node.content) for node in nodes if node is not None)

    def remove_host(self, slot: str) -> None:
        """Delete a host's record and its assignment."""
        if self._root is not None and self._root.host is not None and self._root.host.slot == slot:
            self._root.host = None
        for path in (self.paths.assignment(slot), self.paths.host(slot)):
            self._delete(path)

    def enrol(self, kind: MemberKind, name: str, fields: dict[str, Any]) -> Membership:
        """Create an ephemeral member node ``name``, recreated in each later session; ``members`` returns its fields.

        A node left over from an earlier process is replaced at once. When another process takes the name later, this
        member stays away until that one is gone (``Membership.superseded``).
        """
        return Membership(self._keeper, self.paths.member(kind, name), fields)

    def members(self, kind: MemberKind) -> tuple[Member, ...]:
        """The live members of a kind, by name."""
        nodes = self._tree if kind is MemberKind.WRITERS else self._known  # role changes wait for writers
        found = []
        for name in nodes.children(self.paths.members(kind)):
            node = nodes.get(self.paths.member(kind, name))
            if node is not None:
                found.append(Member(name, decode_fields(node.content), node.owner))
        return tuple(found)

    def has_enrolled(self, kind: MemberKind, name: str) -> bool:
        """Whether the member of that name belongs to this process, and not to an earlier one."""
        node = self._tree.get(self.paths.member(kind, name))
        return node is not None and self._keeper.owned(node.owner)

    def campaign(self, name: str, election: Election = Election.MASTERS) -> Candidacy:
        """Become a candidate of an election; ``Candidacy.leads()`` says whether it leads."""
        return Candidacy(self._keeper, self._known, self.paths.candidates(election), name)

    def candidates(self, election: Election = Election.MASTERS) -> tuple[str, ...]:
        """The names of an election's candidates, the leader first; for display."""
        parent = self.paths.candidates(election)
        nodes = [self._tree.get(f"{parent}/{node}") for node in in_order(self._tree.children(parent))]
        return tuple(node.content.decode() for node in nodes if node is not None)

    def leader(self, election: Election = Election.MASTERS) -> str | None:
        """The name of an election's leader, None without candidates; for display."""
        return next(iter(self.candidates(election)), None)

    def assignments(self) -> dict[str, Node]:
        """Every assignment, by slot."""
        slots = self._known.children(self.paths.assignments)
        nodes = {slot: self._known.get(self.paths.assignment(slot)) for slot in slots}
        return {slot: node for slot, node in nodes.items() if node is not None}

    def set_assignment(self, slot: str, content: bytes, version: int) -> int:
        """Write an assignment if ``version`` is current (-1: it must not exist); return the new version.

        Raises:
            NotLeaderError: another master wrote it since.
            RequestError: it is larger than 256 KiB; nothing was sent.
        """
        path = self.paths.assignment(slot)
        if version < 0:
            written = None if self._create(path, content) is None else 0
        else:
            written = self._set(path, content, version)
        if written is None:
            raise NotLeaderError(f"the assignment of {slot} was written by another master")
        return written

    def watch_assignment(self, slot: str, deliver: Callable[[Node], None]) -> Subscription[Node]:
        """Deliver the assignment once it exists, and after each change."""
        return self._watch(self.paths.assignment(slot), lambda node: node, deliver)

    def announce(self) -> int:
        """Announce that rules or peers changed in the ledger; return the new count."""
        count = self._set(self.paths.announcements, b"", -1)
        if count is None:
            raise self._no_cluster()
        return count

    def call_when_changed(self, call: Callable[[], None]) -> None:
        """Have ``call`` called, from any thread, when hosts, members, candidates or assignments may have changed.

        It must not block. Only what was read in this session is noticed.
        """
        self._known.call_when_changed(call)

    def watch_announcements(self, deliver: Callable[[int], None]) -> Subscription[int]:
        """Deliver the count now and after changes; quick successive changes may be delivered as one."""
        return self._watch(self.paths.announcements, lambda node: node.version, deliver)

    def _watch(self, path: str, of: Callable[[Node], _T], deliver: Callable[[_T], None]) -> Subscription[_T]:
        def read(wake: Woken) -> _T | None:
            node = self._tree.get(path, wake)
            return None if node is None else of(node)

        return Subscription(self._keeper, read, deliver)

    def _create(self, path: str, content: bytes) -> str | None:
        _check_size(path, content)
        created = self._tree.create(path, content)
        self._known.forget(path)
        return created

    def _set(self, path: str, content: bytes, version: int) -> int | None:
        _check_size(path, content)
        written = self._tree.set(path, content, version)
        self._known.forget(path)
        return written

    def _delete(self, path: str) -> None:
        self._tree.delete(path)
        self._known.forget(path)

    def _no_cluster(self) -> CoordinationError:
        return CoordinationError(f"there is no cluster at {self.paths.root}", "Start it: walship up --config FILE")


def _role(node: Node) -> RoleRead:
    return RoleRead(RoleState.decode(node.content), node.version)


def _check_size(path: str, content: bytes) -> None:
    """Refuse oversized content, since ZooKeeper would only close the connection."""
    if len(content) > NODE_BYTES_MAX:
        raise RequestError(
            f"{path} would hold {len(content)} bytes, more than {NODE_BYTES_MAX}", "Use fewer or larger chunks"
        )


class _Root:
    """Recreates the cluster's nodes when ZooKeeper has lost them while this process runs."""

    def __init__(
        self, cluster: Coordination, establish: Callable[..., None], keeper: Keeper, role: RoleState | None
    ) -> None:
        self._cluster = cluster
        self._establish = establish
        self._keeper = keeper
        self._role = role
        self.host: HostRecord | None = None

    def refresh(self) -> None:
        """Recreate missing nodes, and replace a role of a lower epoch that another process has restored."""
        tree, wake = self._keeper.tree, self._keeper.wake
        node = tree.get(self._cluster.paths.role, wake)
        stored = None if node is None else RoleState.decode(node.content)
        if stored is not None and (self._role is None or stored.epoch >= self._role.epoch):
            self._role = stored
        else:
            self._establish(role=self._role)
        host = self.host  # each process recreates its own host's record
        if host is not None and tree.get(self._cluster.paths.host(host.slot), wake) is None:
            self._cluster.put_host(host)
