"""``readonly`` says what was done, also when the ledger could not note it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from replication.coordination.memory import MemoryEnsemble
from replication.core.ids import ClusterId
from replication.core.roles import Role, RoleState
from replication.errors import CoordinationError
from shell.cli.invocation import Invocation
from shell.cli.render import Printer
from shell.commands import role
from shell.commands.role import Switch, readonly


def test_a_change_that_the_ledger_could_not_note_is_told_as_done(capfd: pytest.CaptureFixture[str]) -> None:
    def full(state: RoleState) -> None:
        raise CoordinationError("the ledger at x failed: database or disk is full")

    ledger = SimpleNamespace(terms=SimpleNamespace(keep_role=full), time=SimpleNamespace(writers=list))
    config = SimpleNamespace(writer=SimpleNamespace(lease_s=1.0))
    with MemoryEnsemble().connect("/walship/east") as coordination:
        coordination.establish(ClusterId("east", uuid4()), "0")

        @contextmanager
        def connect() -> Iterator[Any]:
            yield (
                SimpleNamespace(name="east", coordination=coordination, ledger=ledger, config=config),
                Printer(as_json=False),
            )

        readonly(cast(Invocation, SimpleNamespace(connect=connect)), Switch.ON)
        assert coordination.role().state.role is Role.STANDBY
    told = capfd.readouterr()
    assert "east is STANDBY (epoch 2)" in told.out and "disk is full; ZooKeeper has it" in " ".join(told.err.split())


def test_said_again_it_waits_and_notes_what_was_stopped_before_that(monkeypatch: pytest.MonkeyPatch) -> None:
    waited, kept = list[int](), list[RoleState]()
    monkeypatch.setattr(role, "await_writers", lambda ledger, coordination, epoch, lease_s: waited.append(epoch))
    ledger = SimpleNamespace(terms=SimpleNamespace(keep_role=kept.append))
    config = SimpleNamespace(writer=SimpleNamespace(lease_s=1.0))
    with MemoryEnsemble().connect("/walship/east") as coordination:
        coordination.establish(ClusterId("east", uuid4()), "0")

        @contextmanager
        def connect() -> Iterator[Any]:
            east = SimpleNamespace(name="east", coordination=coordination, ledger=ledger, config=config)
            yield east, Printer(as_json=False)

        for _ in range(2):
            readonly(cast(Invocation, SimpleNamespace(connect=connect)), Switch.ON)
    assert waited == [2, 2] and kept == [RoleState(Role.STANDBY, 2)] * 2
