"""The loop that serves one peer: connect, run a step, back off after a failure, wake up, stop.

The tail, each chunk stream, and the poll for ``applied`` are such steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

from replication import log
from replication.core.ids import ClusterId
from replication.core.shipping.chunk import Tail
from replication.core.succession import Succession
from replication.errors import ReplicationError, TransferError
from replication.link.base import PeerLink
from replication.retries import Retries
from replication.worker.report.attempts import AttemptLog

_log = log.get(__name__)
_IDLE_S = 10.0  # work that comes wakes the loop
Connect = Callable[[str, str], PeerLink]


class PeerStep(Protocol):
    """The work of a loop on one connection. The loop's thread calls all methods."""

    @property
    def work(self) -> str:
        """The name of the loop, in its thread's name and in ``status``."""

    def ready(self) -> Tail | None:
        """Return the peer to connect to; None when there is nothing to do."""

    def run(self, link: PeerLink, tail: Tail) -> None:
        """Work until the loop is woken, or the step needs a new connection.

        Raises:
            ReplicationError: the connection or the peer failed; the loop backs off and tries another receiver.
        """

    def failed(self, tail: Tail, error: ReplicationError, failures: int, *, is_logged: bool) -> None:
        """Report the ``failures``-th failure in a row; log it when ``is_logged``."""


@dataclass(frozen=True, slots=True)
class PeerConnector:
    """How loops reach peers: ``connect`` takes a receiver's address and the peer cluster's name.

    ``learn`` takes in a succession that a peer reports.
    """

    connect: Connect
    role_epoch: Callable[[], int]
    attempts: AttemptLog
    retry_min_s: float
    retry_max_s: float
    learn: Callable[[Succession, ClusterId], None] = lambda succession, source: None


class PeerLoop:
    """Runs one step in a thread of its own until ``stop``.

    Args:
        shows_failures: whether failures are recorded as attempts, which ``status`` shows.
        interrupt: called after ``wake`` and ``stop``; ends a wait of the step itself.
    """

    def __init__(
        self,
        step: PeerStep,
        peer: str,
        connector: PeerConnector,
        *,
        shows_failures: bool = True,
        interrupt: Callable[[], None] = lambda: None,
    ) -> None:
        self._step = step
        self._peer = peer
        self._connector = connector
        self._shows_failures = shows_failures
        self._interrupt = interrupt
        self._retries = Retries(connector.retry_min_s, connector.retry_max_s)
        self._wake = threading.Event()
        self._stopping = False
        self._link: PeerLink | None = None
        self._thread = threading.Thread(target=self._run, name=f"{step.work} {peer}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Interrupt the step; it starts again with the current assignment."""
        self._wake.set()
        self._interrupt()

    @property
    def is_woken(self) -> bool:
        """Whether the step must return."""
        return self._wake.is_set()

    def wait(self, seconds: float) -> None:
        """Wait for ``seconds``, or until the loop is woken."""
        self._wake.wait(seconds)

    def progressed(self) -> None:
        """Reset the backoff, because the peer answered."""
        self._retries.succeeded()

    def is_alive(self) -> bool:
        """Whether the thread runs; it ends by ``stop``."""
        return self._thread.is_alive()

    def end(self) -> None:
        """End the step; the thread ends soon after, since the link is closed on which it may wait for the peer."""
        self._stopping = True
        self.wake()
        if self._link is not None:
            self._link.close()

    def stop(self) -> None:
        """End the step and join the thread."""
        self.end()
        self._thread.join()

    def _run(self) -> None:
        turn = 0
        while True:
            self._wake.clear()  # before the look at what ``end`` sets: it does both the other way round
            if self._stopping:
                return
            tail = self._step.ready()
            if tail is None or not tail.receivers:
                self._wake.wait(_IDLE_S)
                continue
            address = tail.receivers[turn % len(tail.receivers)]
            try:
                with closing(self._connector.connect(address, tail.peer_cluster.name)) as link:
                    self._link = link
                    if not self._stopping:  # else ``end`` did not see this link
                        self._step.run(link, tail)
            except ReplicationError as error:
                turn += 1
                self._back_off(tail, error)
            except Exception as error:  # whatever a peer answers, the loops of other peers go on
                if self._retries.is_logged:
                    _log.error("peer_work_failed", peer=self._peer, work=self._step.work, exc_info=error)
                turn += 1
                self._back_off(tail, TransferError(f"an unexpected error: {error!r}"[:300]))

    def _back_off(self, tail: Tail, error: ReplicationError) -> None:
        if self._stopping:
            return
        retries = self._retries
        self._step.failed(tail, error, retries.failures + 1, is_logged=retries.is_logged)
        wait_s = retries.failed()
        if self._shows_failures:
            self._connector.attempts.failed(self._peer, self._step.work, retries.failures, wait_s, str(error))
        self._wake.wait(wait_s)
