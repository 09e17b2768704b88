"""The tail of one host to one peer: follows every file as it grows, over rolls and successors, and ships new bytes.

It polls mapped counters, often when busy. Once all is sent it waits for a notification. A failed stream is reopened
after a backoff. Other peers have their own threads and are not affected.
"""

from __future__ import annotations

import time
from contextlib import suppress
from uuid import UUID

from replication import log
from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import FileId
from replication.core.shipping.chunk import Tail
from replication.errors import FormatError, PeerRefusedError, ReplicationError, StorageError
from replication.ledger.base import PeerProgress
from replication.link.base import PeerLink, Reason
from replication.worker.files.host_files import HostFiles, Source
from replication.worker.peers.loop import PeerConnector, PeerLoop
from replication.worker.ship.opening import Destination, Resume, open_shipment
from replication.worker.ship.peer_context import WITHHELD_S, PeerContext
from replication.worker.ship.routes import declare, ended_routes
from replication.worker.ship.selection import FrameFilter
from replication.worker.ship.shipment import Shipment
from replication.worker.ship.skipped_files import SkippedFiles
from replication.worker.ship.write_order import Shipped, WriteOrder

_BUSY_S = 0.25
_LOOK_S = 1.0  # for an answer that is late, or tables that are refused
_RULES_S = 2.0
_ERRORS_MAX = 100
_Begin = tuple[int, Ranges]  # where a file starts for the peer, and what is durable there
_UNKNOWN: _Begin = (FILE_HEADER_BYTES, Ranges())
_log = log.get(__name__)


class TailStep:
    """Ships one tail until its ``loop`` is stopped."""

    work = "tail"

    def __init__(
        self, tail: Tail, term: int, host_files: HostFiles, context: PeerContext, connector: PeerConnector
    ) -> None:
        self._assigned = tail, term
        self.host_files = host_files
        self.context = context
        self.connector = connector
        self._term = term
        self._is_first = True
        self._shipment: Shipment | None = None
        self._following: set[FileId] = set()
        self._closed_routes: set[tuple[UUID, str]] = set()  # routes that were closed at the peer
        self.skipped = SkippedFiles(connector.retry_max_s)
        self.loop = PeerLoop(self, tail.peer, connector, interrupt=self.wake)
        self.loop.start()

    def update(self, tail: Tail, term: int) -> None:
        """Take a new assignment; the stream is reopened when it differs."""
        if (tail, term) != self._assigned:
            self._assigned = tail, term
            self.loop.wake()

    def wake(self) -> None:
        """Check for new bytes now."""
        shipment = self._shipment
        if shipment is not None:
            shipment.wake()

    def ready(self) -> Tail:
        """The peer to ship to."""
        tail, self._term = self._assigned
        return tail

    def run(self, link: PeerLink, tail: Tail) -> None:
        """Open a stream and ship until the loop is woken."""
        self._following = set()
        to = Destination.of(self.context.ledger, tail, self._term, self.connector.role_epoch())
        if not to.rules:
            if not self._closed_routes:
                self.connector.attempts.withholds(tail.peer, {})
            self._close_ended_routes(link, tail)
            self._succeeded(tail, "tail", "chunks")
            self.loop.wait(_RULES_S)
            return
        self._closed_routes.clear()
        begins = _begins(self.context, tail.peer)
        wanted = [source.file for source in self.host_files.poll() if _is_wanted(source, tail, begins)]
        self._following.update(wanted)
        if self.context.ledger.former:  # the peer refuses no epoch of a new id
            with suppress(PeerRefusedError):
                self._ask_who_took_over(link, tail)
        try:
            shipment, resume = open_shipment(link, self.context, to, wanted)
        except PeerRefusedError as error:
            if error.reason == Reason.STALE_EPOCH.value:
                self._ask_who_took_over(link, tail)
            raise
        try:
            self._succeeded(tail, "tail")
            self._shipment = shipment
            _TailPass(self, shipment, tail, _resumed(begins, wanted, resume), self._following).run()
        finally:
            self._shipment = None
            shipment.close()

    def _ask_who_took_over(self, link: PeerLink, tail: Tail) -> None:
        for succession in link.successions(self.context.ledger.cluster, tail.peer_cluster):
            self.connector.learn(succession, tail.peer_cluster)

    def failed(self, tail: Tail, error: ReplicationError, failures: int, *, is_logged: bool) -> None:
        """Record the error with the newest files under way."""
        if is_logged:
            _log.warning("tail_interrupted", peer=tail.peer, failures=failures, error=str(error))
        for file in sorted(self._following, reverse=True)[:_ERRORS_MAX]:
            self.context.progress.report(PeerProgress(file, tail.peer, error=str(error)))

    def _succeeded(self, tail: Tail, *work: str) -> None:
        """Clear recorded failures: a stream is open, or there is nothing to send."""
        if self._is_first or self.connector.attempts.is_failing(tail.peer, "tail"):
            self._forget_errors(tail)
        self._is_first = False
        for each in work:
            self.connector.attempts.succeeded(tail.peer, each)

    def _forget_errors(self, tail: Tail) -> None:
        """Clear the errors of this host's files, also those that an earlier process recorded or that are all sent.

        A file that is still damaged gets its error again when it is read.
        """
        here = {source.file for source in self.host_files.poll()}.difference(tail.chunked_files)
        for known in self.context.ledger.files.progress(tail.peer):
            if known.error and known.file in here and not self.skipped.knows(known.file):
                self.context.progress.report(PeerProgress(known.file, tail.peer, losses=known.losses))

    def _close_ended_routes(self, link: PeerLink, tail: Tail) -> None:
        """Close the ended routes of a peer that has no rules left.

        The verb that ended the last rule also tried that, but the peer may have been down. With rules left, a stream
        closes every route that it does not declare.
        """
        ledger = self.context.ledger
        ended = ended_routes(ledger, tail.peer_cluster)
        left = [route for route in ended if (route.spec.uuid, route.group) not in self._closed_routes]
        declare(link, ledger.cluster, tail.peer_cluster, left)
        self._closed_routes.update((route.spec.uuid, route.group) for route in left)


