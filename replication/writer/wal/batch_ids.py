"""Idempotent batches: an append that has a batch id may be repeated, and only what is missing is written again.

What is there already is known from the ledger and, for frames that no worker has registered yet, from the published
bytes of this host's WALs, each of which is read once. While parts are added, the ledger keeps the id for one writer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from replication.core.frame import FILE_HEADER_BYTES, Codec, SealedHeader
from replication.core.ids import FileId
from replication.core.position import Position
from replication.core.rows.batch import EncodedBatch, LogBatch, split
from replication.core.rows.canonical import canonical
from replication.errors import BatchConflictError, MissingFileError, RequestError
from replication.files.base import Files
from replication.files.frames import frames
from replication.ledger.base import BatchPart, FileKind, FileRow, Ledger
from replication.writer.wal.durable_length import DurableLength
from replication.writer.wal.recovery import Recovery
from replication.writer.wal.wal_series import Place

BATCH_ID_BYTES_MAX = 255
BATCH_BYTES_MAX = 256 << 20  # of rows: all of a batch is in memory, to be compared with what is there
_POLL_S = 0.02


def check_batch_size(batch_id: str, size: int) -> None:
    """Raise RequestError when a batch of ``size`` bytes of rows, or more, is too large for a batch id."""
    if size > BATCH_BYTES_MAX:
        raise RequestError(
            f"batch {batch_id!r} is more than {BATCH_BYTES_MAX >> 20} MiB of rows, too large for a batch id; nothing of"
            " it was written",
            "walship import takes a file of any size, and the same one only once; or give smaller batches an id each",
        )


@dataclass(frozen=True, slots=True)
class IdempotentBatch:
    """All rows that one table gets under a batch id, in order."""

    batch_id: str
    logs: Sequence[LogBatch]

    def encodings(self, codec: Codec) -> Iterator[list[EncodedBatch]]:
        """As it is written now, then as it was with another codec or by an earlier version.

        Raises:
            SchemaError: as ``split``.
        """
        for each in (codec, *(other for other in Codec if other is not codec)):
            yield self._encoded((canonical(log) for log in self.logs), each)
        yield self._encoded(self.logs, codec)

    def _encoded(self, logs: Iterable[LogBatch], codec: Codec) -> list[EncodedBatch]:
        pieces = [piece for log in logs for piece in split(log)]
        return [EncodedBatch.encode(piece, codec, self.batch_id, at, len(pieces)) for at, piece in enumerate(pieces)]


@dataclass(slots=True)
class _Unregistered:
    """Frames with batch ids in one WAL's bytes ``[registered, at)``, by their end."""

    at: int = FILE_HEADER_BYTES
    frames: list[tuple[int, SealedHeader]] = field(default_factory=list)


