"""Idempotent batches: repeating an append that has a batch id writes only its missing parts.

The existing parts are listed in the ledger. Parts that no worker has registered yet are found in the published bytes
of this host's WALs, each read once. While parts are added, the ledger reserves the id for one writer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import zip_longest
from uuid import UUID

import pyarrow as pa

from replication.core.frame import FILE_HEADER_BYTES, Codec, SealedHeader
from replication.core.ids import FileId
from replication.core.position import Position
from replication.core.rows.batch import FRAME_ROWS_MAX, EncodedBatch, LogBatch, split
from replication.core.rows.canonical import canonical
from replication.errors import BatchConflictError, MissingFileError, RequestError
from replication.files.base import Files
from replication.files.frames import frames
from replication.ledger.base import BatchPart, FileKind, FileRow, Ledger
from replication.writer.wal.durable_length import DurableLength
from replication.writer.wal.recovery import Recovery
from replication.writer.wal.wal_series import Place

BATCH_ID_BYTES_MAX = 255
_HINT = f"Give a text of 1 to {BATCH_ID_BYTES_MAX} bytes, none of them zero"
BATCH_BYTES_MAX = 256 << 20  # of rows: a batch is held in memory, to compare it with the existing parts
_POLL_S = 0.02


def check_batch_size(batch_id: str, size: int) -> None:
    """Raise RequestError when a batch of ``size`` bytes of rows, or more, is too large for a batch id."""
    if size > BATCH_BYTES_MAX:
        raise RequestError(
            f"batch {batch_id!r} has more than {BATCH_BYTES_MAX >> 20} MiB of rows, too large for a batch id; none of"
            " it was written",
            "Write smaller batches with an id each, or use walship import: it takes a file of any size, and only once",
        )


@dataclass(frozen=True, slots=True)
class IdempotentBatch:
    """All rows that one table gets under a batch id, in order."""

    batch_id: str
    logs: Sequence[LogBatch]

    def encodings(self, codec: Codec) -> Iterator[list[EncodedBatch]]:
        """Yield the current encoding of the batch, then those with other codecs and of earlier versions.

        Raises:
            SchemaError: as ``split``.
        """
        for logs in (self._whole_frames(), self.logs):
            for each in (codec, *(other for other in Codec if other is not codec)):
                yield self._encoded((canonical(log) for log in logs), each)
        yield self._encoded(self.logs, codec)

    def _whole_frames(self) -> list[LogBatch]:
        """Return the log batches as they are of rows in one piece: a stream has its rows in any pieces."""
        groups: dict[str, list[LogBatch]] = {}
        for log in self.logs:
            groups.setdefault(log.group, []).append(log)
        return [log for at in zip_longest(*map(_whole, groups.values())) for log in at if log is not None]

    def _encoded(self, logs: Iterable[LogBatch], codec: Codec) -> list[EncodedBatch]:
        pieces = [piece for log in logs for piece in split(log)]
        return [EncodedBatch.encode(piece, codec, self.batch_id, at, len(pieces)) for at, piece in enumerate(pieces)]


def _whole(logs: Sequence[LogBatch]) -> Sequence[LogBatch]:
    """Return log batches of one group with ``FRAME_ROWS_MAX`` rows each, but for the last."""
    if all(log.batch.num_rows == FRAME_ROWS_MAX for log in logs[:-1]):
        return logs
    joined = pa.concat_batches([log.batch for log in logs])
    begins = range(0, joined.num_rows, FRAME_ROWS_MAX)
    return [LogBatch(logs[0].version, joined.slice(begin, FRAME_ROWS_MAX)) for begin in begins]


@dataclass(slots=True)
class _Unregistered:
    """Frames with batch ids in one WAL's bytes ``[registered, at)``, by their end."""

    at: int = FILE_HEADER_BYTES
    frames: list[tuple[int, SealedHeader]] = field(default_factory=list)


