"""A tree in memory for tests: sessions that expire or are cut off, watches that are delayed, calls that fail.

``MemoryEnsemble`` stands for the servers; each ``connect`` opens a session. It guarantees what ``base.Tree`` does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from replication.coordination.base import Node, Woken
from replication.coordination.session import Coordination
from replication.errors import CoordinationError

_T = TypeVar("_T")
Fault = Callable[[str, str], None]


@dataclass(slots=True)
class _Entry:
    content: bytes
    version: int = 0
    owner: int = 0
    made: int = 0
    watches: list[Woken] = field(default_factory=list)
    child_watches: list[Woken] = field(default_factory=list)


class MemoryEnsemble:
    """The nodes and sessions of one ZooKeeper.

    Attributes:
        fault: called with (call, path) before a call takes effect; raise CoordinationError in it to fail the call.
        fault_after: the same after the call took effect: the caller does not know the outcome.
    """

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self.fault_after: Fault | None = None
        self._lock = threading.RLock()
        self._nodes: dict[str, _Entry] = {"": _Entry(b"")}
        self._absent: dict[str, list[Woken]] = {}
        self._trees: list[MemoryTree] = []
        self._sessions = 0
        self._late: list[Woken] | None = None

    def connect(self, root: str, *, reread_s: float = 5.0) -> Coordination:
        """Open a session with the cluster at ``root``."""
        return Coordination(self.tree(), root, reread_s=reread_s)

    def tree(self) -> MemoryTree:
        """A tree whose session is not started yet."""
        tree = MemoryTree(self)
        with self._lock:
            self._trees.append(tree)
        return tree

    def expire(self, session: int) -> None:
        """End a session as the servers do: its ephemeral nodes are removed, and its client gets a new session."""
        with self._lock:
            self._end(session)
            for tree in self._trees:
                if tree.number == session:
                    tree.number = 0 if tree.cut else self._next_session()
                    self._fire([tree.woken])

    def cut(self, session: int) -> None:
        """Cut a client off: its calls fail until ``heal``. Its session stays alive until ``expire``."""
        with self._lock:
            for tree in self._trees:
                if tree.number == session:
                    tree.cut = True
                    self._fire([tree.woken])

    def heal(self) -> None:
        """Reconnect every client; those whose session expired meanwhile get a new one."""
        with self._lock:
            for tree in self._trees:
                if tree.cut:
                    tree.cut = False
                    tree.number = tree.number or self._next_session()
                    self._fire([tree.woken])

    def delay_watches(self) -> None:
        """Delay every watch from now on."""
        with self._lock:
            self._late = [] if self._late is None else self._late

    def release_watches(self) -> None:
        """Deliver the delayed watches, and stop delaying."""
        with self._lock:
            late, self._late = self._late or [], None
        self._fire(late)

    def _next_session(self) -> int:
        self._sessions += 1
        return self._sessions

    def _end(self, session: int) -> None:
        for path in [path for path, entry in self._nodes.items() if session and entry.owner == session]:
            self._remove(path)

    def _remove(self, path: str) -> None:
        removed = self._nodes.pop(path)
        self._fire([*removed.watches, *removed.child_watches])
        self._fire_parent(path)

    def _fire_parent(self, path: str) -> None:
        """Call the watches of which children the parent has."""
        parent = self._nodes.get(path.rpartition("/")[0])
        if parent is not None:
            watches, parent.child_watches = parent.child_watches, []
            self._fire(watches)

    def _fire(self, watches: list[Woken]) -> None:
        with self._lock:
            if self._late is not None:
                self._late.extend(watches)
                return
        for watch in watches:
            watch()


class MemoryTree:
    """One client of a ``MemoryEnsemble``: a ``Tree``."""

    def __init__(self, ensemble: MemoryEnsemble) -> None:
        self.number = 0
        self.cut = False
        self.woken: Woken = lambda: None
        self._ensemble = ensemble

    def start(self, woken: Woken, timeout_s: float) -> None:
        with self._ensemble._lock:
            self.woken = woken
            self.number = self._ensemble._next_session()

    def close(self) -> None:
        with self._ensemble._lock:
            self._ensemble._end(self.number)
            self.number = 0
            self._ensemble._trees = [tree for tree in self._ensemble._trees if tree is not self]

    def begin_anew(self) -> None:
        """No effect: this tree does not remember what it has seen."""

    def secure(self, root: str) -> None:
        """No effect: whoever has this tree may do everything."""

    def session(self) -> int:
        return 0 if self.cut else self.number

    def get(self, path: str, watch: Woken | None = None) -> Node | None:
        def act() -> Node | None:
            entry = self._ensemble._nodes.get(path)
            if watch is not None:
                (self._ensemble._absent.setdefault(path, []) if entry is None else entry.watches).append(watch)
            return None if entry is None else Node(entry.content, entry.version, entry.owner)

        return self._call("get", path, act)

    def children(self, path: str, watch: Woken | None = None) -> tuple[str, ...]:
        def act() -> tuple[str, ...]:
            if watch is not None and path in self._ensemble._nodes:
                self._ensemble._nodes[path].child_watches.append(watch)
            heads = (other.rpartition("/") for other in self._ensemble._nodes if other)
            return tuple(sorted(name for parent, _, name in heads if parent == path))

        return self._call("children", path, act)

    def create(self, path: str, content: bytes, *, ephemeral: bool = False, sequential: bool = False) -> str | None:
        def act() -> str | None:
            nodes = self._ensemble._nodes
            parent = nodes.get(path.rpartition("/")[0])
            new = path
            if parent is not None and sequential:
                new = f"{path}{parent.made:010d}"
            if parent is None or new in nodes:
                return None
            parent.made += 1
            nodes[new] = _Entry(content, owner=self.number if ephemeral else 0)
            self._ensemble._fire(self._ensemble._absent.pop(new, []))
            self._ensemble._fire_parent(new)
            return new

        return self._call("create", path, act)

    def replace(self, path: str, content: bytes) -> bool:
        def act() -> bool:
            if path not in self._ensemble._nodes:
                return False
            self._ensemble._remove(path)
            self._ensemble._nodes[path] = _Entry(content, owner=self.number)
            self._ensemble._fire_parent(path)
            return True

        return self._call("replace", path, act)

    def set(self, path: str, content: bytes, version: int = -1) -> int | None:
        def act() -> int | None:
            entry = self._ensemble._nodes.get(path)
            if entry is None or version not in (-1, entry.version):
                return None
            entry.content, entry.version = content, entry.version + 1
            watches, entry.watches = entry.watches, []
            self._ensemble._fire(watches)
            return entry.version

        return self._call("set", path, act)

    def delete(self, path: str) -> None:
        def act() -> None:
            if path in self._ensemble._nodes:
                self._ensemble._remove(path)

        self._call("delete", path, act)

    def check(self, path: str, version: int) -> bool:
        def act() -> bool:
            entry = self._ensemble._nodes.get(path)
            return entry is not None and entry.version == version

        return self._call("check", path, act)

    def _call(self, call: str, path: str, act: Callable[[], _T]) -> _T:
        with self._ensemble._lock:
            if self.cut or not self.number:
                raise CoordinationError(f"{call} {path}: not connected")
            if self._ensemble.fault is not None:
                self._ensemble.fault(call, path)
            done = act()
            if self._ensemble.fault_after is not None:
                self._ensemble.fault_after(call, path)
            return done
