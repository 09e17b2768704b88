"""Nodes that rarely change and are read often: read again once a watch says that they may have changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from replication.coordination.base import Node, Tree, Woken

_KEPT_S = 30.0  # a watch may be lost
_T = TypeVar("_T")


class KnownNodes:
    """Nodes, and the names of children, as they were read, until a watch fires or the session ends. Safe for threads.

    What it returns may lag behind the writes of other processes by the time that a watch takes. It never lags behind
    this process, which calls ``forget`` when it writes. So it is for observing, and not for what a lease or a fence is
    built on.
    """

    def __init__(self, tree: Tree, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._tree = tree
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._session = 0
        self._until_s = 0.0
        self._forgotten = 0
        self._nodes: dict[str, Node] = {}
        self._children: dict[str, tuple[str, ...]] = {}
        self._watches: dict[str, Woken] = {}
        self._calls: list[Callable[[], None]] = []

    def get(self, path: str) -> Node | None:
        """The node, or None when it does not exist; CoordinationError as ``Tree.get``."""
        return self._read(self._nodes, path, self._tree.get) or None

    def children(self, path: str) -> tuple[str, ...]:
        """The names of a node's children; CoordinationError as ``Tree.children``."""
        return self._read(self._children, path, self._tree.children) or ()

    def call_when_changed(self, call: Callable[[], None]) -> None:
        """Have ``call`` called when something that was read may have changed; it must not block."""
        self._calls.append(call)

    def forget(self, path: str) -> None:
        """Read a node and its parent's children again: it was written to. What is being read meanwhile is not kept."""
        with self._lock:
            self._forgotten += 1
            self._nodes.pop(path, None)
            for parent in (path, path.rpartition("/")[0]):
                self._children.pop(parent, None)

    def _read(self, kept: dict[str, _T], path: str, read: Callable[[str, Woken], _T | None]) -> _T | None:
        session, now_s = self._tree.session(), self._monotonic()
        with self._lock:
            if session != self._session or now_s >= self._until_s:
                self._session, self._until_s = session, now_s + _KEPT_S
                self._nodes.clear()
                self._children.clear()
            known, forgotten = kept.get(path) if session else None, self._forgotten
            watch = self._watches.setdefault(path, partial(self._fired, path))
        if known is not None:
            return known
        found = read(path, watch)
        with self._lock:
            is_current = forgotten == self._forgotten
            if found and session and session == self._session and is_current:
                kept[path] = found
        return found

    def _fired(self, path: str) -> None:
        self.forget(path)
        with self._lock:
            self._watches.pop(path, None)
        for call in self._calls:
            call()
