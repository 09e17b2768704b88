"""Roles as forks of their supervisor, which has loaded what they run: they share its memory, and start without loading.

The supervisor forks from its main thread, while it has no connection to a ledger: SQLite's locks do not follow a fork.
Where forks are not safe (macOS), each role is a new process.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TextIO

from shell.processes import role_process
from shell.processes.spawn import child_environment, spawn

CAN_FORK = sys.platform == "linux"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
_POLL_S = 0.01
_PR_SET_NAME = 15
_DESCRIPTORS_MAX = 1 << 30
_LOADED = {
    "": (
        "structlog",
        "shell.processes.roles",
        "replication.coordination.zookeeper",
        "replication.ledger.sql.parts.files",
    ),
    "master": ("replication.master.loop",),
    "worker": ("replication.worker.loop",),
    "receiver": ("peer.receive.receiver",),
    "replay": ("peer.replay.loop", "peer.replay.election"),
}


class Forked:
    """A fork of this process, with what ``subprocess.Popen`` has."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The same once it has ended; subprocess.TimeoutExpired when it has not in time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(_POLL_S)
        return code

    def terminate(self) -> None:
        """Send SIGTERM."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)


Process = subprocess.Popen[bytes] | Forked


def load_for(role: str) -> None:
    """Load what a role runs, so that processes forked later share it. What cannot be loaded fails in the role."""

    def load() -> None:
        for module in (*_LOADED[""], *_LOADED.get(role, ())):
            with suppress(ImportError):
                importlib.import_module(module)

    if CAN_FORK:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # loading NumPy would start a thread for each processor
        load_shared(load)


def load_shared(load: Callable[[], None]) -> None:
    """Call ``load`` and have later forks share what it has loaded."""
    gc.disable()
    try:
        load()
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()  # a collection in a fork would copy every page that it looks at


def start_role(role: str, file: Path, output: Path) -> tuple[Process, int]:
    """Start a role's process in its own session; the process and its lifeline.

    ``output`` is the file that its output is appended to.
    """
    if not CAN_FORK:
        return spawn(("_role", role, "--config", str(file)), output)
    readable, writable = os.pipe()
    try:
        with output.open("ab") as out:
            process = fork(lambda: _serve(role, file, readable), (os.devnull, out.fileno(), out.fileno()), (readable,))
    except BaseException:
        os.close(writable)
        raise
    finally:
        os.close(readable)
    return process, writable


def _check_ledgers_closed() -> None:
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:  # the folder's own
            continue
        assert not name.endswith("-shm"), f"{name} is open: SQLite would take this process's locks for its child's"


def _serve(role: str, file: Path, lifeline: int) -> int:
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_NAME, f"walship-{role}".encode(), 0, 0, 0)
    os.environ.update(child_environment())
    return role_process.serve(role, str(file), lifeline)


def fork(run: Callable[[], int], standard: Sequence[str | int], keep: Sequence[int]) -> Forked:
    """Fork this process; the child calls ``run`` and exits with the code that it returns.

    Call it from the main thread. ``standard`` are the child's standard input, output and error: descriptors, or a file
    to read. It keeps those in ``keep``; all others are closed.
    """
    _check_ledgers_closed()
    sys.stdout.flush()
    sys.stderr.flush()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # a handler of this process would run in the child
    try:
        pid = os.fork()
        if not pid:
            _run_child(run, standard, keep, mask)
        return Forked(pid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _run_child(
    run: Callable[[], int], standard: Sequence[str | int], keep: Sequence[int], mask: Iterable[int]
) -> NoReturn:
    code = 1
    try:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)  # its number will be that of another descriptor
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        opened = [os.open(each, os.O_RDONLY) if isinstance(each, str) else each for each in standard]
        for number, descriptor in enumerate(opened):
            os.dup2(descriptor, number)
        _close_all_but(keep)
        gc.set_threshold(700, 10, 10)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  open as long as the process is
        sys.stdout, sys.stderr = _text(1), _text(2)
        code = run()
    except BaseException:
        traceback.print_exc()
    finally:
        role_process.leave(code)


def _text(descriptor: int) -> TextIO:
    return open(descriptor, "w", errors="backslashreplace", buffering=1, closefd=False)


def _close_all_but(keep: Sequence[int]) -> None:
    begin = 3
    for descriptor in sorted(keep):
        os.closerange(begin, descriptor)
        begin = descriptor + 1
    os.closerange(begin, _DESCRIPTORS_MAX)
