"""Ships the chunks of large closed files that the master assigned, one after another to one peer, beside the tail.

A chunk's assigned bounds may fall inside frames. The chunk has the frames that start within the bounds; the file's end
record helps to find them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing

from replication import log
from replication.core.coverage import Ranges
from replication.core.ids import FileId
from replication.core.shipping.chunk import ChunkAssignment, Tail
from replication.errors import FormatError, ReplicationError, StorageError
from replication.files.reading import frame_start
from replication.ledger.base import FileRow, PeerProgress
from replication.link.base import PeerLink
from replication.worker.files.host_files import Source
from replication.worker.peers.loop import PeerConnector, PeerLoop
from replication.worker.ship.opening import Destination, Resume, open_shipment
from replication.worker.ship.peer_context import WITHHELD_S, PeerContext
from replication.worker.ship.shipment import Shipment
from replication.worker.ship.skipped_files import SkippedFiles
from replication.worker.ship.write_order import Shipped, WriteOrder

Chunks = tuple[ChunkAssignment, ...]
_IDLE_S = 1.0
_log = log.get(__name__)


class ChunkStep:
    """Ships the chunks assigned for one peer until its ``loop`` is stopped.

    ``current`` is the chunk under way. ``shipped_bytes`` are those that the peer acked since this step was created.
    """

    work = "chunks"

    def __init__(self, tail: Tail, chunks: Chunks, term: int, context: PeerContext, connector: PeerConnector) -> None:
        self._assigned = tail, chunks, term
        self._context = context
        self._connector = connector
        ledger = context.ledger
        self._order = WriteOrder(
            lambda: [_source(row) for row in ledger.files.all()], Shipped(ledger, tail.peer).is_there
        )
        self._todo: list[ChunkAssignment] = []
        self._term = term
        self._done: set[ChunkAssignment] = set()
        self.current: ChunkAssignment | None = None
        self.shipped_bytes = 0
        self._skipped = SkippedFiles(connector.retry_max_s)
        self._forget_done = False
        self.loop = PeerLoop(self, tail.peer, connector)
        self.loop.start()

    def update(self, tail: Tail, chunks: Chunks, term: int) -> None:
        """Replace the assigned chunks. A chunk under way that stays assigned is not interrupted."""
        before, self._assigned = self._assigned, (tail, chunks, term)
        if (tail, term) != (before[0], before[2]) or chunks != before[1] and self.current not in chunks:
            self.loop.wake()

    @property
    def begun(self) -> frozenset[ChunkAssignment]:
        """Assigned chunks that are done or under way."""
        current = self.current
        return frozenset(self._done) if current is None else frozenset((*self._done, current))

    @property
    def waiting(self) -> list[ChunkAssignment]:
        """Assigned chunks that are not done."""
        return [chunk for chunk in self._assigned[1] if chunk not in self._done]

    def reread(self) -> None:
        """Reopen the stream and check every chunk again, because rules changed or the peer lost bytes."""
        self._forget_done = True
        self.loop.wake()

    def ready(self) -> Tail | None:
        """The peer to ship to; None when every chunk is done."""
        if self._forget_done:
            self._forget_done = False
            self._done.clear()
        tail, chunks, self._term = self._assigned
        self._done.intersection_update(chunks)
        self._todo = [chunk for chunk in chunks if chunk not in self._done]
        return tail if self._todo else None

    def run(self, link: PeerLink, tail: Tail) -> None:
        """Ship the chunks that may begin now, one after another, over one stream."""
        rows = self._rows()
        to = Destination.of(self._context.ledger, tail, self._term, self._connector.role_epoch())
        chunks = self._startable(rows)
        if not chunks or not to.rules:
            self.loop.wait(_IDLE_S)
            return
        self._context.progress.flush()
        shipped = {known.file: known.shipped for known in self._context.ledger.files.progress(tail.peer)}
        self.current = chunks[0]
        try:
            shipment, resume = open_shipment(
                link, self._context, to, list(dict.fromkeys(chunk.file for chunk in chunks))
            )
            until_s = time.monotonic() + WITHHELD_S
            with closing(shipment):
                all_tried = self._ship_all(shipment, chunks, rows, shipped, resume, until_s)
            if all_tried and shipment.selection.withheld and not self._done.issuperset(chunks):
                self.current = None
                self.loop.wait(until_s - time.monotonic())
        finally:
            self.current = None

    def failed(self, tail: Tail, error: ReplicationError, failures: int, *, is_logged: bool) -> None:
        """Record the error with the file of the first chunk to ship."""
        if is_logged:
            _log.warning("chunk_interrupted", peer=tail.peer, failures=failures, error=str(error))
        self._context.progress.report(PeerProgress(self._todo[0].file, tail.peer, error=str(error)))

    def _rows(self) -> dict[FileId, FileRow]:
        """Return the ledger's rows of the files. Chunks of a retired file count as done."""
        files = {chunk.file for chunk in self._todo}
        rows = {row.file: row for file in files if (row := self._context.ledger.files.get(file))}
        self._done.update(chunk for chunk in self._todo if chunk.file not in rows)
        return rows

    def _startable(self, rows: dict[FileId, FileRow]) -> list[ChunkAssignment]:
        self._order.begin_pass()
        readable = [chunk for chunk in self._todo if chunk.file in rows and not self._skipped.has(chunk.file)]
        return [chunk for chunk in readable if self._order.may_begin(_source(rows[chunk.file]), ())]

    def _ship_all(
        self,
        shipment: Shipment,
        chunks: Sequence[ChunkAssignment],
        rows: dict[FileId, FileRow],
        shipped: dict[FileId, Ranges],
        resume: Resume,
        until_s: float,
    ) -> bool:
        """Ship each chunk once; return False when the loop was woken or ``until_s`` passed first."""
        for chunk in chunks:
            if chunk not in self._assigned[1]:
                continue  # reassigned to another stream
            if self._skipped.has(chunk.file):
                continue  # another chunk of the file could not be read
            self.current = chunk
            durable = resume.durable(chunk.file, shipped.get(chunk.file, Ranges()))
            try:
                self._ship(shipment, chunk, rows[chunk.file], durable, until_s)
            except (FormatError, StorageError) as error:  # concerns this file only
                self._skipped.put(shipment, chunk.file, error)
                shipment.leave(chunk.file)
            if self.loop.is_woken or shipment.selection.withheld and time.monotonic() > until_s:
                return False
        return True

    def _ship(self, shipment: Shipment, chunk: ChunkAssignment, row: FileRow, durable: Ranges, until_s: float) -> None:
        """Ship a chunk. While tables are withheld, stop at ``until_s``, or when all but their frames are acked."""
        begin = frame_start(row.path, chunk.begin, row.needed)
        end = frame_start(row.path, chunk.end, row.needed)
        source = Source(row, end, end >= row.needed)
        window = shipment.window
        shipment.follow_part(chunk.file, begin, durable)
        started_s = time.monotonic()
        while not window.files[chunk.file].finished(end):
            if self.loop.is_woken:
                break
            if shipment.selection.withheld and (
                window.files[chunk.file].is_durable_or_withheld(end) or time.monotonic() > until_s
            ):
                break
            moved = shipment.step(source)
            before = shipment.acked_bytes
            waiting_s = 0.0 if moved and window.free_bytes else self._context.polls.idle_s
            if shipment.drain(waiting_s) and shipment.acked_bytes:
                self.shipped_bytes += shipment.acked_bytes - before
                self.loop.progressed()
                self._connector.attempts.succeeded(chunk.peer, "chunks")
        else:
            self._done.add(chunk)
            self._skipped.forget(chunk.file)
            seconds = time.monotonic() - started_s
            _log.info("chunk_shipped", peer=chunk.peer, file=str(chunk.file), begin=begin, end=end, seconds=seconds)
        shipment.leave(chunk.file)


def _source(row: FileRow) -> Source:
    return Source(row, row.needed, row.closed)
