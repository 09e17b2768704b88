"""Forks of the supervisor that run roles or answer commands."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from peer.status.role_processes import ProcessState
from shell.processes.forked import CAN_FORK
from tests.waiting import wait_until

pytestmark = [pytest.mark.heavy, pytest.mark.skipif(not CAN_FORK, reason="roles are forks on Linux only")]

_PARENT = """
import os, signal, sys, time
from shell.processes.forked import fork
from shell.processes.wakes import Wakes
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
other = os.open(os.devnull, os.O_RDONLY)
"""


def run(script: str, output: Path) -> str:
    """What a parent that does ``script`` prints; it is a process of its own, since pytest has threads."""
    ran = subprocess.run(
        [sys.executable, "-c", _PARENT + script, str(output)], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_a_child_has_its_own_output_and_none_of_its_parents_descriptors(tmp_path: Path) -> None:
    script = """
def child():
    print("of the child")
    print(sorted(int(each) for each in os.listdir("/proc/self/fd"))[3:-1])
    return 7
process = fork(child, (os.devnull, out, out), ())
print(process.wait(30))
"""
    assert run(script, tmp_path / "out") == "7"
    assert (tmp_path / "out").read_text().splitlines() == ["of the child", "[]"]


def test_a_child_that_fails_prints_its_traceback_and_does_not_go_on_as_its_parent(tmp_path: Path) -> None:
    script = """
def child():
    raise ValueError("broken")
print(fork(child, (os.devnull, out, out), ()).wait(30))
"""
    assert run(script, tmp_path / "out") == "1"
    assert "ValueError: broken" in (tmp_path / "out").read_text()


def test_a_signal_to_a_child_is_not_handled_as_its_parent_would(tmp_path: Path) -> None:
    script = """
with Wakes(None) as wakes:
    process = fork(lambda: time.sleep(60) or 0, (os.devnull, out, out), ())
    process.terminate()
    stopped = []
    while process.poll() is None:
        stopped.append(wakes.wait(60))
    print(process.returncode, any(stopped))
"""
    assert run(script, tmp_path / "out") == f"-{int(signal.SIGTERM)} False"


def test_a_signal_wakes_its_process_also_right_before_it_waits_and_a_child_is_woken_by_none(tmp_path: Path) -> None:
    script = """
def child():
    return 10 + signal.set_wakeup_fd(-1)
with Wakes(None):
    status = fork(child, (os.devnull, out, out), ()).wait(30)
    print(status, signal.set_wakeup_fd(-1) > 2)
print(signal.set_wakeup_fd(-1))
"""
    assert run(script, tmp_path / "out").split() == ["9", "True", "-1"]


def test_the_end_of_a_child_wakes_its_parent_and_a_signal_or_the_lifeline_stops_it(tmp_path: Path) -> None:
    script = """
begin, end = os.pipe()
with Wakes(begin) as wakes:
    process = fork(lambda: 3, (os.devnull, out, out), ())
    while process.poll() is None:
        assert not wakes.wait(60)
    os.close(end)
    print(process.returncode, wakes.wait(60))
with Wakes(None) as wakes:
    os.kill(os.getpid(), signal.SIGTERM)
    print(wakes.wait(60))
"""
    assert run(script, tmp_path / "out").splitlines() == ["3 True", "True"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_child_whose_output_takes_nothing_ends_and_does_not_go_on_as_its_parent(tmp_path: Path) -> None:
    script = """
full = os.open("/dev/full", os.O_WRONLY)
def child():
    print("a line", file=sys.stderr)
    return 7
try:
    status = fork(child, (os.devnull, out, full), ()).wait(30)
finally:
    os.write(out, b"a parent ")
print(status)
"""
    assert run(script, tmp_path / "out") in ("1", "7")
    assert (tmp_path / "out").read_text() == "a parent "


def test_a_process_with_an_open_ledger_does_not_fork(tmp_path: Path) -> None:
    """SQLite would take the locks of its parent's connection for the child's own, and damage the file."""
    script = """
import sqlite3
opened = sqlite3.connect(sys.argv[1] + ".db")
opened.execute("PRAGMA journal_mode=WAL")
opened.execute("create table t (a)")
try:
    fork(lambda: 0, (os.devnull, out, out), ())
except AssertionError as error:
    print(error)
"""
    assert "is open" in run(script, tmp_path / "out")


def test_a_role_of_a_supervisor_that_is_killed_ends(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from replication import config
from shell.processes import forked, role_process
Path({str(tmp_path)!r}, "c.toml").write_text(config.default_toml("east"))
role_process._served = lambda role, config, stop, *_: int(not stop.wait(60))
process, lifeline = forked.start_role("master", Path({str(tmp_path)!r}, "c.toml"), Path(sys.argv[1]))
print(process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ran = subprocess.run(
        [sys.executable, "-c", _PARENT + script, str(tmp_path / "out")], capture_output=True, text=True, timeout=60
    )
    pid = int(ran.stdout)
    wait_until(lambda: not _is_running(pid), timeout_s=30)


def test_a_role_of_a_supervisor_that_is_killed_leaves_the_state_of_the_next_one(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from replication import config
from shell.processes import forked, role_process, roles
from peer.status.role_processes import ProcessState
Path({str(tmp_path)!r}, "c.toml").write_text(config.default_toml("east"))

def run_role(role, config, stop, ready):
    supervisor = os.getppid()
    ready()
    stop.wait(60)
    while os.getppid() == supervisor:  # its pipe ends a moment before it is gone
        time.sleep(0.01)
    ProcessState(role, 1, "ready").write(config.run_dir)

roles.run_role = run_role
process, lifeline = forked.start_role("master", Path({str(tmp_path)!r}, "c.toml"), Path(sys.argv[1]))
while (state := ProcessState.read(Path({str(tmp_path / "run")!r}), "master")) is None or state.state != "ready":
    pass
print(process.pid, state.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ran = subprocess.run(
        [sys.executable, "-c", _PARENT + script, str(tmp_path / "out")], capture_output=True, text=True, timeout=60
    )
    pid, ready = map(int, ran.stdout.split())
    wait_until(lambda: not _is_running(pid), timeout_s=30)
    assert pid == ready and ProcessState.read(tmp_path / "run", "master") == ProcessState("master", 1, "ready")


def _is_running(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
