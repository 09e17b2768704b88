"""``walship`` commands without the second that each would need to load its modules.

A server that has loaded them forks for every command: each is a process of its own, with its own standard streams,
environment and exit code, which ends as it would end alone. So are ``walship up`` and the roles that it forks. Where
the start of a command is tested, it is started.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from shell.processes import spawn as spawning

ROOT = Path(__file__).parents[2]
LOADED = (
    "duckdb",
    "encodings.idna",
    "pandas",
    "peer.client.comparison",
    "peer.client.connect",
    "peer.derive.role",
    "peer.receive.receiver",
    "peer.replay.election",
    "peer.replay.loop",
    "peer.tables.kept_reads",
    "peer.tables.trace",
    "pyarrow.compute",
    "pyarrow.csv",
    "pyarrow.parquet",
    "pyiceberg.catalog.sql",
    "replication.coordination.zookeeper",
    "replication.link.grpc_client",
    "replication.master.loop",
    "replication.tables.pyiceberg.patches",
    "replication.tables.spark.iceberg",
    "replication.worker.loop",
    "shell.interactive",
    "shell.processes.up",
    *(
        f"replication.ledger.sql.parts.{file.stem}"
        for file in (ROOT / "replication/ledger/sql/parts").glob("[a-z]*.py")
    ),
)
_LIFELINE = 3
_AT_START = ("PYTHONPATH", "TEST_CLOCK")  # what counts only when Python starts


class Started:
    """A process that the server has started, with what ``subprocess.Popen`` has."""

    def __init__(self, conversation: socket.socket) -> None:
        with conversation:
            self._told = conversation.makefile()
        self.pid = int(self._told.readline())
        self.returncode: int | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._await_end, name=f"end of {self.pid}", daemon=True).start()

    def _await_end(self) -> None:
        with self._told:
            self.returncode = int(self._told.readline() or -signal.SIGKILL)
        self._ended.set()

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The same once it has ended; subprocess.TimeoutExpired when it has not in time."""
        if not self._ended.wait(timeout) or self.returncode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Commands:
    """A server of commands, started when the first one comes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._to_server: socket.socket | None = None
        self._at_start = [os.environ.get(name) for name in _AT_START]

    def run(self, arguments: Sequence[str], stdin: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run ``walship ARGUMENTS`` as ``subprocess.run`` would."""
        if not self._is_ready():
            command = [sys.executable, "-m", "shell.main", *arguments]
            return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, input=stdin, timeout=timeout_s)
        with (
            tempfile.TemporaryFile("w+") as given,
            tempfile.TemporaryFile("w+") as out,
            tempfile.TemporaryFile("w+") as err,
        ):
            given.write(stdin)
            given.seek(0)
            code = self._ask(arguments, [given.fileno(), out.fileno(), err.fileno()], timeout_s)
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(list(arguments), code, out.read(), err.read())

    def spawn(
        self, arguments: Sequence[str], output: Path, environment: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[Any, int]:
        """Start ``walship ARGUMENTS`` in its own session, tied to this process, as ``spawn`` of the program does."""
        if not self._is_ready():
            return spawning.spawn(arguments, output, environment)
        readable, writable = os.pipe()
        try:
            with open(os.devnull) as given, output.open("ab") as out:
                streams = [given.fileno(), out.fileno(), out.fileno(), readable]
                told = self._asked(arguments, {**spawning.child_environment(), **environment}, streams)
                return Started(told), writable
        except BaseException:
            os.close(writable)
            raise
        finally:
            os.close(readable)

    def _is_ready(self) -> bool:
        """Whether the server runs, and a process that starts by now would load the same."""
        if [os.environ.get(name) for name in _AT_START] != self._at_start:
            return False
        with self._lock:
            if self._to_server is None:
                self._start()
        return True

    def _asked(self, arguments: Sequence[str], environment: Mapping[str, str], streams: list[int]) -> socket.socket:
        """Ask for a process: it tells its id, and its exit code in the end. A fourth stream is its lifeline."""
        assert self._to_server is not None
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            socket.send_fds(self._to_server, [b"."], [theirs.fileno(), *streams])
        ours.sendall(json.dumps([list(arguments), dict(environment)]).encode() + b"\n")
        return ours

    def _ask(self, arguments: Sequence[str], streams: list[int], timeout_s: float) -> int:
        """Have a command run; its exit code."""
        with self._asked(arguments, os.environ, streams) as ours, ours.makefile() as told:
            ours.settimeout(timeout_s)
            pid = int(told.readline())
            try:
                return int(told.readline())
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(arguments), timeout_s) from None

    def close(self) -> None:
        """End the server. Idempotent; another command starts it again."""
        with self._lock:
            if self._server is not None and self._to_server is not None:
                self._to_server.close()
                self._server.wait(400)
            self._server = self._to_server = None

    def _start(self) -> None:
        self._to_server, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "tests.e2e.commands", str(theirs.fileno())]
            self._server = subprocess.Popen(command, cwd=ROOT, pass_fds=(theirs.fileno(),))


COMMANDS = Commands()


def main(client: int) -> NoReturn:
    """Serve until the other end, from which commands come, is closed."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's threads would not follow a fork
    for name in LOADED:
        importlib.import_module(name)
    from shell.main import make_app

    make_app()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how those ended that are forked below
    with socket.socket(fileno=client) as wanted:
        while opened := socket.recv_fds(wanted, 1, 5)[1]:
            if not os.fork():
                wanted.close()
                _run(*opened)
            for number in opened:
                os.close(number)
    os._exit(0)


def _run(conversation: int, *streams: int) -> NoReturn:
    """Have a child run the command that is asked for, so that its exit code can be told."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    client = socket.socket(fileno=conversation)
    told = client.makefile("rw")
    arguments, environment = json.loads(told.readline())
    pid = os.fork()
    if pid:
        for number in streams:
            os.close(number)
        told.write(f"{pid}\n")
        told.flush()
        told.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        told.flush()
        os._exit(0)
    client.detach()
    for number, opened in enumerate(streams):  # none has a number below its own there: the conversation came first
        os.dup2(opened, number)
    os.closerange(len(streams), max(conversation, *streams) + 1)
    os.environ.clear()
    os.environ.update(environment)
    if len(streams) > _LIFELINE:
        os.setsid()
        sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
        arguments += ["--lifeline", str(_LIFELINE)]
    _command(arguments)


def _command(arguments: Sequence[str]) -> NoReturn:
    from shell.main import main as command_line

    sys.argv = ["walship", *arguments]
    code: Any = None
    try:
        command_line()
    except SystemExit as end:
        code = end.code
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)  # what the server loaded may complain


if __name__ == "__main__":
    main(int(sys.argv[1]))