class BatchIds:
    """The existing batches, and the right to add to one. Safe for threads, processes and hosts."""

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
        """Reserve an id for the calling thread: from before the lookup until ``release`` after the ack.

        Raises:
            RequestError: the id is too long, or another thread has been appending under it for ``timeout_s``.
        """
        if not isinstance(batch_id, str):
            raise RequestError(f"batch id {batch_id!r} is not a str", _HINT)
        try:
            size = len(batch_id.encode())
        except UnicodeEncodeError:
            raise RequestError(
                f"batch id {batch_id!r} has half a surrogate pair, which UTF-8 cannot encode", _HINT
            ) from None
        if "\0" in batch_id:  # PostgreSQL cannot store it, and peers do not remember it
            raise RequestError(f"batch id {batch_id[:40]!r} has a zero byte", _HINT)
        if not 0 < size <= BATCH_ID_BYTES_MAX:
            raise RequestError(f"batch id {batch_id[:40]!r} is empty or longer than {BATCH_ID_BYTES_MAX} bytes", _HINT)
        with self._changed:
            if not self._changed.wait_for(lambda: (table, batch_id) not in self._busy, timeout_s):
                raise RequestError(
                    f"batch id {batch_id!r} is still being appended by another thread", "Wait for it, or use another id"
                )
            self._busy.add((table, batch_id))

    def release(self, table: UUID, batch_id: str) -> None:
        """Release the id for other threads."""
        with self._changed:
            self._busy.discard((table, batch_id))
            self._changed.notify_all()

    def missing(
        self, table: UUID, batch: IdempotentBatch, codec: Codec, timeout_s: float
    ) -> tuple[list[EncodedBatch], Position]:
        """Return the missing parts of a batch, and a position that includes the existing ones.

        The parts are encoded as the existing ones, otherwise with ``codec``. When some are missing, this writer holds
        the id until all parts are registered.

        Raises:
            BatchConflictError: the id was used for other content.
            RequestError: another writer has held the id for ``timeout_s``.
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
                return self._compare(table, batch_id, parts)  # again: another writer may have added parts before
            missing, position = self._compare(table, batch_id, parts)
        return missing, position

    def whole(self, table: UUID, batch_id: str) -> Position | None:
        """Return the position of a batch that is published whole or not at all; None when it does not exist.

        Raises:
            BatchConflictError: the id was used for an append, and only some of its parts exist.
        """
        existing = self._find(table, batch_id)
        if not existing:
            return None
        if len({(part.group, part.part) for part in existing}) < existing[0].parts:
            raise BatchConflictError(
                f"batch id {batch_id!r} was used for another append or import, which is only partly written here",
                "Repeat that append first. Of an import elsewhere, other groups have not landed here, or are not sent:"
                " wait for them, or walship import --again",
            )
        return self._position(table, existing)

    def take(self, table: UUID, batch_id: str, timeout_s: float) -> Position | None:
        """As ``whole``. When the batch does not exist, this writer gets the id until the batch is registered.

        Raises:
            BatchConflictError: as ``whole``.
            RequestError: another writer has held the id for ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        while (existing := self.whole(table, batch_id)) is None:
            if self._holds(table, batch_id, deadline):
                return self.whole(table, batch_id)  # again: another writer may have added the batch before
        return existing

    def _holds(self, table: UUID, batch_id: str, deadline: float) -> bool:
        """Return whether this writer holds the id; False, after a short wait, when another writer does."""
        holder = self._ledger.batches.hold(table, batch_id, self._place.writer, self._place.host)
        if holder == self._place.writer:
            return True
        if holder and time.monotonic() > deadline:
            raise RequestError(
                f"batch id {batch_id!r} is still being appended by writer {holder}",
                "Repeat the append when that writer has closed; if its host is gone for good: walship wal salvage",
            )
        time.sleep(_POLL_S)
        return False

    def _compare(
        self, table: UUID, batch_id: str, parts: Sequence[EncodedBatch]
    ) -> tuple[list[EncodedBatch], Position]:
        existing = self._find(table, batch_id)
        wanted = {(part.version.group, part.part): (part.parts, part.sha256) for part in parts}
        if any(wanted.get((part.group, part.part)) != part.content for part in existing):
            raise BatchConflictError(
                f"batch id {batch_id!r} was used for other content in this table",
                "Give each batch its own id, and repeat a batch with exactly the same rows in the same order. If the"
                " table was altered since, use a new id; a keyed table's rows then replace the earlier ones",
            )
        position = self._position(table, existing)
        known = {(part.group, part.part) for part in existing}
        return [part for part in parts if (part.version.group, part.part) not in known], position

    def _position(self, table: UUID, parts: Iterable[BatchPart]) -> Position:
        position = Position(self._cluster)
        for part in parts:
            position = position.join(part.position(self._cluster, table))
        return position

    def _find(self, table: UUID, batch_id: str) -> list[BatchPart]:
        # Read the files before the ledger: a part that a worker registers meanwhile is found in one of the two.
        self._recovery.run_once()
        rows = [row for row in self._ledger.files.all(self._place.host) if row.kind is FileKind.WAL]
        with self._reading:
            self._unregistered = {row.file: self._read(row) for row in rows}
            existing = [
                BatchPart.of(h, end)
                for tail in self._unregistered.values()
                for end, h in tail.frames
                if h.table == table and h.batch_id == batch_id
            ]
        return existing + self._ledger.batches.parts(table, batch_id)

    def _read(self, row: FileRow) -> _Unregistered:
        tail = self._unregistered.get(row.file) or _Unregistered()
        tail.frames = [(end, header) for end, header in tail.frames if end > row.length]
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
        with closing(handle):
            for frame, _ in frames(handle, tail.at, end):
                if frame.header.batch_id:
                    tail.frames.append((frame.end, frame.header))
                tail.at = frame.end
        return tail
