"""One WAL: created, appended to, synced, published and closed. ``proto/wal_format.md`` specifies the bytes.

The caller (``wal_series.py``) keeps the order of an append: ``append``, ``sync``, lease check, ``publish``. The file
is locked while it is open. Not safe for threads.
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
from replication.files.frames import add_to_index, refuse_occupied
from replication.ledger.base import FileRow
from replication.writer.wal.durable_length import DurableLength

RESERVE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a batch was written: its stream and sequence, and its frame's end offset."""

    stream: StreamId
    sequence: int
    end: int


def make(files: Files, row: FileRow, created: int, watermark: int) -> tuple[AppendFile, DurableLength]:
    """Create the file of an allocated row, with its header, lock and counters. It is durable on return.

    The file gets its name after its header is durable and its lock is held, so no process finds a partial file.

    Raises:
        StorageError: the file was not created, and the same row may be tried again. Or the path has a file of another
            host or cluster.
    """
    directory = dirname(row.path)
    files.make_directory(directory)
    refuse_occupied(files, row.path, row.file)
    new_path = row.path + ".new"
    files.remove(new_path)
    handle = files.create(new_path)
    counters = None
    try:
        handle.lock()
        append(handle, [encode_file_header(row.file, created)])
        handle.sync()
        counters = DurableLength.create(row.path, row.boot, FILE_HEADER_BYTES, watermark, files)
        files.rename(new_path, row.path)
        handle.path = row.path
        files.sync_directory(directory)
    except BaseException:
        if counters is not None:
            counters.close()
        handle.close()
        with suppress(StorageError):
            files.remove(new_path)
        raise
    return handle, counters


class WalFile:
    """An open WAL. ``create`` makes it; ``seal`` or ``poison``, then ``release``, end it.

    ``published`` is the published length, file header included.
    """

    def __init__(
        self, row: FileRow, handle: AppendFile, counters: DurableLength, created: int, reserve_bytes: int
    ) -> None:
        self.file: FileId = row.file
        self.path = row.path
        self.created = created
        self._handle = handle
        self._counters = counters
        self._written = self.published = FILE_HEADER_BYTES
        self._reserved = 0
        self._reserve_bytes = reserve_bytes
        self._streams: dict[tuple[UUID, str], tuple[StreamId, int, bytes]] = {}
        self._index: list[int] = []
        self._provenance = (row.file.cluster,)

    @staticmethod
    def create(
        files: Files, row: FileRow, created: int, watermark: int, *, reserve_bytes: int = RESERVE_BYTES
    ) -> WalFile:
        """As ``make``. Appends reserve ``reserve_bytes`` of disk space ahead.

        Raises:
            StorageError: the file was not created; the same row may be tried again.
        """
        handle, counters = make(files, row, created, watermark)
        return WalFile(row, handle, counters, created, reserve_bytes)

    @property
    def empty(self) -> bool:
        """Whether no frame was published."""
        return self.published == FILE_HEADER_BYTES

    def append(self, batches: Sequence[EncodedBatch], commit: int, role_epoch: int) -> list[Placed]:
        """Seal ``batches`` as frames of commit time ``commit`` and write them; ``sync`` makes them durable.

        Raises:
            NoSpaceError: the disk is full; the file is unchanged.
            StorageError: the write failed; poison the file.
        """
        pieces: list[Buffer] = []
        placed: list[Placed] = []
        streams: dict[tuple[UUID, str], tuple[StreamId, int, bytes]] = {}
        begins: list[int] = []
        at = self._written
        for batch in batches:
            key = (batch.version.table, batch.version.group)
            last = streams.get(key) or self._streams.get(key)
            stream, sequence, previous = last or (StreamId(self.file, *key), -1, ZERO_HASH)
            header = batch.sealed(self.file, sequence + 1, previous, commit, role_epoch, batch.size)
            envelope = encode_envelope(self._provenance, len(header) + batch.size)
            begins.append(at)
            at += len(envelope) + len(header) + batch.size
            pieces += (envelope, header, memoryview(batch.payload))
            streams[key] = (stream, sequence + 1, stream_hash(header))
            placed.append(Placed(stream, sequence + 1, at))
        self._write(pieces, at)
        self._written = at
        self._streams |= streams
        for begin in begins:
            add_to_index(self._index, begin)
        return placed

    def _write(self, pieces: Sequence[Buffer], end: int) -> None:
        try:
            if end > self._reserved:
                self._reserved = reserve(self._handle, self._written, end, self._reserve_bytes)
            append(self._handle, pieces)
        except NoSpaceError:
            try:
                self._handle.truncate(self._written)
            except NoSpaceError as error:  # some file systems need space for that: the file is not unchanged
                raise StorageError(error.what, error.hint) from error
            self._reserved = self._written
            raise

    def sync(self) -> None:
        """Make everything appended durable. After StorageError, poison the file."""
        self._handle.sync()

    def publish(self, watermark: int) -> None:
        """Publish everything appended; later commits are above ``watermark``."""
        self.published = self._written
        self._counters.publish(self.published, watermark)

    def watermark(self, above: int) -> None:
        """Raise the watermark to ``above``: unpublished commits are above it."""
        self._counters.raise_watermark(above)

    def seal(self) -> None:
        """Write the end record past the published length; it is durable on return. After StorageError, poison."""
        assert self._written == self.published, "every append is published before the file is sealed"
        self._handle.truncate(self.published)
        streams = {stream: (sequence, digest) for stream, sequence, digest in self._streams.values()}
        append(self._handle, [encode_end_record(EndRecord(streams, tuple(self._index)))])
        self._handle.sync()

    def poison(self) -> None:
        """End the file at its published length; bytes past it are ignored. Do not write to the file again."""
        self._counters.poison()

    def release(self) -> None:
        """Release the lock of a sealed or poisoned file."""
        self._handle.close()
        self._counters.close()
