"""Hooks of role changes: a person's programs, run before and after each phase, for DNS and job schedulers.

They are the executable files in ``[failover] hooks``, run by name, each alone, in that folder, by the user who runs the
verb. A hook that fails before a phase stops the change there. One that fails after a phase is reported. An interrupted
change calls the hooks of all its phases again when it goes on, so a hook must bear repetition. Only this host's
configuration says what runs: a peer gives names and numbers, never a program.

Each gets ``before`` or ``after`` and the phase as arguments, and these variables:

    WALSHIP_HOOK_EVENT        before, after
    WALSHIP_HOOK_CHANGE       switchover, failover
    WALSHIP_HOOK_PHASE        prepare, stop, drain, promote, undo
                              of a failover: witness, prepare, fence, lease, promote, take_back
    WALSHIP_HOOK_CLUSTER      the cluster that the verb runs on
    WALSHIP_HOOK_ORIGIN       the cluster that was ACTIVE
    WALSHIP_HOOK_SUCCESSOR    the cluster that is to be ACTIVE
    WALSHIP_HOOK_EPOCH        its role epoch
    WALSHIP_HOOK_ZOOKEEPERS   its ZooKeeper's address, if it is known here
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from replication import log
from replication.errors import ConfigError, RequestError

PREFIX = "WALSHIP_HOOK_"
_TAIL_BYTES = 4096
_log = log.get(__name__)


@dataclass(frozen=True, slots=True)
class RoleHooks:
    """The hooks of one host.

    Args:
        folder: where they are; None for none.
        timeout_s: how long each may take. Then it is killed, with what it started.
        report: gets a line for each hook that failed after its phase.
    """

    folder: Path | None
    timeout_s: float
    report: Callable[[str], None]

    def files(self) -> tuple[Path, ...]:
        """The hooks, in the order in which they run.

        Raises:
            ConfigError: the folder cannot be read, or others than its owner may change a hook.
        """
        if self.folder is None:
            return ()
        try:
            found = [each for each in sorted(self.folder.iterdir()) if _is_hook(each)]
            loose = [each for each in (self.folder, *found) if each.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)]
        except OSError as error:
            raise ConfigError(
                f"the folder of hooks {self.folder} cannot be read: {error.strerror}", "Correct [failover] hooks"
            ) from None
        if loose:
            raise ConfigError(f"other users may write to {loose[0]}, so no hook is run", f"chmod go-w {loose[0]}")
        return tuple(found)

    @contextmanager
    def around(self, change: str, phase: str, about: Mapping[str, str]) -> Iterator[None]:
        """Run the hooks before what is done inside, and after it unless it fails.

        Raises:
            RequestError: one failed before. ConfigError: as ``files``.
        """
        for file in self.files():
            if failure := self._run(file, "before", change, phase, about):
                raise RequestError(failure, f"Correct the hook, or take it out of {self.folder}")
        yield
        self.after(change, phase, about)

    def after(self, change: str, phase: str, about: Mapping[str, str]) -> None:
        """Run the hooks after a phase; each failure is reported, and the next one runs."""
        try:
            files = self.files()
        except ConfigError as error:
            self.report(error.what)
            return
        for file in files:
            if failure := self._run(file, "after", change, phase, about):
                _log.error("hook_failed", hook=str(file), change=change, phase=phase, error=failure)
                self.report(f"{failure}. The {change} goes on")

    def _run(self, file: Path, event: str, change: str, phase: str, about: Mapping[str, str]) -> str:
        """Run one hook; why it failed, "" when it did not."""
        given = {"event": event, "change": change, "phase": phase, **about}
        environment = {**os.environ, **{f"{PREFIX}{name.upper()}": value for name, value in given.items()}}
        name = f"hook {file.name} {event} {phase}"
        with contextlib.ExitStack() as opened:
            try:
                output = opened.enter_context(tempfile.TemporaryFile())
                running = subprocess.Popen(
                    [str(file), event, phase],
                    cwd=self.folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                return f"{name} cannot be run: {error.strerror}"
            try:
                code = running.wait(self.timeout_s)
            except BaseException as error:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
                running.wait()
                if isinstance(error, subprocess.TimeoutExpired):
                    return f"{name} took longer than {self.timeout_s:g} s and was killed"
                raise
            _log.info("hook_ran", hook=str(file), when=event, change=change, phase=phase, exit_code=code)
            return f"{name} failed with exit code {code}{_last_line(output.fileno())}" if code else ""


def _is_hook(file: Path) -> bool:
    return file.is_file() and os.access(file, os.X_OK) and not file.name.startswith(".") and file.name[-1] != "~"


def _last_line(output: int) -> str:
    size = os.fstat(output).st_size
    tail = os.pread(output, _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode(errors="replace").split("\n")
    lines = [text for line in tail if (text := "".join(c for c in line if c.isprintable()).strip())]
    return f": {lines[-1][:200]}" if lines else ""
