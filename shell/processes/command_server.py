"""The supervisor's end of ``shell/cli/forwarded.py``: each command that comes runs in a fork of its own."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from replication.local_socket import address, is_same_user
from shell.cli.forwarded import CAN_ASK, NAME, READY, ForwardedCommand, program, receive, receive_streams
from shell.cli.interrupting import INTERRUPTED
from shell.processes.forked import Forked, fork, load_shared
from shell.processes.wakes import Wakes

_AT_ONCE_MAX = 8
_BACKLOG = 16
_REQUEST_S = 5.0


class CommandServer:
    """A context in which commands are answered, in forks of this process; at most ``_AT_ONCE_MAX`` at once.

    Args:
        run: runs a command line and returns its exit code.
        load: loads what commands need; called when the first one comes.
        wakes: calls when a client connects, from the main thread.
    """

    def __init__(
        self, run: Callable[[Sequence[str]], int], load: Callable[[], None], run_dir: Path, wakes: Wakes
    ) -> None:
        self._run = run
        self._load: Callable[[], None] | None = load
        self._run_dir = run_dir
        self._wakes = wakes
        self._forks: list[Forked] = []
        self._server = socket.socket(socket.AF_UNIX)

    def __enter__(self) -> CommandServer:
        """Make the socket. Where there can be none, commands load what they use."""
        if CAN_ASK:
            with suppress(OSError), address(self._run_dir, NAME) as name:
                (self._run_dir / NAME).unlink(missing_ok=True)
                self._server.bind(name)
                self._server.listen(_BACKLOG)
                self._server.setblocking(False)
                self._wakes.call_when_readable(self._server.fileno(), self._accept)
                self._wakes.call_when_child_ended(self._reap)
        return self

    def __exit__(self, *_: object) -> None:
        """Answer no further ones. Those that run end by themselves."""
        with suppress(OSError):
            (self._run_dir / NAME).unlink(missing_ok=True)
        self._server.close()

    def _reap(self) -> None:
        self._forks = [each for each in self._forks if each.poll() is None]

    def _accept(self) -> None:
        try:
            client, _ = self._server.accept()
        except OSError:  # it has gone
            return
        with client:
            if not is_same_user(client):
                return
            load, self._load = self._load, None
            if load is not None:
                with suppress(Exception):  # as after an upgrade: the command says what is wrong, and nothing ends here
                    load_shared(load)
            if len(self._forks) < _AT_ONCE_MAX:
                with suppress(OSError), open(os.devnull, "r+b", 0) as null:  # too many processes: the client runs it
                    standard, keep = (null.fileno(),) * 3, (client.fileno(),)
                    self._forks.append(fork(lambda: _answer(client, self._run), standard, keep))


def _answer(client: socket.socket, run: Callable[[Sequence[str]], int]) -> int:
    """In the fork: run what ``client`` asks for."""
    os.setsid()
    client.settimeout(_REQUEST_S)
    asked = receive(client)
    if asked is None or list(asked.program) != program():
        return 1
    client.sendall(READY)
    streams = receive_streams(client)
    if not streams:
        return 1
    client.settimeout(None)
    _become(asked, streams)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Thread(target=_serve_client, args=(client,), name="client", daemon=True).start()
        code = run(asked.words)
    except KeyboardInterrupt:  # before ``run`` could catch it
        code = INTERRUPTED
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    with suppress(OSError):
        client.sendall(bytes([code & 0xFF]))
    return code


def _become(asked: ForwardedCommand, streams: Sequence[int]) -> None:
    """Take the client's place."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(asked.environment)
    time.tzset()
    os.chdir(asked.folder)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  open as long as the process is
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        buffering = 1 if os.isatty(descriptor) or name == "stderr" else -1
        setattr(sys, name, _text(descriptor, buffering, asked.encoding))


def _text(descriptor: int, buffering: int, encoding: str) -> TextIO:
    return open(descriptor, "w", buffering, encoding, "backslashreplace", closefd=False)


def _serve_client(client: socket.socket) -> None:
    """Interrupt the command when its client was, and end it when its client has ended."""
    with suppress(OSError):
        while client.recv(1):
            os.kill(os.getpid(), signal.SIGINT)
    os._exit(INTERRUPTED)
