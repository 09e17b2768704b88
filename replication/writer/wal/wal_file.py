"""One WAL: created, appended to, synced, published and closed; the bytes are those of ``proto/wal_format.md``.

The order of an append is the caller's (``wal_series.py``): ``append``, ``sync``, lease check, ``publish``. The file is
locked while it is open here. Not safe for threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from os.path import dirname
from uuid import UUID

from replication.core.frame import (
    FILE_HEADER_BYTES,
    ZERO_HASH,
    EndRecord,
    encode_end_record,
    encode_envelope,
    encode_file_header,
    stream_hash,
)
from replication.core.ids import FileId, StreamId
from replication.core.rows.batch import EncodedBatch
from replication.errors import NoSpaceError, StorageError
from replication.files.base import AppendFile, Buffer, Files, append, reserve
from replication.files.frames import refuse_occupied
from replication.ledger.base import FileRow, Ledger
from replication.writer.wal.durable_length import DurableLength

INDEX_BYTES = 1 << 20
RESERVE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a batch went: its stream and sequence, and its frame's end offset."""

    stream: StreamId
    sequence: int
    end: int


def make(files: Files, row: FileRow, created: int, watermark: int) -> tuple[AppendFile, DurableLength]:
    """Make the file of a row that the ledger allocated, durably, with its header, lock and counters.

    It gets its name when its header is on the disk and its lock is held, so nobody finds half a file.

    Raises:
        StorageError: there is no file, and the same row may be tried again; or another host's or cluster's is there.
    """
    directory = dirname(row.path)
    files.make_directory(directory)
    refuse_occupied(files, row.path, row.file)
    making = row.path + ".new"
    files.remove(making)
    handle = files.create(making)
    try:
        handle.lock()
        append(handle, [encode_file_header(row.file, created)])
        handle.sync()
        counters = DurableLength.create(row.path, row.boot, FILE_HEADER_BYTES, watermark, files)
        files.rename(making, row.path)
        handle.path = row.path
        files.sync_directory(directory)
    except BaseException:
        handle.close()
        with suppress(StorageError):
            files.remove(making)
        raise
    return handle, counters


class WalFile:
    """An open WAL. Made by ``create``; ended by ``seal`` or ``poison``, then ``close``."""

    def __init__(self, row: FileRow, handle: AppendFile, counters: DurableLength, created: int) -> None:
        self.file: FileId = row.file
        self.path = row.path
        self.created = created
        self._handle = handle
        self._counters = counters
        self._written = self._published = FILE_HEADER_BYTES
        self._reserved = 0
        self._streams: dict[tuple[UUID, str], tuple[StreamId, int, bytes]] = {}
        self._index: list[int] = []
        self._provenance = (row.file.cluster,)

    @staticmethod
    def create(files: Files, row: FileRow, created: int, watermark: int) -> WalFile:
        """As ``make``.

        Raises:
            StorageError: there is no file; the same row may be tried again.
        """
        handle, counters = make(files, row, created, watermark)
        return WalFile(row, handle, counters, created)

    @property
    def published(self) -> int:
        """Durable bytes that other processes can see, file header included."""
        return self._published

    @property
    def empty(self) -> bool:
        """Whether no frame was published."""
        return self._published == FILE_HEADER_BYTES

    def append(self, batches: Sequence[EncodedBatch], commit: int, role_epoch: int) -> list[Placed]:
        """Seal ``batches`` as frames of commit time ``commit`` and write them, not yet durably.

        Raises:
            NoSpaceError: the disk is full; the file is as before.
            StorageError: the file must be poisoned.
        """
        pieces: list[Buffer] = []
        placed: list[Placed] = []
        streams: dict[tuple[UUID, str], tuple[StreamId, int, bytes]] = {}
        index: list[int] = []
        at = self._written
        for batch in batches:
            key = (batch.version.table, batch.version.group)
            last = streams.get(key) or self._streams.get(key)
            stream, sequence, previous = last or (StreamId(self.file, *key), -1, ZERO_HASH)
            header = batch.sealed(self.file, sequence + 1, previous, commit, role_epoch, batch.size)
            envelope = encode_envelope(self._provenance, len(header) + batch.size)
            if not self._index and not index or at - (index or self._index)[-1] >= INDEX_BYTES:
                index.append(at)
            at += len(envelope) + len(header) + batch.size
            pieces += (envelope, header, memoryview(batch.payload))
            streams[key] = (stream, sequence + 1, stream_hash(header))
            placed.append(Placed(stream, sequence + 1, at))
        self._write(pieces, at)
        self._written = at
        self._streams |= streams
        self._index += index
        return placed

    def _write(self, pieces: Sequence[Buffer], end: int) -> None:
        try:
            if end > self._reserved:
                self._reserved = reserve(self._handle, self._written, end, RESERVE_BYTES)
            append(self._handle, pieces)
        except NoSpaceError:
            self._handle.truncate(self._written)
            self._reserved = self._written
            raise

    def sync(self) -> None:
        """Everything appended is durable when this returns; after StorageError the file must be poisoned."""
        self._handle.sync()

    def publish(self, watermark: int) -> None:
        """Tell other processes that everything appended is durable and later commits are above ``watermark``."""
        self._published = self._written
        self._counters.publish(self._published, watermark)

    def watermark(self, above: int) -> None:
        """Say that commits not yet published are above ``above``."""
        self._counters.raise_watermark(above)

    def seal(self) -> None:
        """Write the end record past the published length, durably; after StorageError the file must be poisoned."""
        assert self._written == self._published, "what was appended was published or the file poisoned"
        self._handle.truncate(self._published)
        streams = {stream: (sequence, digest) for stream, sequence, digest in self._streams.values()}
        append(self._handle, [encode_end_record(EndRecord(streams, tuple(self._index)))])
        self._handle.sync()

    def poison(self) -> None:
        """Never touch the bytes again: the file ends at its published length, whatever was written past it."""
        self._counters.poison()

    def close(self, ledger: Ledger) -> None:
        """Have the ledger know that a sealed or poisoned file ends at its published length, then release the lock.

        Raises:
            CoordinationError: the ledger does not know yet; call again.
        """
        ledger.files.close(self.file, self._published)
        self._release()

    def abandon(self) -> None:
        """Release the lock and leave the ledger to recovery."""
        self._release()

    def _release(self) -> None:
        self._handle.close()
        self._counters.close()
