"""Drills, and verbs that only read, are run by the supervisor of the cluster, where it runs on this host.

The client hands over its command line, folder, environment and standard streams. A fork of the supervisor runs the
command line as this process would have run it. Where no supervisor answers, this process runs it.

Both talk over a socket that only the cluster's user can connect to. The client sends the command, and the fork sends a
byte when it can run it. The client sends one with its streams, and the fork begins. Then the exit code comes. A further
byte from the client is Ctrl-C. When the client ends, so does the fork.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from replication import __version__
from replication.local_socket import address, is_same_user

VERBS = frozenset({"describetable", "drill", "listclusters", "listtables", "status"})
NAME = "commands"
READY, GO, INTERRUPT = b"r", b"g", b"i"
CAN_ASK = sys.platform == "linux"
_ANSWER_S = 1.0
_LENGTH = struct.Struct("<I")
_TAKE_VALUES = ("-c", "--cluster")
_OWN = ("-h", "--help", "--debug")  # of those that this process does itself


@dataclass(frozen=True, slots=True)
class ForwardedCommand:
    """A command line, with what it depends on."""

    words: Sequence[str]
    folder: str
    environment: Mapping[str, str]
    encoding: str
    program: Sequence[str]

    def pack(self) -> bytes:
        """As a message, with its length before it."""
        text = json.dumps(asdict(self)).encode()
        return _LENGTH.pack(len(text)) + text


def program() -> list[str]:
    """What both ends must have in common: the version, the place of its code and the interpreter."""
    return [__version__, str(Path(__file__).parent), sys.executable]


def forward(words: Sequence[str]) -> int | None:
    """Have the supervisor run a command line; its exit code. None when this process has to run it."""
    if not CAN_ASK or not _may_be_asked(words):
        return None
    try:
        with _connected(_run_dir(_cluster(words))) as server:
            asked = ForwardedCommand(list(words), os.getcwd(), dict(os.environ), sys.stdout.encoding, program())
            server.sendall(asked.pack())
            if server.recv(1) != READY:
                return None
            return _ended(server)
    except Exception:  # no file, no supervisor, another user's, or none that can; this process says what is wrong
        return None


def verb_at(words: Sequence[str]) -> int | None:
    """Where the verb stands in a command line, after the options that every verb has."""
    before = ["", *words]
    return next((at for at, w in enumerate(words) if not w.startswith("-") and before[at] not in _TAKE_VALUES), None)


def receive(client: socket.socket) -> ForwardedCommand | None:
    """What a client asks for; None when it has gone."""
    with client.makefile("rb") as file:
        began = file.read(_LENGTH.size)
        if len(began) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack(began)
        text = file.read(length)
    return ForwardedCommand(**json.loads(text)) if len(text) == length else None


def receive_streams(client: socket.socket) -> list[int]:
    """A client's standard streams, once it has heard that its command can be run; none when it has gone."""
    message, streams, _, _ = socket.recv_fds(client, 1, 3)
    return streams if message == GO and len(streams) == 3 else []


def _may_be_asked(words: Sequence[str]) -> bool:
    """Whether the verb is one of ``VERBS``, and nothing asks for this process itself."""
    at = verb_at(words)
    return (
        at is not None
        and words[at] in VERBS
        and not set(_OWN).intersection(words)
        and not os.environ.get("WALSHIP_DEBUG")
    )


def _cluster(words: Sequence[str]) -> Path:
    from shell.cli.find import find_cluster  # deferred: most verbs are not asked for

    named = [words[at + 1] for at, word in enumerate(words) if word in _TAKE_VALUES]
    named += [word.partition("=")[2] for word in words if word.startswith("--cluster=")]
    return Path(find_cluster(named[-1] if named else None, os.environ, Path.cwd()).target)


def _run_dir(file: Path) -> Path:
    import tomllib

    with file.open("rb") as opened:
        folder = os.environ.get("WALSHIP_CLUSTER_DATA_DIR") or tomllib.load(opened)["cluster"].get("data_dir", ".")
    return file.parent / Path(folder).expanduser() / "run"


@contextmanager
def _connected(run_dir: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as server, address(run_dir, NAME) as name:
        server.settimeout(_ANSWER_S)
        server.connect(name)
        if not is_same_user(server):
            raise PermissionError
        yield server


def _ended(server: socket.socket) -> int:
    """Have the fork begin; the exit code, once the command has ended. From here on Ctrl-C is for the fork."""
    is_interrupted = False

    def interrupt(*_: object) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        with suppress(OSError):
            server.sendall(INTERRUPT)

    server.settimeout(None)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, interrupt)
    socket.send_fds(server, [GO], [0, 1, 2])  # not before: a supervisor that hangs would hold them open
    code = b""
    with suppress(OSError):  # the fork was killed
        code = server.recv(1)
    if code:
        return code[0]
    from shell.cli.interrupting import INTERRUPTED  # deferred: few commands end like this

    return INTERRUPTED if is_interrupted else 1
