"""Landing: arrivals of all streams become durable and registered in groups, and only then are acked.

One thread takes whatever has arrived, appends it to a landing file per source file, syncs each file once, registers
all in one ledger transaction and then answers. What could not be registered is cut or abandoned, so a file never has
more than the ledger knows plus the group in work. Duplicates are answered without effect.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import structlog

from peer.receive.arrival import Arrival
from peer.receive.divergence import keep_withheld
from peer.receive.landing_queue import Item, LandingQueue
from peer.receive.limits import LandingLimits
from peer.receive.open_files import OpenFiles
from peer.receive.received import Received
from peer.receive.room import LandingRoom
from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId
from replication.errors import CoordinationError, NoSpaceError, ReplicationError, StorageError
from replication.files.base import Files
from replication.ledger.base import Divergence, Landed, Ledger
from replication.link.base import Reason

_SWEEP_S = 1.0
_log = structlog.get_logger(__name__)


class Landing:
    """The thread that writes this host's landing files.

    Attributes:
        received: what is registered, as far as it is remembered.
        room: whether there is room for more.
    """

    def __init__(self, ledger: Ledger, files: Files, cluster: ClusterId, limits: LandingLimits) -> None:
        self._ledger = ledger
        self._files = files
        self._cluster = cluster
        self._quarantine_directory = limits.quarantine_directory
        self.received = Received(ledger)
        self.room = LandingRoom(ledger, cluster.name, limits)
        self._queue = LandingQueue(limits.queue_bytes_max, limits.group_delay_s)
        self._open = OpenFiles(ledger, files, limits, self.received)
        self._broken: BaseException | None = None
        self._swept_s = 0.0
        self._thread = threading.Thread(target=self._run, name="landing", daemon=True)

    def start(self) -> None:
        """As ``recover``, then start the thread."""
        self.recover()
        self._thread.start()

    def recover(self) -> None:
        """Cut and close what an earlier process left open."""
        self._open.recover()

    def stop(self) -> None:
        """Land what has arrived, close the files and join the thread."""
        self._queue.stop()
        if self._thread.ident is not None:
            self._thread.join()

    def check(self) -> None:
        """Raise StorageError when the thread ended on an error of its own; only a new process helps."""
        if self._broken is not None:
            raise StorageError("landing has failed", "Look at the log; the receiver starts again") from self._broken

    def submit(self, item: Item) -> None:
        """Queue an arrival; blocks while ``queue_bytes_max`` wait."""
        self.check()
        self._queue.put(item)

    def settle(self, timeout_s: float) -> None:
        """Wait until what has been submitted is answered, but no longer than ``timeout_s``."""
        self._queue.settle(timeout_s)

    def _run(self) -> None:
        try:
            while (group := self._queue.take()) is not None:
                self.turn(group)
            self._open.close_all()
        except BaseException as error:
            _log.error("landing_broken", error=repr(error), exc_info=True)
            self._broken = error
            self._queue.stop()

    def turn(self, group: Sequence[Item]) -> None:
        """Land one group (it may be empty), and look after what is open."""
        if group:
            try:
                self._land(group)
            except ReplicationError as error:
                _log.warning("landing_failed", error=str(error))
                self._salvage(group, error.what, error.hint or "It is sent again")
        try:
            self._sweep()
        except ReplicationError as error:
            _log.warning("landing_sweep_put_off", error=str(error))

    def _land(self, group: Sequence[Item]) -> None:
        late: list[Item] = []  # the same range again within the group, or only news that the source is closed
        fresh: list[Item] = []
        taken: dict[FileId, Ranges] = {}
        for item in group:
            data = item.arrival.data
            if data.begin == data.end:
                late.append(item)
            elif self._is_complete(item):
                item.ack()
            elif taken.get(data.file, Ranges()).contains(data.begin, data.end):
                late.append(item)
            else:
                taken[data.file] = taken.get(data.file, Ranges()).add(data.begin, data.end)
                fresh.append(item)
        written = self._sync([item for item in fresh if self._write(item)])
        try:
            divergences = self._ledger.landing.register([item.landed for item in written if item.landed is not None])
        except CoordinationError as error:
            self._salvage(written, error.what, "The ledger is asked again when it is sent again")
            written, divergences = [], []
        self._registered(written, divergences)
        for item in late:
            data = item.arrival.data
            if self._is_complete(item):
                item.ack()
                landing = self._open.get(data.file)
                if landing is not None:
                    self._open.close_when_done(landing, data.closed_length)
            else:
                item.refuse(Reason.NOT_READY, "the same range failed just before", "It is sent again")

    def _is_complete(self, item: Item) -> bool:
        data = item.arrival.data
        return self.received.complete(data.file, item.generation).contains(data.begin, data.end)

    def _write(self, item: Item) -> bool:
        data = item.arrival.data
        full = self.room.lacking() if item.arrival.frames else ""
        if full:
            item.refuse(Reason.DISK_FULL, full, "Free disk space there, or let its replay catch up")
            return False
        table = next((f.header.table for f in item.arrival.frames if f.header.table in self.room.held), None)
        if table is not None:
            item.refuse(
                Reason.DISK_FULL, self.room.held[table], "See there what holds the table: walship status", table
            )
            return False
        try:
            item.landed = self._open.take(item.arrival).write(item.arrival, self._cluster)
            return True
        except NoSpaceError as error:
            item.refuse(Reason.DISK_FULL, error.what, "Free disk space there")
        except StorageError as error:
            _log.error("landing_write_failed", file=str(data.file), error=str(error))
            self._open.abandon(data.file, cut=False)
            item.refuse(Reason.NOT_READY, error.what, "Look at the disk there")
        return False

    def _sync(self, items: Sequence[Item]) -> list[Item]:
        """Make the written items durable; those whose file failed, then or since, are refused and left out."""
        for source in dict.fromkeys(item.arrival.data.file for item in items if item.arrival.frames):
            landing = self._open.get(source)
            try:
                if landing is not None:
                    landing.sync()
            except StorageError as error:
                _log.error("landing_sync_failed", file=str(landing and landing.row.file), error=str(error))
                self._open.abandon(source, cut=False)
        kept: list[Item] = []
        for item in items:
            landing = self._open.get(item.arrival.data.file)
            if landing is not None and item.landed is not None and landing.row.file == item.landed.file:
                kept.append(item)
            else:
                item.refuse(Reason.NOT_READY, "the landing file failed", "Look at the disk there")
        return kept

    def _registered(self, items: Sequence[Item], divergences: Sequence[Divergence]) -> None:
        diverged = {(d.file, d.claim.begin): d for d in divergences}
        news: dict[FileId, int] = {}
        for item in items:
            data, landed, landing = item.arrival.data, item.landed, self._open.get(item.arrival.data.file)
            assert landed is not None and landing is not None
            landing.register(landed)
            landing.used_s = time.monotonic()
            found = [diverged[landed.file, c.begin] for c in landed.claims if (landed.file, c.begin) in diverged]
            for divergence in found:
                self._quarantine(item.arrival, landed, divergence)
            self.received.add(data.file, data.begin, data.end, item.generation)  # with its copies: it never comes again
            if found:
                claim = found[0].claim
                item.refuse(
                    Reason.DIVERGENCE,
                    f"{claim.stream} sequence {claim.sequence} is here already with another content",
                    "Two histories of one stream: find out which is right; it is kept apart",
                )
            else:
                item.ack()
            news[data.file] = max(data.closed_length, news.get(data.file, 0))
        for source, closed_length in news.items():
            landing = self._open.get(source)
            assert landing is not None
            self._open.close_when_done(landing, closed_length)

    def _quarantine(self, arrival: Arrival, landed: Landed, divergence: Divergence) -> None:
        at = [claim.begin for claim in landed.claims].index(divergence.claim.begin)
        frame = arrival.frames[at]
        keep_withheld(
            self._ledger,
            self._files,
            self._quarantine_directory,
            divergence,
            memoryview(arrival.data.frames)[frame.begin : frame.end],
            time.time_ns() // 1000,
        )

    def _salvage(self, items: Sequence[Item], what: str, remedy: str) -> None:
        """Abandon the files of what was written and could not be registered, and have it sent again."""
        for item in items:
            self._open.abandon(item.arrival.data.file, cut=True)
        for item in items:
            item.refuse(Reason.NOT_READY, what, remedy)

    def _sweep(self) -> None:
        now = time.monotonic()
        if now < self._swept_s + _SWEEP_S:
            return
        self._swept_s = now
        self.room.lacking(between_groups=True)
        self._open.close_idle()
        self._open.close_abandoned()
