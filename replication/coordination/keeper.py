"""The one thread of a session: it recreates ephemeral nodes after a lost session and delivers watched values.

A watch or session event only wakes the thread, which then reads everything again. It also reads again every
``reread_s``, in case a watch was lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from replication import log
from replication.coordination.base import Tree, Woken
from replication.errors import CoordinationError, ReplicationError

#: Every node that matters is watched: this only bounds how long a lost watch goes unnoticed.
REREAD_S = 30.0
#: Servers that refuse a client for this time, because it has seen newer state, have lost data.
LOST_DATA_S = 60.0
_RETRY_S = 5.0  # while the store cannot be reached
_T = TypeVar("_T")
_log = log.get(__name__)


class KeptNode(Protocol):
    """Something to refresh at every wake-up."""

    def refresh(self) -> None:
        """Read, then repair or deliver; CoordinationError when the store is unreachable."""


class Keeper:
    """Owns the thread; ``close`` joins it."""

    def __init__(self, tree: Tree, root: str, reread_s: float, connect_timeout_s: float, lost_data_s: float) -> None:
        self.tree = tree
        self._root = root
        self._reread_s = reread_s
        self._lost_data_s = lost_data_s
        self._lock = threading.Lock()
        self._kept: list[KeptNode] = []
        self._sessions: set[int] = set()
        self._woken = threading.Event()
        self._closing = False
        tree.start(self.wake, connect_timeout_s)
        self.session()
        self._thread = threading.Thread(target=self._run, name="coordination", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Make the thread read everything again soon. Never blocks."""
        self._woken.set()

    def keep(self, kept: KeptNode) -> None:
        """Refresh ``kept`` from now on."""
        with self._lock:
            self._kept.append(kept)
        self.wake()

    def drop(self, kept: KeptNode) -> None:
        """Stop refreshing ``kept``."""
        with self._lock:
            self._kept = [other for other in self._kept if other is not kept]

    def session(self) -> int:
        """The id of the live session, else 0."""
        session = self.tree.session()
        if session:
            self._sessions.add(session)
        return session

    def owned(self, session: int) -> bool:
        """Whether ``session`` is, or was, a session of this keeper."""
        return session in self._sessions

    def close(self) -> None:
        """Stop the thread, then end the session. Idempotent."""
        self._closing = True
        self.wake()
        self._thread.join()
        self.tree.close()

    def _run(self) -> None:
        lost_s: float | None = None
        while not self._closing:
            self._woken.wait(self._reread_s if lost_s is None else min(self._reread_s, _RETRY_S))
            self._woken.clear()
            try:
                self._refresh_all()
                lost_s = None
            except CoordinationError as error:
                now_s = time.monotonic()
                if lost_s is None:
                    _log.warning("coordination_lost", root=self._root, error=str(error))
                    lost_s = now_s
                elif now_s - lost_s >= self._lost_data_s and not self.session():
                    self.tree.begin_anew()
                    lost_s = now_s

    def _refresh_all(self) -> None:
        self.session()
        with self._lock:
            kept = list(self._kept)
        for each in kept:
            if self._closing:
                return
            try:
                each.refresh()
            except CoordinationError:
                raise
            except ReplicationError as error:
                _log.error("coordination_unreadable", root=self._root, error=str(error))
            except Exception:  # an error in a subscriber must not end the thread, which keeps memberships alive
                _log.exception("coordination_delivery_failed", root=self._root)


class Subscription(Generic[_T]):
    """A watched value: the keeper's thread calls ``deliver`` with the first value and after each change."""

    def __init__(self, keeper: Keeper, read: Callable[[Woken], _T | None], deliver: Callable[[_T], None]) -> None:
        self._keeper = keeper
        self._read = read
        self._deliver = deliver
        self._last: _T | None = None
        self._closed = False
        keeper.keep(self)

    def refresh(self) -> None:
        """Read again, watching; deliver when it changed."""
        value = self._read(self._keeper.wake)
        if value is not None and value != self._last and not self._closed:
            self._deliver(value)
            self._last = value

    def close(self) -> None:
        """Stop delivering. A delivery in progress may still finish."""
        self._closed = True
        self._keeper.drop(self)