class _TailPass:
    """One open stream of a tail. For one thread.

    Args:
        begins: by file, the offset where it starts for the peer, and the ranges that are durable there.
        following: files with bytes to send; this object updates it.
    """

    def __init__(
        self, step: TailStep, shipment: Shipment, tail: Tail, begins: dict[FileId, _Begin], following: set[FileId]
    ) -> None:
        self._step = step
        self._shipment = shipment
        self._tail = tail
        self._begins = begins
        self._following = following
        self._done: set[FileId] = set()
        self._present: set[FileId] = set()
        self._shipped_chunks = Shipped(step.context.ledger, tail.peer)
        self._order = WriteOrder(self._sources, self._is_there)

    def run(self) -> None:
        """Ship new bytes of every file until the loop is woken, or until it is time to retry refused tables."""
        step, shipment, polls = self._step, self._shipment, self._step.context.polls
        opened_s, busy_until_s = time.monotonic(), 0.0
        reported: FrameFilter | None = None
        while not step.loop.is_woken:
            self._order.begin_pass()
            moved, is_caught_up = False, True
            for source in self._sources():
                if self._is_due(source):
                    moved |= self._ship(source)
                is_caught_up = is_caught_up and self._is_caught_up(source)
            now_s = time.monotonic()
            if moved:
                busy_until_s = now_s + _BUSY_S
            is_awaiting = bool(shipment.window.in_flight_bytes or shipment.selection.withheld)
            is_busy = now_s < busy_until_s or shipment.window.in_flight_bytes
            waiting_s = polls.busy_s if is_busy else polls.idle_s
            if is_caught_up and polls.caught_up_s > polls.idle_s:  # replies and notifications end the wait
                waiting_s = _LOOK_S if is_awaiting else polls.caught_up_s
            if shipment.drain(0.0 if moved and shipment.window.free_bytes else waiting_s) and shipment.acked_bytes:
                step.loop.progressed()
            if shipment.selection is not reported:
                reported = shipment.selection
                step.connector.attempts.withholds(self._tail.peer, reported.withheld)
            if shipment.selection.withheld and now_s - opened_s > WITHHELD_S:
                return

    def _is_due(self, source: Source) -> bool:
        """Return whether bytes of a file may be sent now; start to follow a new file."""
        file = source.file
        if file in self._done or file in self._tail.chunked_files or self._step.skipped.has(file):
            return False
        if file not in self._shipment.window.files:
            # after a lost ack the peer has all of a file: following it reports that to the ledger
            if file not in self._following and not _is_wanted(source, self._tail, self._begins):
                self._done.add(file)
                return False
            if not self._order.may_begin(source, self._shipment.window.files):
                return False
            self._shipment.follow(file, *self._begins.get(file, _UNKNOWN))
        self._following.add(file)
        return True

    def _ship(self, source: Source) -> bool:
        """Ship one message of a file; return whether there may be more. An unreadable file is skipped until a retry."""
        file, shipment = source.file, self._shipment
        try:
            moved = shipment.step(source)
        except (FormatError, StorageError) as error:  # concerns this file only
            self._step.skipped.put(shipment, file, error)
            return False
        progress = shipment.window.files[file]
        if progress.is_durable_or_withheld(source.length):
            self._step.skipped.forget(file)
        if source.closed and progress.finished(source.length):
            self._done.add(file)
            self._following.discard(file)
            shipment.leave(file)
        return moved

    def _is_caught_up(self, source: Source) -> bool:
        """Return whether nothing of a file waits here to be sent."""
        progress = self._shipment.window.files.get(source.file)
        if progress is None:
            return source.file in self._done or source.file in self._tail.chunked_files
        return progress.gap(source.length) is None

    def _sources(self) -> list[Source]:
        sources = self._step.host_files.poll()
        self._present = {source.file for source in sources}
        for gone in self._shipment.window.files.keys() - self._present:  # else others might wait for its large frame
            self._shipment.leave(gone)
        if len(self._done) > len(self._present):
            self._done.intersection_update(self._present)
        return sources

    def _is_there(self, file: FileId, end: int) -> bool:
        if file in self._tail.chunked_files:
            return self._shipped_chunks.is_there(file, end)
        progress = self._shipment.window.files.get(file)
        if file in self._done or progress is not None and progress.is_durable_or_withheld(end):
            return True
        return file not in self._present  # retired meanwhile


