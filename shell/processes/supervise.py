"""Runs one process per role: starts them, restarts them with backoff, and stops them together.

Each role runs in a process group of its own. So Ctrl-C reaches only the supervisor, which stops the roles in order.
When a role has ended, the rest of its group is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from peer.status.role_processes import ProcessState
from replication import config as configuration
from replication.config import Config
from replication.error_text import signal_text
from replication.errors import ConfigError
from replication.retries import Retries
from shell.processes.forked import Process, start_role
from shell.processes.role_process import STOP_GRACE_S

_BACKOFF_FIRST_S, _BACKOFF_MAX_S, _STEADY_S = 0.5, 30.0, 60.0
_LOG_BYTES_MAX = 32 << 20
_POLL_S = 0.1
_STEADY_POLL_S = 3.0  # the end of a process wakes the supervisor before
_CHECK_S = 3.0  # of the conditions of roles that start later


@dataclass(frozen=True, slots=True)
class RoleEvent:
    """An event of a role's process: ``started``, ``ready``, ``ended`` or ``stopped``."""

    role: str
    event: str
    pid: int
    detail: str = ""


class RoleSupervisor:
    """One role's process and its restarts."""

    def __init__(self, role: str, config: Config, file: Path) -> None:
        self.role = role
        self.restarts = 0
        self._config = config
        self._file = file
        self._process: Process | None = None
        self._lifeline: int | None = None
        self._started = 0.0
        self._again = 0.0
        self._retries = Retries(_BACKOFF_FIRST_S, _BACKOFF_MAX_S, jitter=False)
        self._was_ready = False

    @property
    def is_steady(self) -> bool:
        """Whether it runs and was ready."""
        return self._process is not None and self._was_ready

    @property
    def pid(self) -> int:
        """The process id; 0 when it does not run."""
        return self._process.pid if self._process is not None and self._process.returncode is None else 0

    def start(self) -> RoleEvent:
        """Start the process. If this host has no room for it, it counts as ended and is started again later.

        Call it from the main thread: the kernel's parent-death signal follows the thread.
        """
        if changed := self._changed():
            what = f"{self._file} was edited, and running processes still have the earlier {changed}"
            return self._put_off(0, f"{what}: walship down, then walship up")
        try:
            self._process, self._lifeline = self._spawned()
        except OSError as error:  # a full disk, or too many processes or open files
            return self._put_off(0, f"cannot be started: {error}")
        self._started = time.monotonic()
        self._was_ready = False
        return RoleEvent(self.role, "started", self._process.pid)

    def _spawned(self) -> tuple[Process, int]:
        self._config.log_dir.mkdir(parents=True, exist_ok=True)
        output = self._output
        if output.exists() and output.stat().st_size > _LOG_BYTES_MAX:
            output.replace(output.with_suffix(".out.1"))
        if (before := ProcessState.read(self._config.run_dir, self.role)) is not None:
            _signal_group(before.pid, signal.SIGCONT)  # frozen, it did not end with its supervisor, and has the lock
        (self._config.run_dir / f"{self.role}.json").unlink(missing_ok=True)
        return start_role(self.role, self._file, output)

    def _changed(self) -> str:
        """The settings that a host's processes share and that were edited since the first ones started; "" for none."""
        try:
            was, now = _shared(self._config), _shared(configuration.load(self._file))
        except ConfigError:  # the process itself says what is wrong
            return ""
        return ", ".join(name for name, value in was.items() if now[name] != value)

    @property
    def _output(self) -> Path:
        return self._config.log_dir / f"{self.role}.out"

    @property
    def is_ready(self) -> bool:
        """Whether the running process wrote that it is ready."""
        state = self._state(self.pid)
        return state is not None and state.state == "ready"

    def _state(self, pid: int) -> ProcessState | None:
        state = ProcessState.read(self._config.run_dir, self.role)
        return state if state is not None and state.pid == pid else None

    def poll(self) -> list[RoleEvent]:
        """The events since the last poll; a process that ended is started again when its backoff is over.

        Raises:
            ConfigError: the configuration or the machine does not fit, and the role was never ready.
        """
        if self._process is None:
            return [self.start()] if time.monotonic() >= self._again else []
        if (code := self._process.poll()) is None:
            return self._noticed_ready()
        return [self._ended(self._process, code)]

    def request_stop(self) -> None:
        """Ask the process to stop, also if it is frozen."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            _signal_group(self._process.pid, signal.SIGCONT)

    def finish(self, deadline: float) -> RoleEvent:
        """Wait until the process has ended; its group is killed at ``deadline`` (monotonic)."""
        process = self._process
        if process is None:
            return RoleEvent(self.role, "stopped", 0)
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()
        self._release(process)
        return RoleEvent(self.role, "stopped", process.pid)

    def _noticed_ready(self) -> list[RoleEvent]:
        assert self._process is not None
        if time.monotonic() - self._started > _STEADY_S:
            self._retries.succeeded()
        if self._was_ready or not self.is_ready:
            return []
        self._was_ready = True
        return [RoleEvent(self.role, "ready", self._process.pid)]

    def _ended(self, process: Process, code: int) -> RoleEvent:
        state = self._state(process.pid)
        failed = state if state is not None and state.state == "failed" else None
        self._release(process)
        if (
            failed is not None
            and failed.exit_code == ConfigError.exit_code
            and not self._was_ready
            and not self.restarts
        ):
            raise ConfigError(f"{self.role}: {failed.what}", failed.hint)
        return self._put_off(process.pid, _reason(code, failed, self._output))

    def _put_off(self, pid: int, reason: str) -> RoleEvent:
        self.restarts += 1
        wait_s = self._retries.failed()
        self._again = time.monotonic() + wait_s
        detail = f"{reason}; starts again in {wait_s:.1f} s"
        return RoleEvent(self.role, "ended", pid, detail)

    def _release(self, process: Process) -> None:
        _signal_group(process.pid, signal.SIGKILL)
        if self._lifeline is not None:
            os.close(self._lifeline)
        self._lifeline = self._process = None


class Supervisor:
    """All roles of one cluster on this host.

    Args:
        file: its TOML file, which each process reads.
        roles: in the order in which they start.
        later: roles that start once their condition is true; ``ready`` does not wait for them.
        load: called with each role before it starts, ahead for as long as ZooKeeper starts.
    """

    def __init__(
        self,
        config: Config,
        file: Path,
        roles: Sequence[str],
        on_event: Callable[[RoleEvent], None],
        later: Mapping[str, Callable[[], bool]] | None = None,
        *,
        load: Callable[[str], None] = lambda role: None,
    ) -> None:
        self._load = load
        self._loaded: set[str] = {"zookeeper"}
        self._later = later or {}
        self._roles = [RoleSupervisor(role, config, file) for role in roles]
        self._on_event = on_event

    def run(self, wait: Callable[[float], bool], ready: Callable[[], None]) -> None:
        """Start all, keep them running, then stop all. No process is left when it returns or raises.

        ``wait`` tells whether to stop: True as soon as that is so; False after the seconds that it gets, or before.
        """
        waiting = [role for role in self._roles if role.role not in self._later]
        dormant = [role for role in self._roles if role.role in self._later]
        checked_s = 0.0
        running: list[RoleSupervisor] = []
        announced = False
        try:
            while not wait(self._pause_s(running, waiting)):
                for role in running:
                    for event in role.poll():
                        self._report(event)
                while waiting and self._has_zookeeper(running):
                    self._load_once(waiting[0].role)
                    running.append(waiting.pop(0))
                    self._report(running[-1].start())
                for role in waiting:
                    if self._has_zookeeper(running):
                        break
                    self._load_once(role.role)
                if not announced and not waiting and all(role.is_ready for role in running):
                    announced = True
                    with suppress(OSError):
                        ready()
                if announced and dormant and time.monotonic() - checked_s > _CHECK_S:
                    checked_s = time.monotonic()
                    woken = [role for role in dormant if self._later[role.role]()]
                    dormant = [role for role in dormant if role not in woken]
                    waiting += woken
        finally:
            self._stop(running)

    def _load_once(self, role: str) -> None:
        if role not in self._loaded:
            self._loaded.add(role)
            self._load(role)

    def _has_zookeeper(self, running: Sequence[RoleSupervisor]) -> bool:
        """Whether ZooKeeper is ready, if it is a role here."""
        return all(role.is_ready for role in running if role.role == "zookeeper")

    @staticmethod
    def _pause_s(running: Sequence[RoleSupervisor], waiting: Sequence[RoleSupervisor]) -> float:
        """The time until the next poll: longer when nothing but the end of a process is awaited."""
        if not running:
            return 0.0
        is_steady = not waiting and all(role.is_steady for role in running)
        return _STEADY_POLL_S if is_steady else _POLL_S

    def _stop(self, running: Sequence[RoleSupervisor]) -> None:
        """Stop the roles, ZooKeeper last, so that the others can close their sessions."""
        deadline = time.monotonic() + STOP_GRACE_S
        last = [role for role in running if role.role == "zookeeper"]
        first = [role for role in running if role.role != "zookeeper"]
        for group in (first, last):
            for role in group:
                role.request_stop()
            for role in group:
                self._report(role.finish(deadline))
            deadline += STOP_GRACE_S / 2

    def _report(self, event: RoleEvent) -> None:
        with suppress(OSError):  # events cannot be written to a full disk; the roles go on
            self._on_event(event)


def _shared(config: Config) -> dict[str, object]:
    """Where the processes of a host find each other, and what they share."""
    return {
        "cluster.name": config.cluster.name,
        "cluster.host": config.cluster.host,
        "cluster.data_dir": config.data_dir,
        "zookeeper.root": config.zookeeper_root,
        "ledger.url": config.ledger_url,
    }


def _reason(code: int, failed: ProcessState | None, output: Path) -> str:
    if failed is not None:
        return failed.what
    if code < 0:
        return f"killed by {signal_text(-code)}"
    return f"exit code {code}, see {output}"


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
