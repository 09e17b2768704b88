"""Polls one peer for how far this host's files are applied there, and for losses. Retiring depends on the answers.

The interval is one second, or less while a bootstrap is being sent, because a user waits for its end. While all that
was sent is applied, but for the end of the control log, it waits until the peer gets rows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from replication import log
from replication.core.ids import FileId
from replication.core.shipping.chunk import Tail
from replication.errors import ReplicationError
from replication.ledger.base import FileKind, Ledger, PeerProgress
from replication.link.base import PeerLink
from replication.worker.peers.loop import PeerConnector, PeerLoop
from replication.worker.report.progress import ProgressLog

INTERVAL_S = 1.0
RETRY_MAX_S = 60.0
_SOON_S = 0.05
_ASK_MAX = 1000
_CAUGHT_UP_S, _ALL_S = 15.0, 30.0
_log = log.get(__name__)


class AppliedPoll:
    """Polls one peer until its ``loop`` is stopped.

    Args:
        on_loss: called after the peer lost bytes that were durable there, and the ledger has recorded the loss.
    """

    work = "applied"

    def __init__(
        self,
        tail: Tail,
        host: str,
        ledger: Ledger,
        progress: ProgressLog,
        connector: PeerConnector,
        on_loss: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._tail = tail
        self._host = host
        self._ledger = ledger
        self._progress = progress
        self._on_loss = tuple(on_loss)
        self._all_due_s = 0.0
        self._is_caught_up = False
        self._applied_changed = threading.Event()
        self._has_loss = False  # a loss that the ledger may not have recorded yet
        slow = replace(connector, retry_min_s=INTERVAL_S, retry_max_s=RETRY_MAX_S)
        self.loop = PeerLoop(self, tail.peer, slow, shows_failures=False, interrupt=self._applied_changed.set)
        self.loop.start()

    def update(self, tail: Tail) -> None:
        """Poll the receivers of ``tail`` from now on."""
        if tail != self._tail:
            self._tail = tail
            self.loop.wake()

    def wake(self) -> None:
        """Poll within a second, because the peer got rows."""
        self._applied_changed.set()

    def ready(self) -> Tail:
        """The peer to poll."""
        return self._tail

    def run(self, link: PeerLink, tail: Tail) -> None:
        """Poll until the loop is woken."""
        while not self.loop.is_woken:
            begun_s = time.monotonic()
            bootstrapping = self._poll(link, tail.peer)
            self.loop.progressed()
            soon_s = max(_SOON_S, 10 * (time.monotonic() - begun_s))
            self.loop.wait(min(soon_s, INTERVAL_S) if bootstrapping else INTERVAL_S)
            if self._is_caught_up:
                self._applied_changed.wait(max(0.0, begun_s + _CAUGHT_UP_S - time.monotonic()))
            self._applied_changed.clear()

    def failed(self, tail: Tail, error: ReplicationError, failures: int, *, is_logged: bool) -> None:
        """Log at debug level only: the tail reports a peer that does not answer."""
        _log.debug("applied_unknown", peer=tail.peer, failures=failures, error=str(error))

    def _poll(self, link: PeerLink, peer: str) -> bool:
        """Poll once; return whether a bootstrap is not yet applied."""
        rows = {row.file: row for row in self._ledger.files.all(self._host)}
        known = {progress.file: progress for progress in self._ledger.files.progress(peer)}
        behind = [f for f, row in rows.items() if f in known and known[f].applied < row.needed]
        # nobody waits to hear that the end of an open control log is applied
        self._is_caught_up = all(rows[f].kind is FileKind.CONTROL and not rows[f].closed for f in behind)
        asked = behind
        if time.monotonic() >= self._all_due_s:  # applied files too: the peer may lose bytes that it has yet to pass on
            self._all_due_s = time.monotonic() + _ALL_S
            asked = [f for f in rows if f in known]
        bootstraps = {f for f in asked if rows[f].kind is FileKind.BOOTSTRAP}
        flush_now = False  # a user waits for a bootstrap that progressed
        for at in range(0, len(asked), _ASK_MAX):
            grown = self._poll_files(link, peer, asked[at : at + _ASK_MAX], known)
            flush_now |= not bootstraps.isdisjoint(grown)
        if self._has_loss or flush_now:
            self._progress.flush()
        if self._has_loss:
            self._has_loss = False
            for call in self._on_loss:
                call()
        return any(known[f].applied < rows[f].needed for f in bootstraps)

    def _poll_files(
        self, link: PeerLink, peer: str, files: Sequence[FileId], known: dict[FileId, PeerProgress]
    ) -> set[FileId]:
        """Poll and report some files; return those whose ``applied`` grew."""
        answers = link.progress(files)
        grown = set()
        for file in filter(answers.__contains__, files):
            before, answer = known[file], answers[file]
            applied, kept = answer.status.applied, answer.status.shipped
            if answer.losses > before.losses:
                self._has_loss = True
                _log.warning("peer_lost_bytes", peer=peer, file=str(file), times=answer.losses, kept=str(kept))
                self._progress.report(PeerProgress(file, peer, losses=answer.losses, kept=kept, error=None))
            if applied > before.applied:
                grown.add(file)
                losses = max(answer.losses, before.losses)
                self._progress.report(PeerProgress(file, peer, applied=applied, losses=losses, error=None))
        return grown
