"""Threads of the code under test that the simulation moves on: a session's, and a writer's lease."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from replication.coordination.base import Tree
from replication.coordination.keeper import Keeper
from replication.errors import CoordinationError
from tests.simulation.successions import remembered


class SteppedKeeper(Keeper):
    """A session whose thread is the simulation."""

    def __init__(self, tree: Tree, root: str, reread_s: float, connect_timeout_s: float, lost_data_s: float) -> None:
        self.tree = tree
        self._root = root
        self._lock = threading.Lock()
        self._kept = []
        self._sessions = set()
        self._woken = threading.Event()
        self._closing = False
        tree.start(self.wake, connect_timeout_s)
        self.session()

    def step(self) -> None:
        """What the thread does when it is woken."""
        with suppress(CoordinationError):
            self._refresh_all()

    def close(self) -> None:
        """End the session."""
        self._closing = True
        self.tree.close()


def patch(patched: pytest.MonkeyPatch) -> None:
    """No thread runs by itself, and no socket is opened: writers that are killed would leave theirs open."""
    patched.setattr("replication.coordination.session.Keeper", SteppedKeeper)
    patched.setattr("replication.writer.wal.registration.WriterRegistration._run", lambda self: None)
    patched.setattr("replication.writer.wal.wal_file.RESERVE_BYTES", 0)
    patched.setattr("replication.files.notifier._SUPPORTED", False)
    remembered.patch(patched)
