"""``readonly`` says what was done, also when the ledger could not note it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from replication.coordination.witness import Witness
from replication.core.ids import ClusterId
from replication.core.roles import Role, RoleState
from replication.core.routes.carried import InboundRoute
from replication.core.succession import Succession
from replication.errors import CoordinationError, RequestError
from replication.ledger.commit_steps import ROLE_CHANGE, NewSequence, SequenceId
from shell.cli.invocation import Invocation
from shell.cli.render import Printer
from shell.commands import role
from shell.commands.role import readonly
from tests.fakes.coordination import MemoryEnsemble
from tests.fakes.ledger import MemoryLedger
from tests.unit.coordination.test_witness import opening

OWN = SimpleNamespace(failover=SimpleNamespace(lease="own"))


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

        readonly(cast(Invocation, SimpleNamespace(connect=connect)), "on")
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
            readonly(cast(Invocation, SimpleNamespace(connect=connect)), "on")
    assert waited == [2, 2] and kept == [RoleState(Role.STANDBY, 2)] * 2


def test_a_cluster_whose_role_change_is_unfinished_is_not_made_active_beside_its_successor(
    capfd: pytest.CaptureFixture[str],
) -> None:
    id, west = ClusterId("east", uuid4()), ClusterId("west", uuid4())
    ledger = MemoryLedger(id)
    with MemoryEnsemble().connect("/walship/east") as coordination:
        coordination.establish(id, "0", role=RoleState(Role.STANDBY, 2))

        @contextmanager
        def connect() -> Iterator[Any]:
            own = {"coordination": coordination, "ledger": ledger, "config": OWN}
            yield SimpleNamespace(id=id, name="east", **own), Printer(as_json=False)

        invocation = cast(Invocation, SimpleNamespace(connect=connect))
        ledger.steps.put_all([NewSequence(SequenceId("east", ROLE_CHANGE), ("{}",))])
        with pytest.raises(RequestError, match="another cluster may be ACTIVE by now"):
            readonly(invocation, "off")
        assert coordination.role().state == RoleState(Role.STANDBY, 2)
        ledger.steps.remove("east", ROLE_CHANGE)
        ledger.landing.declare_routes([InboundRoute(west, uuid4(), "default", 1)])
        readonly(invocation, "off")
        told = " ".join(capfd.readouterr().err.split())
        assert "tables come from west; if one of these is ACTIVE, both take writes" in told
        coordination.set_role(RoleState(Role.STANDBY, 4), coordination.role().version)
        ledger.successions.record(Succession(id, west, 4, 7, is_planned=True))
        readonly(invocation, "off")
        assert coordination.role().state == RoleState(Role.ACTIVE, 5)
        coordination.set_role(RoleState(Role.STANDBY, 6), coordination.role().version)
        ledger.successions.record(Succession(west, id, 1007, 7, is_planned=False))  # of a failover that was abandoned
        readonly(invocation, "off")
        assert coordination.role().state == RoleState(Role.ACTIVE, 1008), "what it writes is newer than what was ended"
        ledger.former = (before := ClusterId("east", uuid4()),)
        ledger.successions.record(Succession(west, before, 2010, 7, is_planned=False))
        coordination.set_role(RoleState(Role.STANDBY, 1009), coordination.role().version)
        readonly(invocation, "off")
        assert coordination.role().state == RoleState(Role.ACTIVE, 2011), "also of before it was restored"
    ledger.close()
    assert "west took over from east" in capfd.readouterr().err


@pytest.mark.parametrize("was_restored", [False, True])  # since, and has a new id
def test_a_cluster_of_which_the_witness_heard_in_a_failover_that_was_given_up_is_made_active_above_that(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, was_restored: bool
) -> None:
    id, west, third = ClusterId("east", uuid4()), ClusterId("west", uuid4()), MemoryEnsemble()
    ledger, witness = MemoryLedger(id), Witness(opening(third), "/w")
    before = ClusterId("east", uuid4()) if was_restored else id
    ledger.former = (before,) if was_restored else ()
    witness.end(before, 1002, west)
    monkeypatch.setattr("peer.client.granter.witness_of", lambda config: witness)
    config = SimpleNamespace(failover=SimpleNamespace(lease="witness"))
    with MemoryEnsemble().connect("/walship/east") as coordination:
        coordination.establish(id, "0")

        @contextmanager
        def connect() -> Iterator[Any]:
            east = SimpleNamespace(id=id, name="east", coordination=coordination, ledger=ledger, config=config)
            yield east, Printer(as_json=False)

        readonly(cast(Invocation, SimpleNamespace(connect=connect)), "off")
        assert coordination.role().state == RoleState(Role.ACTIVE, 1003), "else its writers are refused for good"
        readonly(cast(Invocation, SimpleNamespace(connect=connect)), "off")
        assert coordination.role().state == RoleState(Role.ACTIVE, 1003)
    ledger.close()
    assert "the witness says that west" in capfd.readouterr().err