def _begins(context: PeerContext, peer: str) -> dict[FileId, _Begin]:
    """Return, by file, the offset where it starts for the peer, and the ranges known to be durable there."""
    context.progress.flush()
    shipped = {known.file: known.shipped for known in context.ledger.files.progress(peer)}
    statuses = context.ledger.files.at_peer(peer)
    return {file: (status.begin, shipped.get(file, Ranges())) for file, status in statuses.items()}


def _resumed(begins: dict[FileId, _Begin], wanted: list[FileId], resume: Resume) -> dict[FileId, _Begin]:
    """Add the ranges that the peer reported at opening; a file without a status starts after its header."""
    known = {file: (begin, resume.durable(file, shipped)) for file, (begin, shipped) in begins.items()}
    return {file: (FILE_HEADER_BYTES, resume.durable(file, Ranges())) for file in wanted} | known


def _is_wanted(source: Source, tail: Tail, begins: dict[FileId, _Begin]) -> bool:
    if source.file in tail.chunked_files or source.row.peer not in ("", tail.peer):
        return False
    if source.row.source is not None and source.row.source.cluster == tail.peer_cluster:
        return False  # every frame of it came from the peer
    begin, shipped = begins.get(source.file, _UNKNOWN)
    return not (source.closed and shipped.contains(begin, source.length))
