"""The control log: the worker's own WAL of closed frames, shipped to every peer."""

from __future__ import annotations

from hashlib import sha256

import pyarrow as pa

from replication import log
from replication.core.definition.schema import SchemaVersion
from replication.core.frame import Codec, FrameKind
from replication.core.ids import NIL_UUID
from replication.core.rows.batch import EncodedBatch
from replication.errors import NoSpaceError, StorageError
from replication.files.base import Files
from replication.ledger.base import FileKind, FileRow, Ledger
from replication.writer.wal.ended import EndedWals
from replication.writer.wal.wal_file import WalFile

_RESERVE_BYTES = 64 << 10
_NO_TABLE = SchemaVersion(NIL_UUID, "", bytes(32), b"", pa.schema([]))
_log = log.get(__name__)


class ControlLog:
    """Appends closed frames, each durable when ``append`` returns. Rolls by size. Not safe for threads.

    ``roll_bytes`` is the size at which a file is closed. A day makes 2 to 26 MB. While a peer is away all files stay,
    and each is looked at whenever there is something to send, so they are not small.
    """

    roll_bytes = 16 << 20

    def __init__(self, ledger: Ledger, files: Files, directory: str, host: str, boot: str) -> None:
        self._ledger = ledger
        self._files = files
        self._directory = directory
        self._host = host
        self._boot = boot
        self._open: WalFile | None = None
        self._row: FileRow | None = None  # allocated, but the file does not exist yet
        self._ended = EndedWals(ledger, 0.0)

    def append(self, payload: bytes, commit: int, role_epoch: int) -> None:
        """Seal and append one frame. It is durable and published on return.

        Raises:
            NoSpaceError: the frame is lost. The file is unchanged, and the next frame goes to it.
            StorageError: the frame is lost. A file that failed is closed at its published length. The next frame goes
                to a new file.
        """
        self._ended.report()
        wal = self._open
        if wal is None:
            if self._row is None:
                self._row = self._ledger.files.allocate(self._host, FileKind.CONTROL, self._directory, self._boot)
            wal = self._open = WalFile.create(self._files, self._row, commit, 0, reserve_bytes=_RESERVE_BYTES)
            self._row = None
        notice = pa.py_buffer(payload)
        digest = sha256(payload).digest()
        frame = EncodedBatch(_NO_TABLE, Codec.NONE, notice, digest, row_count=0, kind=FrameKind.CLOSED)
        is_written = False
        try:
            wal.append([frame], commit, role_epoch)
            is_written = True
            wal.sync()
        except StorageError as error:
            if is_written or not isinstance(error, NoSpaceError):
                wal.poison()
                self._end(wal)
            raise
        wal.publish(commit)
        if wal.published >= self.roll_bytes:
            self.roll()

    def roll(self) -> None:
        """Seal the open file, so that the next frame goes to a new one. A failure is logged."""
        wal = self._open
        if wal is None:
            return
        try:
            wal.seal()
        except StorageError as error:
            wal.poison()
            _log.warning("control_log_end_failed", file=str(wal.file), error=str(error))
        self._end(wal)

    def close(self) -> None:
        """As ``roll``. A file that the ledger does not close now is left to recovery."""
        self.roll()
        self._ended.close()

    def _end(self, wal: WalFile) -> None:
        self._open = None
        self._ended.add(wal)
        self._ended.report()
