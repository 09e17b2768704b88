"""Nodes that rarely change and are read every second: read again once a watch says that they may have changed."""

from __future__ import annotations

import threading

from replication.coordination.base import Node, Tree


class KnownNodes:
    """The content of nodes as it was read, as long as no watch fired and the session is the same. Safe for threads.

    What it returns may lag behind the writes of other processes by the time that a watch takes. It never lags behind
    this process, which calls ``forget`` when it writes. So it is for observing, and not for what a lease or a fence is
    built on. Which nodes there are is not remembered.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._lock = threading.Lock()
        self._session = 0
        self._forgotten = 0
        self._nodes: dict[str, Node] = {}

    def get(self, path: str) -> Node | None:
        """The node, or None when it does not exist; CoordinationError as ``Tree.get``."""
        session, changed = self._tree.session(), threading.Event()
        with self._lock:
            if session != self._session:
                self._session, self._nodes = session, {}
            known, forgotten = self._nodes.get(path) if session else None, self._forgotten
        if known is not None:
            return known

        def fired() -> None:
            changed.set()
            self.forget(path)

        node = self._tree.get(path, fired)
        with self._lock:
            is_current = not changed.is_set() and forgotten == self._forgotten
            if node is not None and session and session == self._session and is_current:
                self._nodes[path] = node
        return node

    def forget(self, path: str) -> None:
        """Read a node again: it was written to. What is being read meanwhile is not kept."""
        with self._lock:
            self._forgotten += 1
            self._nodes.pop(path, None)
