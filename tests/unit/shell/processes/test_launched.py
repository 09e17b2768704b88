"""Waiting until a cluster is up: what keeps it is told while it is waited for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from peer.status.role_processes import ProcessState
from replication import config as configuration
from replication.errors import ReplicationError, WaitTimeoutError
from shell.processes.launched import Launched, await_ready


def test_what_was_said_before_the_start_is_not_taken_for_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configuration.load(None, {"cluster": {"name": "east", "data_dir": str(tmp_path)}}, {})
    launched = Launched("east", tmp_path / "walship.toml", config, ("master",))
    ProcessState("master", os.getpid(), "ready", at=1.0).write(config.run_dir)  # as in a copy of one that is up
    ended = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    ended.wait()
    monkeypatch.setattr("shell.processes.launched.spawn", lambda *_: (ended, None))
    launched.start()
    launched.output.touch()
    with pytest.raises(ReplicationError, match="exit code 7"):
        await_ready([launched], 20)
    ProcessState("master", os.getpid(), "ready", at=2.0).write(config.run_dir)
    await_ready([launched], 0)


def test_why_a_role_ends_again_and_again_is_told_once(tmp_path: Path) -> None:
    config = configuration.load(None, {"cluster": {"name": "east", "data_dir": str(tmp_path)}}, {})
    launched = Launched("east", tmp_path / "walship.toml", config, ("zookeeper", "master"))
    later = time.time() + 60
    ProcessState("zookeeper", 1, "failed", "it did not start", "Look at its log", 1, later).write(config.run_dir)
    ProcessState("master", 2, "failed", "of an earlier run", "", 1, later - 3600).write(config.run_dir)
    told: list[str] = []
    with pytest.raises(WaitTimeoutError, match="east's zookeeper, east's master"):
        await_ready([launched], 0.3, report=told.append)
    assert told == ["east's zookeeper ended and is started again: it did not start. Look at its log"]
    for role in launched.roles:
        ProcessState(role, os.getpid(), "ready").write(config.run_dir)
    await_ready([launched], 0.3, report=told.append)
    assert len(told) == 1


@pytest.mark.parametrize(
    ("ends", "told", "code"),
    [
        ("", "was stopped before it was ready", 1),
        ("raise SystemExit(7)", "did not stay up: exit code 7", 7),
        ("print('error no Java'); raise SystemExit(2)", "did not stay up: no Java", 2),
        ("import os; os.abort()", "did not stay up: exit code -6", 1),
    ],
)
def test_one_that_ended_says_why(tmp_path: Path, ends: str, told: str, code: int) -> None:
    config = configuration.load(None, {"cluster": {"name": "east", "data_dir": str(tmp_path)}}, {})
    launched = Launched("east", tmp_path / "walship.toml", config, ("master",))
    launched.output.parent.mkdir()
    with launched.output.open("wb") as output:
        launched.process = subprocess.Popen([sys.executable, "-c", ends], stdout=output)
    launched.process.wait()
    with pytest.raises(ReplicationError, match=f"east {told}") as caught:
        launched.check()
    assert caught.value.exit_code == code


def test_one_that_ends_as_it_is_left_running_is_not_said_to_run(tmp_path: Path) -> None:
    config = configuration.load(None, {"cluster": {"name": "east", "data_dir": str(tmp_path)}}, {})
    launched = Launched("east", tmp_path / "walship.toml", config, ("master",))
    launched.output.parent.mkdir()
    readable, launched.lifeline = os.pipe()
    os.close(readable)
    with launched.output.open("wb") as output:
        launched.process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"], stdout=output)
    with pytest.raises(ReplicationError, match="did not stay up: exit code 7"):
        launched.leave_running()
    launched.stop()
