"""Ephemeral nodes: members, and candidates of elections."""

from __future__ import annotations

import threading
from typing import Any
from uuid import uuid4

from replication.coordination.base import encode_fields
from replication.coordination.keeper import Keeper
from replication.coordination.known_nodes import KnownNodes
from replication.errors import CoordinationError


class Membership:
    """One member. Its node is recreated in each new session until it leaves.

    While the node is another process's, ``superseded`` is true and it stays away. It returns when that node is gone:
    the other may have been a copy that was started by mistake.
    """

    def __init__(self, keeper: Keeper, path: str, fields: dict[str, Any]) -> None:
        self._keeper = keeper
        self._path = path
        self._content = encode_fields(fields)
        self._lock = threading.Lock()
        self._left = False
        self.superseded = False
        with self._lock:
            self._replace()
        keeper.keep(self)

    def update(self, fields: dict[str, Any]) -> None:
        """Change the node's fields, in this session and later ones. Written at once when a session is alive."""
        with self._lock:
            self._content = encode_fields(fields)
        self.refresh()

    def leave(self) -> None:
        """Delete the node if it is this process's, and stop refreshing it. Idempotent."""
        self._keeper.drop(self)
        with self._lock:
            self._left = True
            node = self._keeper.tree.get(self._path)
            if node is not None and self._keeper.owned(node.owner):
                self._keeper.tree.delete(self._path)

    def refresh(self) -> None:
        """Recreate the node after a lost session, and write changed fields."""
        with self._lock:
            session = self._keeper.session()
            if self._left or not session:
                return
            node = self._keeper.tree.get(self._path, self._keeper.wake)
            self.superseded = node is not None and node.owner != session and not self._keeper.owned(node.owner)
            if node is None:
                self._keeper.tree.create(self._path, self._content, ephemeral=True)
            elif node.owner == session:
                if node.content != self._content:
                    self._keeper.tree.set(self._path, self._content, node.version)
            elif not self.superseded:
                self._replace()

    def _replace(self) -> None:
        for _ in range(3):
            tree = self._keeper.tree
            if tree.create(self._path, self._content, ephemeral=True) or tree.replace(self._path, self._content):
                return
        raise CoordinationError(f"{self._path} cannot be created", "Is the cluster running? walship up --config FILE")


class Candidacy:
    """A candidate of an election. Read ``leads`` before every round of work; it is not proof (rule 6)."""

    def __init__(self, keeper: Keeper, known: KnownNodes, parent: str, name: str) -> None:
        self._keeper = keeper
        self._known = known
        self._parent = parent
        self._name = name
        self._id = uuid4().hex

    def leads(self) -> bool:
        """Whether this candidate is the oldest, in a live session. Creates its node when it has none."""
        known, session = self._known, self._keeper.session()
        if not session:
            return False
        candidates = in_order(known.children(self._parent))
        if not any(node.startswith(self._id) for node in candidates):
            tree = self._keeper.tree
            if tree.create(f"{self._parent}/{self._id}-", self._name.encode(), ephemeral=True, sequential=True) is None:
                raise CoordinationError(f"there is no cluster at {self._parent}", "Start it: walship up --config FILE")
            candidates = in_order(tree.children(self._parent))
            known.forget(self._parent)
        if not candidates or not candidates[0].startswith(self._id):
            return False
        node = known.get(f"{self._parent}/{candidates[0]}")
        return node is not None and node.owner == session

    def withdraw(self) -> None:
        """Delete this candidate's nodes."""
        for node in self._keeper.tree.children(self._parent):
            if node.startswith(self._id):
                self._keeper.tree.delete(f"{self._parent}/{node}")
                self._known.forget(f"{self._parent}/{node}")


def in_order(nodes: tuple[str, ...]) -> list[str]:
    """Candidates, oldest first."""
    return sorted(nodes, key=lambda node: node.rpartition("-")[2])
