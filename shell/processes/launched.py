"""``walship up`` as a process that another command starts, and that stops with it unless it is left running."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from peer.polling import polls
from peer.status.role_processes import ProcessState
from replication.config import Config
from replication.errors import ConfigError, ReplicationError, WaitTimeoutError
from shell.processes.spawn import spawn
from shell.processes.stopping import DETACH

_STOP_TIMEOUT_S = 40.0


@dataclass(slots=True)
class Launched:
    """A cluster's configuration and roles on this host, and the ``walship up`` that runs them once started."""

    name: str
    file: Path
    config: Config
    roles: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    lifeline: int | None = None
    output_before: int = 0
    states_before: dict[str, ProcessState | None] = field(default_factory=dict)

    @property
    def output(self) -> Path:
        """The output of ``walship up``."""
        return self.config.log_dir / "up.out"

    def start(self, *arguments: str) -> None:
        """Start ``walship up ARGUMENTS`` in its own session, tied to this process by a pipe."""
        self.output.parent.mkdir(parents=True, exist_ok=True)
        self.output_before = self.output.stat().st_size if self.output.exists() else 0
        self.states_before = {role: self.state(role) for role in self.roles}
        self.process, self.lifeline = spawn(
            ("up", "--config", str(self.file), *arguments), self.output, self.environment
        )

    def state(self, role: str) -> ProcessState | None:
        """The last state that a role wrote."""
        return ProcessState.read(self.config.run_dir, role)

    def is_up(self, role: str) -> bool:
        """Whether a role is ready and its process runs.

        States from before the start do not count: they may be of the original of a copied data directory, or of process
        ids from before a crash.
        """
        state = self.state(role)
        if state is None or state.state != "ready" or state == self.states_before.get(role):
            return False
        try:
            os.kill(state.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def roles_up(self) -> dict[str, bool]:
        """Of each role, whether it is up."""
        return {role: self.is_up(role) for role in self.roles}

    def check(self) -> None:
        """Raise the error that ``walship up`` ended with; nothing while it runs."""
        if self.process is not None and self.process.poll() is not None:
            printed = self.output.read_bytes()[self.output_before :].decode(errors="replace").strip().splitlines()
            lines = [line for line in printed if line.startswith(("error", "hint"))]
            if not lines and not self.process.returncode:
                raise ReplicationError(
                    f"cluster {self.name} was stopped before it was ready", "Start it again: walship up"
                )
            what = lines[0].removeprefix("error").strip() if lines else f"exit code {self.process.returncode}"
            hint = lines[1].removeprefix("hint").strip() if len(lines) > 1 else f"See {self.output}"
            error = ReplicationError(f"cluster {self.name} did not stay up: {what}", hint)
            error.exit_code = max(1, self.process.returncode)
            raise error

    def leave_running(self) -> None:
        """Cut the tie, so that the cluster runs on. ReplicationError if it has just ended."""
        if self.lifeline is not None:
            try:
                os.write(self.lifeline, DETACH)
            except BrokenPipeError:
                self.join()
                self.check()
            os.close(self.lifeline)
            self.lifeline = None

    def stop(self) -> None:
        """Stop it; ``join`` waits for that."""
        if self.lifeline is not None:
            os.close(self.lifeline)
            self.lifeline = None

    def join(self) -> None:
        """Wait until it has ended."""
        if self.process is None:
            return
        try:
            self.process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()  # its roles stop when their lifelines end
            self.process.wait()


def await_ready(
    launched: Sequence[Launched],
    timeout_s: float,
    report: Callable[[str], None] = lambda error: None,
) -> None:
    """Wait until every process of every cluster is ready.

    ``report`` is called with the reason for each restart.

    Raises:
        ReplicationError: one did not stay up.
        WaitTimeoutError: not in time; names those that are not ready.
    """
    began = time.time()
    reported: set[tuple[str, str, str]] = set()
    for _ in polls(timeout_s, 0.1):
        late = [(each, role) for each in launched for role in each.roles if not each.is_up(role)]
        if not late:
            return
        for each in launched:
            each.check()
        for each, role in late:
            state = each.state(role)
            if state is None or state.state != "failed" or state.at < began or state.exit_code == ConfigError.exit_code:
                continue  # a mistake in the configuration ends it all, and check() raises it
            if (each.name, role, state.what) not in reported:
                reported.add((each.name, role, state.what))
                report(f"{each.name}'s {role} ended and is started again: {state.what}. {state.hint}".strip())
    names = ", ".join(f"{each.name}'s {role}" for each, role in late)
    raise WaitTimeoutError(f"not ready within {timeout_s:.0f} s: {names}", f"See {late[0][0].config.log_dir}")
