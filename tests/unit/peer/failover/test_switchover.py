"""When a switchover is undone, and what it does not pass over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from peer.failover.role_change import RoleChange
from peer.failover.switchover import switchover
from replication.core.roles import Role, RoleState
from replication.errors import StepFailedError
from tests.role_changes import Pair, role_pair


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with role_pair(tmp_path) as made:
        made.write()
        made.east.handle.drain("west")
        yield made


def with_hook(context: RoleChange, folder: Path, condition: str) -> RoleChange:
    """The command with one hook, which fails when the condition holds."""
    folder.mkdir(mode=0o700)
    hook = folder / "dns"
    hook.write_text(f"#!/bin/sh\n! {condition}\n")
    hook.chmod(0o700)
    config = context.cluster.config
    section = config.failover.model_copy(update={"hooks": folder})
    context.cluster.config = config.model_copy(update={"failover": section})
    return context


def test_a_failure_in_the_last_step_before_the_peer_is_asked_undoes_the_switchover(pair: Pair, tmp_path: Path) -> None:
    command = with_hook(pair.east.command(), tmp_path / "hooks", '[ "$1 $2" = "before promote" ]')
    with pytest.raises(StepFailedError, match="hook dns before promote failed") as failed:
        switchover(command, "west")
    assert failed.value.hint == "It was undone: east takes writes"
    assert pair.east.role() == RoleState(Role.ACTIVE, 3)
    assert pair.west.role().role is Role.STANDBY
    assert pair.write() == ["east"]
    assert not pair.east.command().unfinished()
