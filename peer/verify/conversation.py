"""The receiver's end of a comparison: starts a process that answers, passes its bytes on, and ends it in time."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peer.verify.messages import read, write
from replication import log
from replication.config import Config
from replication.core.grants import Grant
from replication.errors import PeerUnavailableError
from replication.link.base import Conversation, Reason, Refusal

OPEN_MAX, PEER_OPEN_MAX = 4, 2
SECONDS_MAX = 3600.0
_log = log.get(__name__)


class Conversations:
    """Starts processes that answer, at most ``OPEN_MAX`` at once, ``PEER_OPEN_MAX`` for one asker. Safe for threads.

    Args:
        seconds_max: how long one conversation may take.
    """

    def __init__(self, config: Config, seconds_max: float = SECONDS_MAX) -> None:
        self._config = config
        self._seconds_max = seconds_max
        self._lock = threading.Lock()
        self._open: set[ProcessConversation] = set()
        shutil.rmtree(self._folder, ignore_errors=True)  # left by a receiver that was killed

    @property
    def _folder(self) -> Path:
        return self._config.run_dir / "comparisons"

    def begin(self, asker: Grant) -> Conversation:
        """A conversation with a process of its own, about the tables that the asker is granted or sent.

        Raises:
            PeerRefusedError: too many are open.
        """
        with self._lock:
            own = sum(each.asker == asker.cluster.name for each in self._open)
            if len(self._open) >= OPEN_MAX or own >= PEER_OPEN_MAX:
                raise Refusal(
                    Reason.NOT_READY,
                    f"{len(self._open)} comparisons with {self._config.cluster.name} are running, {own} of them of"
                    f" {asker.cluster.name}",
                    "Try again when they are done",
                ).error()
            made = ProcessConversation(self._config, asker, self._folder, self._seconds_max, self._ended)
            self._open.add(made)
        _log.info("comparison_started", asker=str(asker.cluster), pid=made.pid)
        return made

    def close(self) -> None:
        """End all conversations."""
        for conversation in list(self._open):
            conversation.close()

    def _ended(self, conversation: ProcessConversation) -> None:
        with self._lock:
            self._open.discard(conversation)


class ProcessConversation:
    """``Conversation`` with one process.

    Attributes:
        asker: name of the cluster that asks.
    """

    def __init__(
        self,
        config: Config,
        asker: Grant,
        folder: Path,
        seconds_max: float,
        ended: Callable[[ProcessConversation], None],
    ) -> None:
        self._name = config.cluster.name
        self.asker = asker.cluster.name
        self._ended = ended
        self._lock = threading.Lock()
        self._closed = False
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "peer.verify.answering"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(),
        )
        self._spill = folder / str(self._process.pid)
        self._timer = threading.Timer(seconds_max, self.close)
        self._timer.daemon = True
        self._timer.start()
        given: dict[str, Any] = {
            "config": config.model_dump(mode="json"),
            "asker": asker.cluster.name,
            "tables": asker.tables,
            "spill": str(self._spill),
        }
        with contextlib.suppress(PeerUnavailableError):  # if it has died, the first question fails
            self.ask(json.dumps(given).encode())

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def ask(self, question: bytes) -> None:
        """Send a question."""
        assert self._process.stdin is not None
        try:
            write(self._process.stdin, question)
        except (OSError, ValueError):
            raise self._over() from None

    def answer(self) -> bytes:
        """The next answer."""
        assert self._process.stdout is not None
        try:
            found = read(self._process.stdout)
        except (OSError, ValueError):
            found = None
        if found is None:
            raise self._over()
        return found

    def close(self) -> None:
        """Kill the process, which only reads, and remove its files."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._timer.cancel()
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        shutil.rmtree(self._spill, ignore_errors=True)
        self._ended(self)

    def _over(self) -> PeerUnavailableError:
        return PeerUnavailableError(
            f"the process that answers for {self._name} has ended",
            "It took too long or failed: see the receiver's output there, and try again",
        )


def _environment() -> dict[str, str]:
    """This process's environment, with the folder that ``peer`` was imported from on the path."""
    source = str(Path(__file__).resolve().parents[2])
    paths = [source, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
