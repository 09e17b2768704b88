"""The tail of one host to one peer: follows every file as it grows, over rolls and successors, and ships what is new.

One thread. It polls mapped counters: often while bytes come, seldom when idle. A failed stream is opened again after
a while; other peers have their own threads and notice nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from uuid import UUID

import structlog

from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import FileId
from replication.core.shipping.chunk import Tail
from replication.core.shipping.window import Window
from replication.errors import FormatError, ReplicationError, StorageError
from replication.ledger.base import Ledger, PeerProgress
from replication.link.base import PeerLink
from replication.worker.files.host_files import HostFiles, Source
from replication.worker.peers.retries import Retries
from replication.worker.report.attempts import AttemptLog
from replication.worker.report.progress import ProgressLog
from replication.worker.ship.limits import WITHHELD_S, ShippingLimits
from replication.worker.ship.routes import Destination, ended_routes, open_shipment
from replication.worker.ship.selection import FrameFilter
from replication.worker.ship.shipment import Shipment
from replication.worker.ship.skipped_files import SkippedFiles
from replication.worker.ship.throttle import Throttle
from replication.worker.ship.write_order import Lines, Shipped

_BUSY_S = 0.25
_RULES_S = 2.0
_ERRORS_MAX = 100
_UNKNOWN = (FILE_HEADER_BYTES, Ranges())
_log = structlog.get_logger(__name__)


class TailThread:
    """Ships one tail until stopped. ``update`` hands it a new assignment, receivers or rules; ``stop`` joins it.

    Args:
        connect: opens a link to a receiver's address, for the peer cluster's name.
        role_epoch: this cluster's, of this moment.
        throttle: the peer's rate on this host.
        attempts: is told how it goes.
    """

    def __init__(
        self,
        tail: Tail,
        term: int,
        ledger: Ledger,
        host_files: HostFiles,
        progress: ProgressLog,
        limits: ShippingLimits,
        connect: Callable[[str, str], PeerLink],
        role_epoch: Callable[[], int],
        throttle: Throttle,
        attempts: AttemptLog,
    ) -> None:
        self._throttle = throttle
        self._attempts = attempts
        self._tail, self._term = tail, term
        self._ledger = ledger
        self._host_files = host_files
        self._progress = progress
        self._limits = limits
        self._connect = connect
        self._role_epoch = role_epoch
        self._wake = threading.Event()
        self._stopping = False
        self._is_first = True
        self._shipment: Shipment | None = None
        self._told_ended: set[tuple[UUID, str]] = set()
        self._skipped = SkippedFiles()
        self._thread = threading.Thread(target=self._run, name=f"tail {tail.peer}", daemon=True)
        self._thread.start()

    def update(self, tail: Tail, term: int) -> None:
        """Go on under another assignment; the stream is opened again when anything differs."""
        if (tail, term) != (self._tail, self._term):
            self._tail, self._term = tail, term
            self._wake.set()

    def reread(self) -> None:
        """Rules changed, or the peer lost something: open the stream again."""
        self._wake.set()

    def nudge(self) -> None:
        """There may be something new to ship: look now."""
        shipment = self._shipment
        if shipment is not None:
            shipment.nudge()

    def is_alive(self) -> bool:
        """Whether the thread still works; it ends only by ``stop`` or a mistake of its own."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End the stream and join the thread."""
        self._stopping = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        retries = Retries(self._limits.retry_min_s, self._limits.retry_max_s)
        attempt = 0
        while not self._stopping:
            self._wake.clear()
            tail, term = self._tail, self._term
            if not tail.receivers:
                retries.wait(self._wake)
                continue
            link = self._connect(tail.receivers[attempt % len(tail.receivers)], tail.peer_cluster.name)
            following: set[FileId] = set()
            try:
                self._follow(link, tail, term, following, retries)
            except ReplicationError as error:
                attempt += 1
                if retries.tells:
                    _log.warning("tail_interrupted", peer=tail.peer, failures=retries.failures + 1, error=str(error))
                for file in sorted(following, reverse=True)[:_ERRORS_MAX]:
                    self._progress.report(PeerProgress(file, tail.peer, Ranges(), 0, error=str(error)))
                if not self._stopping:
                    wait_s = retries.failed()
                    self._attempts.failed(tail.peer, "tail", retries.failures, wait_s, str(error))
                    self._wake.wait(wait_s)
            finally:
                link.close()

    def _follow(self, link: PeerLink, tail: Tail, term: int, following: set[FileId], retries: Retries) -> None:
        """Ship until something changes; raises when the stream fails."""
        to = Destination.of(self._ledger, tail, term, self._role_epoch(), self._limits.skip_dropped)
        if not to.rules:
            self._tell_ended(link, tail)
            self._go_well(tail, "tail", "chunks")
            self._wake.wait(_RULES_S)
            return
        self._told_ended.clear()
        window = Window(self._limits.window_bytes)
        begins = self._begins(tail)
        sources = [source for source in self._host_files.poll() if self._is_wanted(source, tail, begins)]
        following.update(source.file for source in sources)
        shipment, resume = open_shipment(
            link,
            self._ledger,
            to,
            [source.file for source in sources],
            window,
            self._limits.ship,
            self._progress.report,
            self._throttle,
        )
        try:
            self._go_well(tail, "tail")
            known = {file: (begin, resume.durable(file, shipped)) for file, (begin, shipped) in begins.items()}
            for source in sources:
                if source.file not in known:
                    known[source.file] = (FILE_HEADER_BYTES, resume.durable(source.file, Ranges()))
            self._shipment = shipment
            self._ship(shipment, tail, known, following, retries)
        finally:
            self._shipment = None
            shipment.close()

    def _go_well(self, tail: Tail, *work: str) -> None:
        """A stream is open, or there is nothing to send any more: what stood in its way is over."""
        if self._is_first or self._attempts.is_failing(tail.peer, "tail"):
            self._forget_errors(tail)
        self._is_first = False
        for each in work:
            self._attempts.succeeded(tail.peer, each)

    def _forget_errors(self, tail: Tail) -> None:
        """Also of files of which nothing is to be sent any more, and of what a process before this one told.

        What else is wrong with a file is told again when it is read.
        """
        here = {source.file for source in self._host_files.poll()}.difference(tail.elsewhere)
        for known in self._ledger.files.progress(tail.peer):
            if known.error and known.file in here and not self._skipped.knows(known.file):
                self._progress.report(PeerProgress(known.file, tail.peer, Ranges(), 0, losses=known.losses))

    def _tell_ended(self, link: PeerLink, tail: Tail) -> None:
        """Close what routes a peer to which nothing goes any more may have open: nobody else tells it.

        Whoever ended the last rule tried to, but the peer may have been down. A stream closes what it does not name.
        """
        for route in ended_routes(self._ledger, tail.peer_cluster):
            if (route.spec.uuid, route.group) not in self._told_ended:
                link.open_route(self._ledger.cluster, tail.peer_cluster, route)
                self._told_ended.add((route.spec.uuid, route.group))

    def _ship(
        self,
        shipment: Shipment,
        tail: Tail,
        begins: dict[FileId, tuple[int, Ranges]],
        following: set[FileId],
        retries: Retries,
    ) -> None:
        limits, window = self._limits, shipment.window
        busy_until_s = 0.0
        opened_s = time.monotonic()
        told: FrameFilter | None = None
        done: set[FileId] = set()
        elsewhere = Shipped(self._ledger, tail.peer)
        present: set[FileId] = set()

        def look() -> list[Source]:
            nonlocal present
            sources = self._host_files.poll()
            present = {source.file for source in sources}
            return sources

        def is_there(file: FileId, end: int) -> bool:
            if file in tail.elsewhere:
                return elsewhere.is_there(file, end)
            if file in done or file in window.files and window.files[file].settled(end):
                return True
            return file not in present  # let go meanwhile

        lines = Lines(look, is_there)
        while not self._wake.is_set():
            moved = False
            lines.again()
            sources = look()
            if len(done) > len(present):
                done.intersection_update(present)
            for source in sources:
                file = source.file
                if file in done or file in tail.elsewhere or self._skipped.has(file):
                    continue
                if file not in window.files:
                    # what the peer has and the ledger lacks is taken up all the same, and so told: an ack was lost
                    if file not in following and not self._is_wanted(source, tail, begins):
                        done.add(file)
                        continue
                    if not lines.may_begin(source, window.files):
                        continue
                    shipment.follow(file, *begins.get(file, _UNKNOWN))
                following.add(file)
                try:
                    moved |= shipment.step(source.row, source.length, closed=source.closed)
                except (FormatError, StorageError) as error:  # of this file: the others go on
                    self._skipped.put(shipment, file, error)
                    continue
                if source.closed and window.files[file].finished(source.length):
                    done.add(file)
                    following.discard(file)
                    shipment.leave(file)
            now = time.monotonic()
            if moved:
                busy_until_s = now + _BUSY_S
            waiting_s = limits.poll_busy_s if now < busy_until_s or window.in_flight else limits.poll_idle_s
            if shipment.drain(0.0 if moved and window.room else waiting_s) and shipment.acked_bytes:
                retries.succeeded()
            if shipment.selection is not told:
                told = shipment.selection
                self._attempts.withholds(tail.peer, "tail", told.withheld)
            if shipment.selection.withheld and now - opened_s > WITHHELD_S:
                return  # ask again whether the peer takes the tables it refused

    def _begins(self, tail: Tail) -> dict[FileId, tuple[int, Ranges]]:
        """Where each file starts for the peer, and what is known to be durable there."""
        self._progress.flush()
        shipped = {known.file: known.shipped for known in self._ledger.files.progress(tail.peer)}
        begins: dict[FileId, int] = {}
        for file, _, status in self._ledger.files.statuses(tail.peer):
            begins[file] = min(status.begin, begins.get(file, status.begin))
        return {file: (begin, shipped.get(file, Ranges())) for file, begin in begins.items()}

    @staticmethod
    def _is_wanted(source: Source, tail: Tail, begins: dict[FileId, tuple[int, Ranges]]) -> bool:
        if source.file in tail.elsewhere or source.row.peer not in ("", tail.peer):
            return False
        if source.row.source is not None and source.row.source.cluster == tail.peer_cluster:
            return False  # all of it has been through the peer
        begin, shipped = begins.get(source.file, _UNKNOWN)
        return not (source.closed and shipped.contains(begin, source.length))
