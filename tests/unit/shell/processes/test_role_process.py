"""How a role's process ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from peer.status.role_processes import ProcessState
from shell.processes.role_process import _LEAVE_S


def test_a_role_that_has_ended_is_not_held_up_by_idle_threads() -> None:
    code = (
        "import time; from pyiceberg.utils.concurrent import ExecutorFactory;"
        " from shell.processes.role_process import leave;"
        " ExecutorFactory.get_or_create().submit(print).result(); began = time.monotonic();"
        " import os; end = os._exit; os._exit = lambda code: end(code if time.monotonic() - began < 2 else 1); leave(7)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, timeout=60)
    assert done.returncode == 7, f"it waited for idle threads, up to {_LEAVE_S} s"


def test_a_state_that_cannot_be_written_leaves_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "worker.json").mkdir()
    with pytest.raises(OSError):
        ProcessState("worker", 7, "ready").write(tmp_path)
    assert [left.name for left in tmp_path.iterdir()] == ["worker.json"]


def test_a_role_that_restarts_after_the_configuration_was_broken_says_what_is_wrong_without_a_traceback(
    tmp_path: Path,
) -> None:
    file = tmp_path / "walship.toml"
    file.write_text('[cluster]\nname = "east"\n[log]\nnonsense = 1\n')
    command = [sys.executable, "-m", "shell.main", "_role", "worker", "--config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith(f"error {file} cannot be used:")
    assert "log.nonsense: unknown key" in done.stderr and "\nhint  " in done.stderr
    assert "Traceback" not in done.stderr
