"""What a switchover asks of the ledgers and computes does not grow with the number of tables."""

from __future__ import annotations

import gc
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa

from peer.failover.switchover import DrainToPeer, PreparePeer, plan_switchover
from replication.roles.takeover import Takeover
from tests.role_changes import add_tables, role_pair

pytestmark = pytest.mark.heavy

FEW, MANY = 10, 500
_STEPS = 25  # of SQLite's machine, between two looks


@dataclass
class Work:
    """What this thread does: statements, steps of SQLite, and calls of Python functions."""

    statements: int = 0
    steps: int = 0
    calls: int = 0

    def least_of(self, act: Callable[[], object]) -> tuple[int, int, int]:
        """Of several runs, since other threads of this process disturb some."""
        found = [self.once(act) for _ in range(5)]
        statements, steps, calls = zip(*found, strict=True)
        return min(statements), min(steps), min(calls)

    def once(self, act: Callable[[], object]) -> tuple[int, int, int]:
        """Of one run."""
        self.statements = self.steps = self.calls = 0
        gc.disable()  # else what earlier tests left is finalized here, and counted
        sys.setprofile(self._called)
        try:
            act()
        finally:
            sys.setprofile(None)
            gc.enable()
        return self.statements, self.steps, self.calls

    def _called(self, frame: object, event: str, argument: object) -> None:
        self.calls += event == "call"


@contextmanager
def worked() -> Iterator[Work]:
    """Count from now on."""
    work, here = Work(), threading.current_thread()

    def step() -> None:
        work.steps += threading.current_thread() is here

    def connected(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("select count(*) from sqlite_master").fetchall()  # a new connection reads the schema first
        connection.set_progress_handler(step, _STEPS)

    def executed(*_: object) -> None:
        work.statements += threading.current_thread() is here

    sa.event.listen(sa.engine.Engine, "before_cursor_execute", executed)
    sa.event.listen(sa.pool.Pool, "connect", connected)
    try:
        yield work
    finally:
        sa.event.remove(sa.engine.Engine, "before_cursor_execute", executed)
        sa.event.remove(sa.pool.Pool, "connect", connected)


def of_phases(folder: Path, tables: int) -> dict[str, tuple[int, int, int]]:
    """The work of each phase, once the peer is ready to send everything back."""
    with worked() as work, role_pair(folder) as pair:
        add_tables(pair, tables - 1)
        command, peer = pair.east.command(), pair.west.site
        takeover = Takeover(peer.ledger, peer.coordination)
        PreparePeer("west").execute(command)
        promoted = work.once(lambda: takeover.prepare(command.own, ""))  # as the peer does again to become ACTIVE
        pair.write()
        pair.east.handle.drain("west")
        return {
            "take over, at first": promoted,
            "plan": work.least_of(lambda: plan_switchover(command, "west")),
            "drain": work.least_of(lambda: DrainToPeer("west").verify(command)),
            "take over": work.least_of(lambda: takeover.prepare(command.own, "")),
        }


def test_a_switchover_of_many_tables_does_as_much_as_of_few(tmp_path: Path) -> None:
    few, many = (of_phases(tmp_path / str(tables), tables) for tables in (FEW, MANY))
    for phase in few:
        more = [one - other for one, other in zip(many[phase], few[phase], strict=True)]
        assert more[0] <= 5, (phase, few, many)  # what other threads do meanwhile differs a little
        assert more[1] * _STEPS < MANY - FEW and more[2] < MANY - FEW, (phase, few, many)
