"""The commit thread: takes queued steps, writes them as one group, syncs once, and acks. Callers encode meanwhile."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress

from replication import log
from replication.core.frame import Codec
from replication.core.ids import ClusterId
from replication.core.position import Position
from replication.errors import ReplicationError, RequestError
from replication.writer.append_queue import AppendQueue
from replication.writer.merge import FrameMerge, MergedBatch
from replication.writer.pending import AppendStep, PendingAppend
from replication.writer.wal.wal_series import WalSeries, WrittenGroup

SMALL_GROUP_BYTES = 64 << 10
_log = log.get(__name__)


class GroupCommit:
    """Owns the commit thread and the writer's WALs; ``close`` joins the thread.

    Args:
        queue: the queue of steps; ``close`` closes it.
        idle_tick_s: how often the series ticks while nothing is appended.
    """

    def __init__(
        self, cluster: ClusterId, series: WalSeries, codec: Codec, queue: AppendQueue, idle_tick_s: float
    ) -> None:
        self._cluster = cluster
        self._series = series
        self._codec = codec
        self._queue = queue
        self._idle_tick_s = idle_tick_s
        self._unacked: deque[AppendStep] = deque()  # taken from the queue, neither acked nor failed yet
        self._is_clean = False
        self._idle_failed = False
        self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)
        self._thread.start()

    def submit(self, step: AppendStep) -> None:
        """Queue one step of an append, as ``AppendQueue.put``. Steps are written in queue order."""
        self._queue.put(step)

    def cut_short(self, append: PendingAppend, error: ReplicationError) -> None:
        """Fail an append whose remaining steps cannot be queued, after its queued steps are processed.

        Steps that are not written yet are dropped. The final step has no bytes, so it never waits for space.
        """
        append.error = error
        if not self._queue.put_end(append):
            append.finish()

    def check_may_close(self) -> None:
        """Raise RequestError in a callback of an append, which the commit thread would wait for itself."""
        if threading.current_thread() is self._thread:
            raise RequestError("a callback of an append cannot close the handle", "Close it in another thread")

    def close(self) -> bool:
        """Write queued steps, close the WAL and stop. Return whether every WAL is CLOSED in the ledger. Idempotent."""
        self._queue.close()
        self._thread.join()
        return self._is_clean

    def _run(self) -> None:
        try:
            self._write_groups()
            self._is_clean = self._series.close()
        except BaseException as error:  # a defect: waiting and later callers get the error
            _log.exception("commit_thread_broken")
            self._break_off(error)

    def _write_groups(self) -> None:
        synced: list[AppendStep] = []
        while (steps := self._queue.take(0.0 if synced else self._idle_tick_s)) is not None:
            self._unacked += steps
            if not steps and not synced:
                self._tick()
            # Acked callers compete with this thread for the interpreter lock. So a small next group is merged before
            # the ack; the callers then run while it syncs.
            if sum(step.size for step in steps) > SMALL_GROUP_BYTES:
                synced = self._ack(synced)
            merged = self._merge(steps)
            synced = self._ack(synced)
            if merged:
                self._write(steps, merged)
            self._queue.release(steps)
            synced = steps

    def _merge(self, steps: list[AppendStep]) -> list[MergedBatch]:
        try:
            return FrameMerge.frames(steps, self._codec)
        except Exception as error:  # a defect: only this group's callers get the error
            _log.exception("merge_failed")
            _fail(steps, ReplicationError(f"the append could not be encoded: {error!r}; nothing was written"))
            return []

    def _write(self, steps: list[AppendStep], merged: list[MergedBatch]) -> None:
        try:
            self._set_positions(merged, self._series.write([each.encoded for each in merged]))
        except ReplicationError as error:
            _fail(steps, error)
        except Exception as error:  # a defect: the state of the file is unknown
            _log.exception("group_commit_failed")
            _fail(steps, self._series.poison_current(error))

    def _set_positions(self, merged: list[MergedBatch], written: WrittenGroup) -> None:
        for each, placed in zip(merged, written.placed, strict=True):
            position = Position(
                self._cluster, {written.file: placed.end}, {placed.stream: placed.sequence}, written.commit
            )
            for append in each.appends:
                append.reached(position)

    def _ack(self, steps: list[AppendStep]) -> list[AppendStep]:
        for step in steps:
            self._unacked.popleft()
            if step.is_last:
                if step.append.position is None and step.append.error is None:
                    step.append.reached(Position(self._cluster))
                step.append.finish()
        return []

    def _tick(self) -> None:
        try:
            self._series.tick()
            self._idle_failed = False
        except ReplicationError as error:
            if not self._idle_failed:
                _log.warning("writer_idle_failed", error=str(error))
            self._idle_failed = True

    def _break_off(self, error: BaseException) -> None:
        self._unacked += self._queue.fail(error)
        unacked = list(self._unacked)
        _fail(unacked, self._queue.failure())
        self._ack(unacked)
        with suppress(Exception):
            self._series.poison_current(error)
        with suppress(Exception):
            self._series.close()  # releases the locks, which would keep recovery out


def _fail(steps: list[AppendStep], error: ReplicationError) -> None:
    for step in steps:
        step.append.error = step.append.error or error
