"""A bulk WAL: all of it becomes visible under one commit time, or nothing.

``add`` writes payloads, each after free space for the frame's head (envelope and sealed header). A head's commit time,
role epoch, part count and previous hash are known only at the end, so ``publish`` writes the heads. It writes the first
frame's head last, after the rest is durable. Recovery keeps intact frames from the start of a file: without the first
head it keeps none, with it all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import pyarrow as pa

from replication.core.frame import (
    FILE_HEADER_BYTES,
    ZERO_HASH,
    EndRecord,
    encode_end_record,
    encode_envelope,
    stream_hash,
)
from replication.core.ids import FileId, StreamId
from replication.core.position import Position
from replication.core.rows.batch import EncodedBatch
from replication.files.base import AppendFile, append, reserve
from replication.files.frames import add_to_index
from replication.ledger.base import FileRow
from replication.writer.wal.commit_clock import CommitClock
from replication.writer.wal.durable_length import DurableLength
from replication.writer.wal.wal_file import RESERVE_BYTES
from replication.writer.wal.wal_series import WriterLease

_NOTHING = pa.py_buffer(b"")
SYNC_BYTES = 64 << 20  # bytes between syncs, to keep the last one short


class WatermarkHeartbeat:
    """Raises a watermark a few times a second, so that closed time moves on. ``stop`` joins its thread."""

    def __init__(self, raise_watermark: Callable[[int], None], clock: CommitClock, interval_s: float) -> None:
        self._raise_watermark = raise_watermark
        self._clock = clock
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="import-watermark", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop: the watermark does not rise after this returns. Idempotent."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            self._raise_watermark(self._clock.tick())


@dataclass(frozen=True, slots=True)
class _Frame:
    """A frame whose payload is written; its head goes to ``at``."""

    at: int
    batch: EncodedBatch  # without its payload
    size: int  # of the payload, in bytes


class BulkFile:
    """An unpublished WAL. ``add`` batches, then ``publish`` or ``refuse``, then ``release``. Not safe for threads.

    ``published`` is the published length: the file header until ``publish``, then all bytes. ``ended`` is true after
    ``publish`` or ``refuse``. Until then its watermark rises a few times a second, below its
    commit time, so that closed time does not wait for the file.

    Args:
        handle: the file, locked, with its header (``wal_file.make``).
        heartbeat_s: how often the watermark rises.
    """

    def __init__(
        self, row: FileRow, handle: AppendFile, counters: DurableLength, clock: CommitClock, heartbeat_s: float
    ) -> None:
        self.file: FileId = row.file
        self._handle = handle
        self._counters = counters
        self._clock = clock
        self._written = self.published = self._reserved = self._synced = FILE_HEADER_BYTES
        self.ended = False
        self._is_doubtful = False
        self._frames: list[_Frame] = []
        self._last: dict[tuple[UUID, str], EncodedBatch] = {}  # each group's last batch, which carries the batch id
        self._heartbeat = WatermarkHeartbeat(counters.raise_watermark, clock, heartbeat_s)

    def add(self, batch: EncodedBatch) -> None:
        """Add the next batch of a group. A group's last batch is held in memory, for ``publish`` to write.

        Raises:
            NoSpaceError: the disk is full; call ``refuse``.
            StorageError: the disk failed; call ``refuse``.
        """
        key = (batch.version.table, batch.version.group)
        before, self._last[key] = self._last.get(key), batch
        if before is not None:
            self._put(before)

    def publish(self, batch_id: str, lease: WriterLease, commit: int = 0) -> Position:
        """Seal the added batches as frames of one commit time, make them durable, and publish the length.

        Args:
            batch_id: stored in each group's last frame; "" for none.
            lease: must hold.
            commit: the commit time, in microseconds since 1970; 0 for a new one, above every other.

        Raises:
            ReadOnlyClusterError, LeaseLostError, CoordinationError, StorageError: nothing was published.
        """
        for part, batch in enumerate(self._last.values()):
            self._put(replace(batch, batch_id=batch_id, part=part, parts=len(self._last)) if batch_id else batch)
        epoch = lease.epoch()
        self._heartbeat.stop()
        ticked = self._clock.tick()  # above every watermark raised
        commit = commit or ticked
        heads, ends = self._sealed(commit, epoch)
        self._handle.truncate(self._written)
        append(self._handle, [encode_end_record(EndRecord(ends, tuple(self._index())))])
        for frame, head in zip(self._frames[1:], heads[1:], strict=True):
            self._write_at(frame.at, head)
        self._sync()
        self._write_at(self._frames[0].at, heads[0])
        self._sync()
        self._is_doubtful = True
        lease.publish(epoch, lambda: self._counters.publish(self._written, ticked))
        self.published = self._written
        self.ended = True
        sequences = {stream: sequence for stream, (sequence, _) in ends.items()}
        return Position(self.file.cluster, {self.file: self._written}, sequences, commit)

    def refuse(self, *, keep: bool) -> None:
        """Discard the file: it ends at its header. Cut its bytes, unless ``keep``, or a sync or lease check failed.

        A ``publish`` that was interrupted just after others could see the file is not undone.

        Raises:
            StorageError: the bytes could not be cut; the file is discarded all the same.
        """
        self.ended = True
        self.published = self._counters.length
        self._heartbeat.stop()
        self._counters.poison()
        if not keep and not self._is_doubtful:  # rule 1: never touched again
            self._handle.truncate(FILE_HEADER_BYTES)

    def release(self) -> None:
        """Release the lock."""
        self._heartbeat.stop()
        self._handle.close()
        self._counters.close()

    def _sealed(self, commit: int, epoch: int) -> tuple[list[bytes], dict[StreamId, tuple[int, bytes]]]:
        """Return the head of each frame, and each stream's last sequence and hash."""
        heads: list[bytes] = []
        ends: dict[StreamId, tuple[int, bytes]] = {}
        for frame in self._frames:
            stream = StreamId(self.file, frame.batch.version.table, frame.batch.version.group)
            sequence, previous = ends.get(stream, (-1, ZERO_HASH))
            sealed = frame.batch.sealed(self.file, sequence + 1, previous, commit, epoch, frame.size)
            ends[stream] = (sequence + 1, stream_hash(sealed))
            heads.append(encode_envelope((self.file.cluster,), len(sealed) + frame.size) + sealed)
        return heads, ends

    def _put(self, batch: EncodedBatch) -> None:
        head_bytes = len(batch.sealed(self.file, 0, ZERO_HASH, 0, 0, batch.size))
        head_bytes += len(encode_envelope((self.file.cluster,), head_bytes + batch.size))
        end = self._written + head_bytes + batch.size
        if end > self._reserved:
            self._reserved = reserve(self._handle, self._written, end, RESERVE_BYTES)
        append(self._handle, [bytes(head_bytes), memoryview(batch.payload)])
        self._frames.append(_Frame(self._written, replace(batch, payload=_NOTHING), batch.size))
        self._written = end
        if self._written - self._synced >= SYNC_BYTES:
            self._sync()
            self._synced = self._written

    def _sync(self) -> None:
        self._is_doubtful = True
        self._handle.sync()
        self._is_doubtful = False

    def _write_at(self, at: int, head: bytes) -> None:
        self._handle.seek(at)
        append(self._handle, [head])

    def _index(self) -> Sequence[int]:
        index: list[int] = []
        for frame in self._frames:
            add_to_index(index, frame.at)
        return index
