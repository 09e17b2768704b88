"""The control log: the worker's own WAL of closed frames, shipped to every peer."""

from __future__ import annotations

from hashlib import sha256

from replication import log
from replication.core.frame import (
    FILE_HEADER_BYTES,
    ZERO_HASH,
    Codec,
    EndRecord,
    FrameKind,
    SealedHeader,
    encode_end_record,
    encode_envelope,
    encode_sealed_header,
    stream_hash,
)
from replication.core.ids import NIL_UUID, FileId, StreamId
from replication.errors import ReplicationError, StorageError
from replication.files.base import AppendFile, Files, append
from replication.ledger.base import FileKind, FileRow, Ledger
from replication.writer.wal.durable_length import DurableLength
from replication.writer.wal.wal_file import make

_NO_SCHEMA = bytes(32)
_log = log.get(__name__)


class ControlLog:
    """Appends closed frames, each durable when ``append`` returns. Rolls by size. Not safe for threads.

    ``roll_bytes`` is the size at which a file is closed.
    """

    roll_bytes = 1 << 20

    def __init__(self, ledger: Ledger, files: Files, directory: str, host: str, boot: str) -> None:
        self._ledger = ledger
        self._files = files
        self._directory = directory
        self._host = host
        self._boot = boot
        self._open: _ControlFile | None = None
        self._row: FileRow | None = None  # allocated, but the file does not exist yet
        self._ended: dict[FileId, int] = {}  # lengths of files that are not yet CLOSED in the ledger

    def append(self, payload: bytes, commit: int, role_epoch: int) -> None:
        """Seal and append one frame. It is durable and published on return.

        Raises:
            StorageError: the frame is lost. A file that failed is closed at its published length. The next frame goes
                to a new file.
        """
        self._close_ended()
        control = self._open
        if control is None:
            if self._row is None:
                self._row = self._ledger.files.allocate(self._host, FileKind.CONTROL, self._directory, self._boot)
            control = self._open = _ControlFile.create(self._files, self._row, commit)
            self._row = None
        try:
            control.append(payload, commit, role_epoch)
        except StorageError:
            control.poison()
            self.close()
            raise
        if control.length >= self.roll_bytes:
            self.close()

    def close(self) -> None:
        """Close the open file, and mark it CLOSED in the ledger. When the ledger fails, ``append`` tries that again."""
        control, self._open = self._open, None
        if control is not None:
            control.finish()
            self._ended[control.file] = control.length
        self._close_ended()

    def _close_ended(self) -> None:
        for file, length in list(self._ended.items()):
            try:
                self._ledger.files.close(file, length)
                del self._ended[file]
            except ReplicationError as error:
                _log.warning("control_log_close_failed", file=str(file), error=str(error))


class _ControlFile:
    def __init__(self, row: FileRow, handle: AppendFile, counters: DurableLength) -> None:
        self.file = row.file
        self.length = FILE_HEADER_BYTES
        self._handle = handle
        self._counters = counters
        self._sequence = 0
        self._previous = ZERO_HASH

    @staticmethod
    def create(files: Files, row: FileRow, now: int) -> _ControlFile:
        handle, counters = make(files, row, now, 0)
        return _ControlFile(row, handle, counters)

    def append(self, payload: bytes, commit: int, role_epoch: int) -> None:
        header = encode_sealed_header(
            SealedHeader(
                FrameKind.CLOSED,
                Codec.NONE,
                NIL_UUID,
                "",
                self.file,
                self._sequence,
                role_epoch,
                commit,
                commit,
                0,
                _NO_SCHEMA,
                self._previous,
                sha256(payload).digest(),
                len(payload),
            )
        )
        envelope = encode_envelope((self.file.cluster,), len(header) + len(payload))
        append(self._handle, [envelope, header, payload])
        self._handle.sync()
        self.length += len(envelope) + len(header) + len(payload)
        self._sequence += 1
        self._previous = stream_hash(header)
        self._counters.publish(self.length, commit)

    def poison(self) -> None:
        self._counters.poison()

    def finish(self) -> None:
        """Write the end record, unless the file has failed, and release the file. A failure is logged."""
        try:
            if not self._counters.poisoned:
                self._end()
        except StorageError as error:
            self._counters.poison()
            _log.warning("control_log_end_failed", file=str(self.file), error=str(error))
        finally:
            self._handle.close()
            self._counters.close()

    def _end(self) -> None:
        streams = {StreamId(self.file, NIL_UUID, ""): (self._sequence - 1, self._previous)} if self._sequence else {}
        append(self._handle, [encode_end_record(EndRecord(streams, (FILE_HEADER_BYTES,) if self._sequence else ()))])
        self._handle.sync()
