"""Parts of large closed files, as the master assigned them: shipped one after another to one peer, beside its tail.

A chunk's bounds are offsets, not frames: it has the frames that *start* inside it, found through the file's end record.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from replication.core.coverage import Ranges
from replication.core.shipping.chunk import ChunkAssignment, Tail
from replication.core.shipping.window import Window
from replication.errors import FormatError, ReplicationError, StorageError
from replication.ledger.base import FileRow, Ledger, PeerProgress
from replication.link.base import PeerLink
from replication.worker.files.host_files import Source
from replication.worker.files.reading import frame_start
from replication.worker.peers.retries import Retries
from replication.worker.report.attempts import AttemptLog
from replication.worker.report.progress import ProgressLog
from replication.worker.ship.limits import WITHHELD_S, ShippingLimits
from replication.worker.ship.routes import Destination, open_shipment
from replication.worker.ship.shipment import Shipment
from replication.worker.ship.skipped_files import SkippedFiles
from replication.worker.ship.throttle import Throttle
from replication.worker.ship.write_order import Lines, Shipped

_IDLE_S = 1.0
_log = structlog.get_logger(__name__)


class ChunkThread:
    """Ships the chunks assigned for one peer until stopped; ``stop`` joins it."""

    def __init__(
        self,
        tail: Tail,
        chunks: tuple[ChunkAssignment, ...],
        term: int,
        ledger: Ledger,
        progress: ProgressLog,
        limits: ShippingLimits,
        connect: Callable[[str, str], PeerLink],
        role_epoch: Callable[[], int],
        throttle: Throttle,
        attempts: AttemptLog,
    ) -> None:
        self._throttle = throttle
        self._attempts = attempts
        self._work = (tail, chunks, term)
        self._ledger = ledger
        self._progress = progress
        self._limits = limits
        self._connect = connect
        self._role_epoch = role_epoch
        self._lines = Lines(lambda: [_source(row) for row in ledger.files.all()], Shipped(ledger, tail.peer).is_there)
        self._done: set[ChunkAssignment] = set()
        self._current: ChunkAssignment | None = None
        self._shipped_bytes = 0
        self._skipped = SkippedFiles()
        self._again = False
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"chunks {tail.peer}", daemon=True)
        self._thread.start()

    def update(self, tail: Tail, chunks: tuple[ChunkAssignment, ...], term: int) -> None:
        """Go on with other chunks; the one under way is not disturbed when it is among them."""
        before, self._work = self._work, (tail, chunks, term)
        if (tail, term) != (before[0], before[2]) or chunks != before[1] and self._current not in chunks:
            self._wake.set()

    @property
    def current(self) -> ChunkAssignment | None:
        """The chunk under way."""
        return self._current

    @property
    def begun(self) -> frozenset[ChunkAssignment]:
        """Assigned chunks that are done or under way."""
        current = self._current
        return frozenset(self._done) if current is None else frozenset((*self._done, current))

    @property
    def waiting(self) -> list[ChunkAssignment]:
        """Assigned chunks that are not done."""
        return [chunk for chunk in self._work[1] if chunk not in self._done]

    @property
    def shipped_bytes(self) -> int:
        """Bytes that the peer acked, ever."""
        return self._shipped_bytes

    def reread(self) -> None:
        """Rules changed, or the peer lost something: open the stream again, and look again at what was done."""
        self._again = True
        self._wake.set()

    @property
    def is_done(self) -> bool:
        """Whether every chunk assigned is at the peer."""
        return self._done.issuperset(self._work[1])

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
            if self._again:
                self._again = False
                self._done.clear()
            tail, chunks, term = self._work
            self._done.intersection_update(chunks)
            todo = [chunk for chunk in chunks if chunk not in self._done]
            if not todo or not tail.receivers:
                self._wake.wait(_IDLE_S)
                continue
            link = self._connect(tail.receivers[attempt % len(tail.receivers)], tail.peer_cluster.name)
            try:
                self._ship_all(link, tail, todo, term, retries)
            except ReplicationError as error:
                attempt += 1
                if retries.tells:
                    _log.warning("chunk_interrupted", peer=tail.peer, failures=retries.failures + 1, error=str(error))
                self._progress.report(PeerProgress(todo[0].file, tail.peer, Ranges(), 0, error=str(error)))
                if not self._stopping:
                    wait_s = retries.failed()
                    self._attempts.failed(tail.peer, "chunks", retries.failures, wait_s, str(error))
                    self._wake.wait(wait_s)
            finally:
                self._current = None
                link.close()

    def _ship_all(self, link: PeerLink, tail: Tail, todo: list[ChunkAssignment], term: int, retries: Retries) -> None:
        rows = {row.file: row for file in {chunk.file for chunk in todo} if (row := self._ledger.files.get(file))}
        to = Destination.of(self._ledger, tail, term, self._role_epoch(), self._limits.skip_dropped)
        here = [chunk for chunk in todo if chunk.file in rows and not self._skipped.has(chunk.file)]
        self._done.update(chunk for chunk in todo if chunk.file not in rows)  # retired
        self._lines.again()
        here = [chunk for chunk in here if self._lines.may_begin(_source(rows[chunk.file]), ())]
        if not here or not to.rules:
            self._wake.wait(_IDLE_S)
            return
        self._current = here[0]
        window = Window(self._limits.window_bytes)
        self._progress.flush()
        shipped = {known.file: known.shipped for known in self._ledger.files.progress(tail.peer)}
        shipment, resume = open_shipment(
            link,
            self._ledger,
            to,
            list(dict.fromkeys(chunk.file for chunk in here)),
            window,
            self._limits.ship,
            self._progress.report,
            self._throttle,
        )
        again_s = time.monotonic() + WITHHELD_S
        try:
            for chunk in here:
                if chunk not in self._work[1]:
                    continue  # another stream has it now
                if self._skipped.has(chunk.file):
                    continue  # another chunk of it could not be read
                self._current = chunk
                known = resume.durable(chunk.file, shipped.get(chunk.file, Ranges()))
                try:
                    self._ship(shipment, chunk, rows[chunk.file], known, retries, again_s)
                except (FormatError, StorageError) as error:  # of this file: the others go on
                    self._skipped.put(shipment, chunk.file, error)
                    shipment.leave(chunk.file)
                if self._wake.is_set() or shipment.selection.withheld and time.monotonic() > again_s:
                    return
        finally:
            shipment.close()
        if shipment.selection.withheld and not self._done.issuperset(here):
            self._current = None
            self._wake.wait(again_s - time.monotonic())

    def _ship(
        self,
        shipment: Shipment,
        chunk: ChunkAssignment,
        row: FileRow,
        durable: Ranges,
        retries: Retries,
        again_s: float,
    ) -> None:
        """Ship a chunk, or what goes of it now; left at ``again_s``, too, when tables are withheld."""
        begin = frame_start(row.path, chunk.begin, row.needed)
        end = frame_start(row.path, chunk.end, row.needed)
        window = shipment.window
        shipment.follow_part(chunk.file, begin, durable)
        started_s = time.monotonic()
        while not window.files[chunk.file].finished(end):
            if self._wake.is_set():
                break
            if shipment.selection.withheld and (window.files[chunk.file].settled(end) or time.monotonic() > again_s):
                break
            moved = shipment.step(row, end, closed=end >= row.needed)
            before = shipment.acked_bytes
            if shipment.drain(0.0 if moved and window.room else self._limits.poll_idle_s) and shipment.acked_bytes:
                self._shipped_bytes += shipment.acked_bytes - before
                retries.succeeded()
                self._attempts.succeeded(chunk.peer, "chunks")
        else:
            self._done.add(chunk)
            seconds = time.monotonic() - started_s
            _log.info("chunk_shipped", peer=chunk.peer, file=str(chunk.file), begin=begin, end=end, seconds=seconds)
        shipment.leave(chunk.file)


def _source(row: FileRow) -> Source:
    return Source(row, row.needed, row.closed)
