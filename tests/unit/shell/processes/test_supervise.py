"""Roles that start when there is something for them to do, when this host has room for them, or after they ended."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from peer.status.role_processes import ProcessState
from replication import config as configuration
from shell.cli.render import Printer
from shell.processes import supervise
from shell.processes.supervise import RoleEvent, RoleSupervisor, Supervisor
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "_POLL_S", 0.01)
    monkeypatch.setattr(supervise, "_CHECK_S", 0.01)


class _Role:
    """A role without a process, ready as soon as it is started."""

    restarts = 0
    is_steady = True

    def __init__(self, role: str, config: object, file: Path) -> None:
        self.role = role

    @property
    def is_ready(self) -> bool:
        return True

    def start(self) -> RoleEvent:
        return RoleEvent(self.role, "started", 1)

    def poll(self) -> list[RoleEvent]:
        return []

    def request_stop(self) -> None:
        """Nothing runs."""

    def finish(self, deadline: float) -> RoleEvent:
        return RoleEvent(self.role, "stopped", 1)


class _Clock:
    """Time that passes as a test says."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class _Process:
    """A process that runs until it is given a return code."""

    pid = 4_000_000
    returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode


def test_a_role_starts_once_it_is_wanted_and_all_are_ready_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "RoleSupervisor", _Role)
    config = configuration.load(None, {"cluster": {"name": "east", "data_dir": str(tmp_path)}}, {})
    said: list[tuple[str, str]] = []
    wanted, looked, ready, stop = (threading.Event() for _ in range(4))

    def derives() -> bool:
        looked.set()
        return wanted.is_set()

    supervisor = Supervisor(
        config,
        tmp_path / "x.toml",
        ("worker", "derive"),
        lambda e: said.append((e.role, e.event)),
        {"derive": derives},
    )
    thread = threading.Thread(target=supervisor.run, args=(stop.wait, ready.set))
    thread.start()
    try:
        assert ready.wait(30) and looked.wait(30)
        assert ("derive", "started") not in said
        wanted.set()
        wait_until(lambda: ("derive", "started") in said, timeout_s=30)
    finally:
        stop.set()
        thread.join()
    assert said.count(("derive", "started")) == 1 and ("derive", "stopped") in said


def test_a_full_disk_ends_neither_the_roles_nor_their_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "RoleSupervisor", _Role)
    config = configuration.load(None, {"cluster": {"name": "east", "data_dir": str(tmp_path)}}, {})
    said: list[str] = []
    stop = threading.Event()

    def say(event: RoleEvent) -> None:
        said.append(event.event)
        raise OSError(errno.ENOSPC, "No space left on device")

    def ready() -> None:
        stop.set()
        raise OSError(errno.ENOSPC, "No space left on device")

    Supervisor(config, tmp_path / "x.toml", ("worker", "receiver"), say).run(stop.wait, ready)
    assert said == ["started", "started", "stopped", "stopped"]


def test_roles_that_wait_for_nothing_start_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "RoleSupervisor", _Role)
    config = configuration.load(None, {"cluster": {"name": "east", "data_dir": str(tmp_path)}}, {})
    stop = threading.Event()
    started: list[str] = []

    def say(event: RoleEvent) -> None:
        stop.set()  # the supervisor looks no second time
        if event.event == "started":
            started.append(event.role)

    roles = ("zookeeper", "master", "worker")
    Supervisor(config, tmp_path / "x.toml", roles, say).run(stop.wait, lambda: None)
    assert started == list(roles)


def test_what_a_role_runs_is_loaded_before_it_starts_and_ahead_while_zookeeper_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration.load(None, {"cluster": {"name": "east", "data_dir": str(tmp_path)}}, {})
    seen: list[str] = []
    stop = threading.Event()

    class Role(_Role):
        @property
        def is_ready(self) -> bool:
            return "load receiver" in seen

    def say(event: RoleEvent) -> None:
        seen.append(f"{event.event} {event.role}")

    monkeypatch.setattr(supervise, "RoleSupervisor", Role)
    roles = ("zookeeper", "master", "receiver", "replay")
    supervisor = Supervisor(config, tmp_path / "x.toml", roles, say, load=lambda role: seen.append(f"load {role}"))
    supervisor.run(stop.wait, stop.set)
    ahead = ["started zookeeper", "load master", "load receiver"]
    assert seen[:7] == [*ahead, "started master", "started receiver", "load replay", "started replay"]


def test_a_role_that_this_host_cannot_start_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configuration.load(None, {"cluster": {"name": "east", "data_dir": str(tmp_path)}}, {})
    tries: list[str] = []

    def start_role(role: str, file: Path, output: Path) -> tuple[subprocess.Popen[bytes], int | None]:
        tries.append(role)
        if len(tries) < 3:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True), None

    monkeypatch.setattr(supervise, "start_role", start_role)
    monkeypatch.setattr(supervise, "_BACKOFF_FIRST_S", 0.01)
    said: list[RoleEvent] = []
    stop = threading.Event()

    def say(event: RoleEvent) -> None:
        said.append(event)
        if event.event == "started":
            stop.set()

    Supervisor(config, tmp_path / "x.toml", ("worker",), say).run(stop.wait, stop.set)
    assert [event.event for event in said] == ["ended", "ended", "started", "stopped"]
    assert "Resource temporarily unavailable; starts again in" in said[0].detail


