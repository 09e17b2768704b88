"""Hooks of role changes: what they are told, what their failure does, and which programs are run at all."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest

from peer.client.cluster import Cluster
from peer.failover import failover
from peer.failover import hooks as hooking
from peer.failover import switchover as switching
from peer.failover.hooks import RoleHooks
from peer.failover.role_change import RoleChange
from replication.commit import step
from replication.core.ids import ClusterId
from replication.core.roles import RoleState
from replication.errors import ConfigError, RequestError, StepFailedError
from replication.ledger.base import Peer
from replication.settings import FailoverSection, WriterSection
from tests.fakes.coordination import MemoryEnsemble
from tests.fakes.ledger import MemoryLedger
from tests.waiting import wait_until

EAST, WEST = (ClusterId(name, UUID(int=n)) for n, name in enumerate(("east", "west"), 1))
ABOUT = {"origin": "east", "successor": "west", "epoch": "2"}


class Hooks:
    """A folder of hooks and what they wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said, self.log = folder / "hooks", list[str](), folder / "log"
        self.folder.mkdir(mode=0o755)

    def put(self, name: str, then: str = "", mode: int = 0o755) -> Path:
        """A shell script that notes its call, and does ``then``."""
        file = self.folder / name
        note = f'echo "{name} $1 $2 $WALSHIP_HOOK_CHANGE $WALSHIP_HOOK_ORIGIN>$WALSHIP_HOOK_SUCCESSOR'
        file.write_text(f'#!/bin/sh\n{note} $WALSHIP_HOOK_EPOCH" >> {self.log}\n{then}\n')
        file.chmod(mode)
        return file

    @property
    def called(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def make(self, timeout_s: float = 30.0) -> RoleHooks:
        return RoleHooks(self.folder, timeout_s, self.said.append)


@pytest.fixture
def hooks(tmp_path: Path) -> Hooks:
    return Hooks(tmp_path)


def test_hooks_run_by_name_before_and_after_and_are_told_who_and_what(hooks: Hooks) -> None:
    hooks.put("20-jobs")
    hooks.put("10-dns")
    hooks.put("readme.txt", mode=0o644), hooks.put(".hidden"), hooks.put("10-dns~")
    with hooks.make().around("switchover", "promote", ABOUT):
        assert len(hooks.called) == 2
    told = "switchover east>west 2"
    assert hooks.called == [f"{n} {e} promote {told}" for e in ("before", "after") for n in ("10-dns", "20-jobs")]
    with RoleHooks(None, 1.0, hooks.said.append).around("switchover", "stop", ABOUT):
        pass
    assert len(hooks.called) == 4


def test_a_hook_that_fails_before_stops_the_phase_and_its_last_words_are_told(hooks: Hooks) -> None:
    hooks.put("10-dns", "echo trying; printf 'no\\033[31m zone\\n' >&2; exit 3"), hooks.put("20-jobs")
    with (
        pytest.raises(RequestError, match=r"hook 10-dns before stop failed with exit code 3: no\[31m zone"),
        hooks.make().around("switchover", "stop", ABOUT),
    ):
        raise AssertionError("the phase was begun")
    assert len(hooks.called) == 1


def test_a_hook_that_fails_after_is_reported_and_the_others_run(hooks: Hooks) -> None:
    hooks.put("10-dns", '[ "$1" = before ]'), hooks.put("20-jobs")
    with hooks.make().around("failover", "promote", ABOUT):
        pass
    assert hooks.said == ["hook 10-dns after promote failed with exit code 1. The failover goes on"]
    assert len(hooks.called) == 4


def test_a_hook_for_whose_output_there_is_no_temporary_file_has_failed(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    hooks.put("10-dns")
    made = hooks.make()
    with made.around("switchover", "promote", ABOUT):
        monkeypatch.setattr(tempfile, "TemporaryFile", full)
    failure = "hook 10-dns {} promote cannot be run: No space left on device"
    assert hooks.said == [f"{failure.format('after')}. The switchover goes on"]
    with pytest.raises(RequestError, match=failure.format("before")), made.around("switchover", "promote", ABOUT):
        raise AssertionError("the phase was begun")


def test_nothing_runs_after_a_phase_that_failed(hooks: Hooks) -> None:
    hooks.put("10-dns")
    with pytest.raises(ZeroDivisionError), hooks.make().around("failover", "promote", ABOUT):
        1 / 0  # noqa: B018
    assert [call.split()[1] for call in hooks.called] == ["before"]


def test_a_hook_that_takes_too_long_is_killed_with_what_it_started(hooks: Hooks, tmp_path: Path) -> None:
    child = tmp_path / "child"
    hooks.put("10-dns", f"sleep 60 & echo $! > {child}; wait")
    with pytest.raises(RequestError, match=r"longer than 1 s"), hooks.make(1.0).around("failover", "fence", ABOUT):
        raise AssertionError("the phase was begun")
    pid = int(child.read_text())

    def is_gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
        except FileNotFoundError:
            return True

    wait_until(is_gone)


@pytest.mark.parametrize("what", ["folder", "hook"])
def test_hooks_that_others_may_write_are_not_run(hooks: Hooks, what: str) -> None:
    file = hooks.put("10-dns")
    loose = hooks.folder if what == "folder" else file
    os.chmod(loose, 0o777)
    with pytest.raises(ConfigError, match=f"other users may write to {loose}"):
        hooks.make().files()
    assert hooks.called == []


@pytest.fixture
def change(hooks: Hooks) -> Iterator[RoleChange]:
    """A switchover from east to west, of which no step does anything but stop the writers."""
    ledger = MemoryLedger(EAST)
    with MemoryEnsemble().connect("/walship/east") as coordination:
        coordination.establish(EAST, "1")
        ledger.rules.define(Peer("west", "zk:2181/walship/west", WEST), 0)
        config = SimpleNamespace(
            failover=FailoverSection.model_construct(hooks=hooks.folder, hook_timeout_s=30.0), writer=WriterSection()
        )
        cluster = SimpleNamespace(id=EAST, name="east", ledger=ledger, coordination=coordination, config=config)
        yield RoleChange(cast(Cluster, cluster), hooks.said.append)
    ledger.close()


def test_a_failing_hook_before_a_step_stops_a_switchover_which_is_undone(change: RoleChange, hooks: Hooks) -> None:
    hooks.put("10-dns", '[ "$2" != drain ]')
    steps = (switching.StopWrites(2), switching.DrainToPeer("west"))
    with pytest.raises(StepFailedError, match="hook 10-dns before drain failed"):
        change.run(steps)
    assert change.cluster.coordination.role().state.epoch == 2
    switching._take_writes(change, 3, steps)
    assert change.cluster.coordination.role().state == RoleState(epoch=3)
    told = "switchover east>west 2"
    assert hooks.called == [f"10-dns {e} {told}" for e in ("before stop", "after stop", "before drain", "after undo")]


def test_hooks_that_cannot_be_read_stop_a_switchover_before_it_begins(change: RoleChange, hooks: Hooks) -> None:
    hooks.folder.rmdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        change.run((switching.StopWrites(2),))
    assert change.unfinished() is None and change.cluster.coordination.role().state == RoleState()


def test_the_phases_that_hooks_are_told_of_are_those_of_the_steps() -> None:
    assert hooking.__doc__ is not None and failover.TakeWrites.kind == "failover.promote"
    told = hooking.__doc__.partition("WALSHIP_HOOK_PHASE")[2].partition("WALSHIP_HOOK_CLUSTER")[0]
    for part, change in zip(told.split("of a failover:"), ("switchover", "failover"), strict=True):
        kinds = {kind.removeprefix(f"{change}.") for kind, _ in step._known if kind.startswith(f"{change}.")}
        assert set(re.findall(r"\w+", part)) - {"undo"} == kinds