class BatchIds:
    """Which batches are there, and whose turn it is to add to one. Safe for threads, processes and hosts."""

    def __init__(self, ledger: Ledger, files: Files, place: Place) -> None:
        self._cluster = ledger.cluster
        self._ledger = ledger
        self._files = files
        self._place = place
        self._recovery = Recovery(ledger, files, place.directory, place.host, place.boot)
        self._changed = threading.Condition()
        self._busy: set[tuple[UUID, str]] = set()
        self._reading = threading.Lock()
        self._unregistered: dict[FileId, _Unregistered] = {}

    def hold(self, table: UUID, batch_id: str, timeout_s: float) -> None:
        """Keep an id from other threads, from before the look until ``release`` after the ack.

        Raises:
            RequestError: the id is too long, or another thread has been appending under it for ``timeout_s``.
        """
        if not isinstance(batch_id, str):
            raise RequestError(f"batch id {batch_id!r} is no text")
        try:
            size = len(batch_id.encode())
        except UnicodeEncodeError:
            raise RequestError(f"batch id {batch_id!r} has half a surrogate pair, which no UTF-8 can hold") from None
        if not 0 < size <= BATCH_ID_BYTES_MAX:
            raise RequestError(f"batch id {batch_id[:40]!r} is empty or longer than {BATCH_ID_BYTES_MAX} bytes")
        with self._changed:
            if not self._changed.wait_for(lambda: (table, batch_id) not in self._busy, timeout_s):
                raise RequestError(f"batch id {batch_id!r} is still being appended by another thread")
            self._busy.add((table, batch_id))

    def release(self, table: UUID, batch_id: str) -> None:
        """Let the next thread have the id."""
        with self._changed:
            self._busy.discard((table, batch_id))
            self._changed.notify_all()

    def missing(
        self, table: UUID, batch: IdempotentBatch, codec: Codec, timeout_s: float
    ) -> tuple[list[EncodedBatch], Position]:
        """The parts of a batch that are not there yet, and a position that includes those that are.

        They are encoded with ``codec``, or as those are that are there. When some are missing, the id is this writer's
        until all of them are registered.

        Raises:
            BatchConflictError: the id was used for other content.
            RequestError: another writer has been appending under the id for ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        conflict: BatchConflictError | None = None
        for encoded in batch.encodings(codec):
            try:
                return self._missing(table, batch.batch_id, encoded, deadline)
            except BatchConflictError as error:
                conflict = error
        assert conflict is not None, "there is an encoding"
        raise conflict

    def _missing(
        self, table: UUID, batch_id: str, parts: Sequence[EncodedBatch], deadline: float
    ) -> tuple[list[EncodedBatch], Position]:
        missing, position = self._compare(table, batch_id, parts)
        while missing:
            if self._holds(table, batch_id, deadline):
                return self._compare(table, batch_id, parts)  # nobody else adds to it any more
            missing, position = self._compare(table, batch_id, parts)
        return missing, position

    def whole(self, table: UUID, batch_id: str) -> Position | None:
        """Where a batch that is published whole or not at all is; None when it is not there.

        Raises:
            BatchConflictError: the id was used for an append that is only partly there.
        """
        there = self._find(table, batch_id)
        if not there:
            return None
        if len({(part.group, part.part) for part in there}) < there[0].parts:
            raise BatchConflictError(
                f"batch id {batch_id!r} was used for another append, of which only some is there",
                "Repeat that append first",
            )
        position = Position(self._cluster)
        for part in there:
            position = position.join(part.position(self._cluster, table))
        return position

    def take(self, table: UUID, batch_id: str, timeout_s: float) -> Position | None:
        """As ``whole``; when it is not there the id is this writer's until it is registered.

        Raises:
            BatchConflictError: as ``whole``.
            RequestError: another writer has been at it for ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        while (there := self.whole(table, batch_id)) is None:
            if self._holds(table, batch_id, deadline):
                return self.whole(table, batch_id)  # nobody else adds to it any more
        return there

    def _holds(self, table: UUID, batch_id: str, deadline: float) -> bool:
        """Whether the id is this writer's now; False after a short wait when it is another's."""
        holder = self._ledger.batches.hold(table, batch_id, self._place.writer, self._place.host)
        if holder == self._place.writer:
            return True
        if holder and time.monotonic() > deadline:
            raise RequestError(
                f"batch id {batch_id!r} is still being appended by writer {holder}",
                "Repeat it when that writer has closed; if its host is gone for good: walship wal salvage",
            )
        time.sleep(_POLL_S)
        return False

    def _compare(
        self, table: UUID, batch_id: str, parts: Sequence[EncodedBatch]
    ) -> tuple[list[EncodedBatch], Position]:
        there = self._find(table, batch_id)
        wanted = {(part.version.group, part.part): (part.parts, part.sha256) for part in parts}
        if any(wanted.get((part.group, part.part)) != part.content for part in there):
            raise BatchConflictError(
                f"batch id {batch_id!r} was used for other content in this table",
                "Give each batch its own id, and repeat a batch with exactly the same rows in the same order; one begun"
                " before the table was altered needs a new id, under which a keyed table's rows replace themselves",
            )
        position = Position(self._cluster)
        for part in there:
            position = position.join(part.position(self._cluster, table))
        found = {(part.group, part.part) for part in there}
        return [part for part in parts if (part.version.group, part.part) not in found], position

    def _find(self, table: UUID, batch_id: str) -> list[BatchPart]:
        # In this order: what a worker registers meanwhile is in the ledger when it is in no file's tail any more.
        self._recovery.run_once()
        rows = [row for row in self._ledger.files.all(self._place.host) if row.kind is FileKind.WAL]
        with self._reading:
            self._unregistered = {row.file: self._read(row) for row in rows}
            there = [
                BatchPart(h.group, h.part, h.parts, h.payload_sha256, file, h.sequence, end)
                for file, tail in self._unregistered.items()
                for end, h in tail.frames
                if h.table == table and h.batch_id == batch_id
            ]
        return there + self._ledger.batches.parts(table, batch_id)

    def _read(self, row: FileRow) -> _Unregistered:
        tail = self._unregistered.get(row.file) or _Unregistered()
        tail.frames = [found for found in tail.frames if found[0] > row.length]
        tail.at = max(tail.at, row.length)
        end = row.closed_length
        if not row.closed and (counters := DurableLength.open(row.path, row.boot, self._files)) is not None:
            end = counters.length
            counters.close()
        if end <= tail.at:
            return tail
        try:
            handle = self._files.open(row.path)
        except MissingFileError:
            return tail
        try:
            for frame, _ in frames(handle, tail.at, end):
                if frame.header.batch_id:
                    tail.frames.append((frame.end, frame.header))
                tail.at = frame.end
        finally:
            handle.close()
        return tail