def test_a_cluster_goes_on_when_nobody_reads_any_more_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "RoleSupervisor", _Role)
    config = configuration.load(None, {"cluster": {"name": "east", "data_dir": str(tmp_path)}}, {})
    readable, writable = os.pipe()
    os.close(readable)
    stop, ready = threading.Event(), threading.Event()
    with open(writable, "w") as nobody:
        monkeypatch.setattr(sys, "stdout", nobody)
        printer = Printer(as_json=False)
        supervisor = Supervisor(config, tmp_path / "x.toml", ("worker",), lambda event: printer.line(str(event)))
        going = threading.Thread(target=supervisor.run, args=(stop.wait, ready.set))
        going.start()
        assert ready.wait(5.0) and going.is_alive()
        stop.set()
        going.join(5.0)
        monkeypatch.undo()
        with pytest.raises(BrokenPipeError):
            nobody.close()


def test_a_role_that_keeps_ending_is_started_ever_later_and_anew_once_it_was_steady(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration.load(None, {"cluster": {"name": "east", "data_dir": str(tmp_path)}}, {})
    config.run_dir.mkdir(parents=True)
    clock, output = _Clock(), config.log_dir / "worker.out"
    processes: list[_Process] = []

    def start_role(role: str, file: Path, output: Path) -> tuple[_Process, None]:
        processes.append(_Process())
        return processes[-1], None

    def started() -> bool:
        return [event.event for event in role.poll()] == ["started"]

    def ends() -> float:
        """Let the process end; how long it is told to wait, and does."""
        processes[-1].returncode = 1
        (ended,) = role.poll()
        told = float(ended.detail.removeprefix(f"exit code 1, see {output}; starts again in ").rstrip(" s"))
        clock.now += told - 0.01
        assert not role.poll(), "not before its time"
        clock.now += 0.02
        assert started()
        return told

    monkeypatch.setattr(supervise, "start_role", start_role)
    monkeypatch.setattr(supervise, "_signal_group", lambda pid, number: None)
    monkeypatch.setattr(supervise, "time", clock)
    role = RoleSupervisor("worker", config, tmp_path / "x.toml")
    assert role.start().event == "started"
    assert [ends() for _ in range(8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    clock.now += 59
    assert role.poll() == [] and ends() == 30.0, "a minute is not over"
    clock.now += 61
    assert role.poll() == [] and [ends(), ends()] == [0.5, 1.0]


@pytest.mark.parametrize(("code", "reason"), [(-9, "killed by SIGKILL"), (-40, "killed by signal 40")])
def test_a_role_that_any_signal_ended_is_started_again(
    code: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration.load(None, {"cluster": {"name": "east", "data_dir": str(tmp_path)}}, {})
    config.run_dir.mkdir(parents=True)
    process = _Process()
    monkeypatch.setattr(supervise, "start_role", lambda *_: (process, None))
    monkeypatch.setattr(supervise, "_signal_group", lambda pid, number: None)
    role = RoleSupervisor("worker", config, tmp_path / "x.toml")
    role.start()
    process.returncode = code
    assert [event.detail for event in role.poll()] == [f"{reason}; starts again in 0.5 s"]


def test_a_role_does_not_start_again_under_another_host_name_or_folder_than_the_others_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "x.toml"

    def write(more: str) -> None:
        file.write_text(f'[cluster]\nname = "east"\ndata_dir = "{tmp_path}"\n{more}')

    write("")
    config = configuration.load(file, {}, {})
    started: list[_Process] = []

    def start_role(*_: object) -> tuple[_Process, None]:
        started.append(_Process())
        return started[-1], None

    monkeypatch.setattr(supervise, "start_role", start_role)
    monkeypatch.setattr(supervise, "_signal_group", lambda pid, number: None)
    monkeypatch.setattr(supervise, "_BACKOFF_FIRST_S", 0.0)
    role = RoleSupervisor("worker", config, file)
    assert role.start().event == "started"
    started[0].returncode = 1
    write('host = "other"\n[zookeeper]\nroot = "/elsewhere"\n')
    assert role.poll()[0].detail.startswith("exit code 1")
    (event,) = role.poll()
    assert event.event == "ended" and len(started) == 1
    assert "still have the earlier cluster.host, zookeeper.root: walship down" in event.detail
    write("[worker]\nstreams_max = 3\n")
    wait_until(lambda: bool(role.poll()), what="its start")
    assert len(started) == 2, "other settings may change"


def test_a_role_that_is_frozen_stops_when_it_is_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configuration.load(None, {"cluster": {"name": "east", "data_dir": str(tmp_path)}}, {})
    config.run_dir.mkdir(parents=True)
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        monkeypatch.setattr(supervise, "start_role", lambda *_: (process, None))
        role = RoleSupervisor("worker", config, tmp_path / "x.toml")
        role.start()
        os.kill(process.pid, signal.SIGSTOP)
        role.request_stop()
        role.finish(time.monotonic() + 30)
    assert process.returncode == -signal.SIGTERM, "not killed after a while"


def test_a_frozen_role_of_a_killed_supervisor_ends_when_the_next_one_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration.load(None, {"cluster": {"name": "east", "data_dir": str(tmp_path)}}, {})
    monkeypatch.setattr(supervise, "start_role", lambda *_: (_Process(), None))
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as left:
        ProcessState("worker", left.pid, "ready").write(config.run_dir)
        os.kill(left.pid, signal.SIGSTOP)
        left.terminate()  # as the kernel does when its parent ends
        RoleSupervisor("worker", config, tmp_path / "x.toml").start()
        assert left.wait(30) == -signal.SIGTERM
