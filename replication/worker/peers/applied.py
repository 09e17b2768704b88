"""Asks one peer how far our files are applied there, which retiring waits for, and what it lost: about once a second.

More often while a bootstrap is on its way, for somebody waits for its end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import structlog

from replication.core.coverage import Ranges
from replication.core.ids import FileId
from replication.core.shipping.chunk import Tail
from replication.errors import ReplicationError
from replication.ledger.base import FileKind, Ledger, PeerProgress
from replication.link.base import PeerLink
from replication.worker.peers.retries import Retries
from replication.worker.report.progress import ProgressLog

_SOON_S = 0.05
_ASK_MAX = 1000
_ALL_EVERY = 30
_log = structlog.get_logger(__name__)


class AppliedThread:
    """Polls one peer until stopped; ``stop`` joins it.

    Args:
        on_loss: called when the peer lost bytes that were durable there, once the ledger knows.
    """

    def __init__(
        self,
        tail: Tail,
        host: str,
        ledger: Ledger,
        progress: ProgressLog,
        connect: Callable[[str, str], PeerLink],
        on_loss: Sequence[Callable[[], None]] = (),
        interval_s: float = 1.0,
        retry_max_s: float = 60.0,
    ) -> None:
        self._tail = tail
        self._host = host
        self._ledger = ledger
        self._progress = progress
        self._connect = connect
        self._on_loss = tuple(on_loss)
        self._turn = 0
        self._has_news = False  # of losses, that the ledger may not know yet
        self._interval_s = interval_s
        self._retry_max_s = retry_max_s
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"applied {tail.peer}", daemon=True)
        self._thread.start()

    def update(self, tail: Tail) -> None:
        """Ask other receivers from now on."""
        if tail != self._tail:
            self._tail = tail
            self._wake.set()

    def is_alive(self) -> bool:
        """Whether the thread still works; it ends only by ``stop`` or a mistake of its own."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Join the thread."""
        self._stopping = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        retries = Retries(self._interval_s, self._retry_max_s)
        attempt = 0
        while not self._stopping:
            self._wake.clear()
            tail = self._tail
            if not tail.receivers:
                self._wake.wait(self._interval_s)
                continue
            link = self._connect(tail.receivers[attempt % len(tail.receivers)], tail.peer_cluster.name)
            try:
                while not self._wake.is_set():
                    begun_s = time.monotonic()
                    awaited = self._ask(link, tail.peer)
                    retries.succeeded()
                    soon_s = max(_SOON_S, 10 * (time.monotonic() - begun_s))
                    self._wake.wait(min(soon_s, self._interval_s) if awaited else self._interval_s)
            except ReplicationError as error:
                attempt += 1
                _log.debug("applied_unknown", peer=tail.peer, error=str(error))
                if not self._stopping:
                    retries.wait(self._wake)
            finally:
                link.close()

    def _ask(self, link: PeerLink, peer: str) -> bool:
        """Whether a bootstrap is on its way, for whose end somebody waits."""
        rows = {row.file: row for row in self._ledger.files.all(self._host)}
        known = {progress.file: progress for progress in self._ledger.files.progress(peer)}
        every = self._turn % _ALL_EVERY == 0  # what is applied there may still be lost for clusters after it
        self._turn += 1
        asked = [f for f, row in rows.items() if f in known and (every or known[f].applied < row.needed)]
        arrived = False  # a bootstrap, whose end somebody awaits
        for some in _chunks(asked):
            for file, applied in link.progress(some).items():
                was = known[file]
                if applied > was.applied:
                    report = PeerProgress(file, peer, Ranges(), applied, losses=was.losses, tells_error=False)
                    self._progress.report(report)
                    arrived |= rows[file].kind is FileKind.BOOTSTRAP
            for file, loss in link.lost(some).items():
                was = known[file]
                if loss.count > was.losses:
                    self._has_news = True
                    kept = Ranges.of(*loss.kept)
                    _log.warning("peer_lost_bytes", peer=peer, file=str(file), times=loss.count, kept=str(kept))
                    report = PeerProgress(file, peer, Ranges(), 0, losses=loss.count, kept=kept, tells_error=False)
                    self._progress.report(report)
        if (self._has_news or arrived) and self._progress.flush() and self._has_news:
            self._has_news = False
            for tell in self._on_loss:
                tell()
        return any(rows[f].kind is FileKind.BOOTSTRAP and known[f].applied < rows[f].needed for f in asked)


def _chunks(files: Sequence[FileId]) -> Iterator[Sequence[FileId]]:
    for at in range(0, len(files), _ASK_MAX):
        yield files[at : at + _ASK_MAX]
