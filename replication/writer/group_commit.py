"""The commit thread: takes what waits, writes it as one group, syncs once, and acks.

Callers encode while it syncs. What waits is bounded in bytes: ``submit`` blocks, then refuses.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import structlog

from replication.core.frame import Codec
from replication.core.ids import ClusterId
from replication.core.position import Position
from replication.errors import BackpressureError, ReplicationError, RequestError, StorageError
from replication.writer.merge import FrameMerge, MergedBatch
from replication.writer.pending import AppendStep, PendingAppend
from replication.writer.wal.wal_series import EndedWal, WalSeries, WrittenGroup

GROUP_BYTES = 8 << 20
GROUP_ENTRIES = 4096
SMALL_GROUP_BYTES = 64 << 10
IDLE_TICK_S = 0.2
_log = structlog.get_logger(__name__)


class GroupCommit:
    """Owns the commit thread and, with it, the writer's WALs; ``close`` joins it.

    Args:
        open_series: makes the WALs; called here, so that errors reach the caller.
    """

    def __init__(
        self,
        cluster: ClusterId,
        open_series: Callable[[], WalSeries],
        codec: Codec,
        buffer_bytes_max: int,
        append_timeout_s: float,
    ) -> None:
        self._cluster = cluster
        self._codec = codec
        self._buffer_bytes_max = buffer_bytes_max
        self._append_timeout_s = append_timeout_s
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._space = threading.Condition(self._lock)
        self._queue: deque[AppendStep] = deque()
        self._taken: deque[AppendStep] = deque()  # from the queue, and neither acked nor failed
        self._bytes = 0
        self._waiting = 0
        self._closing = False
        self._clean = False
        self._ended = False
        self._broken = ""
        self._idle_failed = False
        self._series = open_series()
        self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)
        self._thread.start()

    def submit(self, entry: AppendStep) -> None:
        """Queue one step of an append; steps of one caller are written in the order of its calls.

        Raises:
            BackpressureError: the buffer stayed full for ``append_timeout_s``; the step was not taken.
            RequestError: the writer is closed.
            StorageError: the commit thread has ended on an error of its own.
        """
        with self._lock:
            if not self._fits(entry):
                self._wait_for_space(entry)
            if self._broken:
                raise self._failure()
            if self._closing:
                raise RequestError("the writer is closed", "Connect again")
            self._queue.append(entry)
            self._bytes += entry.size
            if len(self._queue) == 1:
                self._work.notify()

    def give_up(self, ticket: PendingAppend, error: ReplicationError) -> None:
        """The rest of an append cannot be queued; it fails once what is queued of it is dealt with.

        What is not written yet is left out. The last step has no bytes, so the bound of the queue does not hold it up.
        """
        ticket.error = error
        with self._lock:
            if not self._ended:
                self._queue.append(AppendStep(ticket, 0, True, None))
                self._work.notify()
                return
        ticket.finish()

    def adopt(self, ended: EndedWal) -> None:
        """Tell the ledger of a WAL that was made elsewhere, once it can be reached; recovery does when that is late."""
        with self._lock:
            if not self._closing and not self._broken:
                self._series.adopt(ended)
                return
        ended.abandon()

    @property
    def waiting(self) -> int:
        """How many steps wait for the commit thread."""
        return len(self._queue)

    @property
    def newest(self) -> int:
        """The newest commit time given, or promised to be below what is given later; microseconds since 1970."""
        return self._series.newest

    def close(self) -> bool:
        """Write what waits, close the WAL, stop; returns whether the ledger has every WAL closed. Idempotent."""
        with self._lock:
            self._closing = True
            self._work.notify()
            self._space.notify_all()
        self._thread.join()
        return self._clean

    def _fits(self, entry: AppendStep) -> bool:
        return self._bytes == 0 or self._bytes + entry.size <= self._buffer_bytes_max

    def _wait_for_space(self, entry: AppendStep) -> None:
        deadline = time.monotonic() + self._append_timeout_s
        self._waiting += 1
        try:
            while not self._closing and not self._fits(entry):
                if not self._space.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    raise BackpressureError(
                        f"{self._bytes} bytes wait for the disk and none were written for {self._append_timeout_s:g} s",
                        "The disk is slow, stuck or full; append again later. Of a large append some may be there: with"
                        " a batch id repeating it is harmless",
                    )
        finally:
            self._waiting -= 1

    def _run(self) -> None:
        try:
            self._write_groups()
            self._clean = self._series.close()
        except BaseException as error:  # a defect: whoever waits, or appends later, must hear of it
            _log.exception("commit_thread_broken")
            self._break_off(error)

    def _write_groups(self) -> None:
        synced: list[AppendStep] = []
        while (entries := self._take(wait=not synced)) is not None:
            if not entries and not synced:
                self._tick()
            # Callers that wake take the interpreter from this thread again and again, so a small next group is made
            # ready first; they then run while it syncs.
            if sum(entry.size for entry in entries) > SMALL_GROUP_BYTES:
                synced = self._ack(synced)
            framed = self._merge(entries)
            synced = self._ack(synced)
            if framed:
                self._write(entries, framed)
            self._release(entries)
            synced = entries

    def _break_off(self, error: BaseException) -> None:
        with self._lock:
            self._broken, self._ended = repr(error), True
            left = [*self._taken, *self._queue]
            self._taken = deque(left)
            self._queue.clear()
            self._bytes = 0
            self._space.notify_all()
        _fail(left, self._failure())
        self._ack(left)
        with suppress(Exception):
            self._series.give_up(error)
            self._series.close()  # a lock that stayed would hide the files from recovery

    def _failure(self) -> ReplicationError:
        return StorageError(
            f"the writer has failed: {self._broken}; what was on its way may be durable or not", "Connect again"
        )

    def _take(self, *, wait: bool) -> list[AppendStep] | None:
        with self._lock:
            if wait and not self._queue and not self._closing:
                self._work.wait(IDLE_TICK_S)
            if not self._queue:
                self._ended = wait and self._closing
                return None if self._ended else []
            taken: list[AppendStep] = []
            size = 0
            while self._queue and len(taken) < GROUP_ENTRIES:
                head = self._queue[0]
                if taken and (size + head.size > GROUP_BYTES or not head.ready):
                    break
                taken.append(self._queue.popleft())
                size += head.size
            self._taken += taken
            return taken

    def _release(self, entries: list[AppendStep]) -> None:
        with self._lock:
            self._bytes -= sum(entry.size for entry in entries)
            if self._waiting:
                self._space.notify_all()

    def _merge(self, entries: list[AppendStep]) -> list[MergedBatch]:
        try:
            return FrameMerge.frames(entries, self._codec)
        except Exception as error:  # a defect: this group's callers must hear of it, others go on
            _log.exception("merge_failed")
            _fail(entries, ReplicationError(f"the append could not be encoded: {error!r}; nothing was written"))
            return []

    def _write(self, entries: list[AppendStep], framed: list[MergedBatch]) -> None:
        try:
            self._note(framed, self._series.write([each.part for each in framed]))
        except ReplicationError as error:
            _fail(entries, error)
        except Exception as error:  # a defect: nothing is known of the file any more
            _log.exception("group_commit_failed")
            _fail(entries, self._series.give_up(error))

    def _ack(self, entries: list[AppendStep]) -> list[AppendStep]:
        for entry in entries:
            self._taken.popleft()
            if entry.last:
                if entry.ticket.position is None and entry.ticket.error is None:
                    entry.ticket.reached(Position(self._cluster))
                entry.ticket.finish()
        return []

    def _note(self, framed: list[MergedBatch], written: WrittenGroup) -> None:
        for each, placed in zip(framed, written.placed, strict=True):
            position = Position(
                self._cluster, {written.file: placed.end}, {placed.stream: placed.sequence}, written.commit
            )
            for ticket in each.tickets:
                ticket.reached(position)

    def _tick(self) -> None:
        try:
            self._series.tick()
            self._idle_failed = False
        except ReplicationError as error:
            if not self._idle_failed:
                _log.warning("writer_idle_failed", error=str(error))
            self._idle_failed = True


def _fail(entries: list[AppendStep], error: ReplicationError) -> None:
    for entry in entries:
        entry.ticket.error = entry.ticket.error or error
