"""Recovery of WALs whose writer died, by the worker of their host (rule 1).

A writer is dead when no process locks its lock file. Recovery locks and reads each of its open WALs. It keeps intact
frames and cuts a torn tail. It rewrites and syncs the bytes past the published length before it publishes them. A dead
process left them in the page cache, and they may have failed to reach the disk. After a reboot it rewrites the whole
file.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from os.path import dirname

from replication import log
from replication.core.frame import FILE_HEADER_BYTES, EndRecord, check_payload, encode_end_record, read_file_header
from replication.core.ids import FileId, StreamId
from replication.errors import CorruptFrameError, LockedFileError, MissingFileError, ReplicationError
from replication.files.base import AppendFile, Files, append
from replication.files.frames import add_to_index, frames
from replication.ledger.base import FileRow, Ledger, WriterRow
from replication.ledger.changes import LedgerChanges
from replication.retries import next_ask_s
from replication.writer.wal.durable_length import DurableLength
from replication.writer.wal.registration import lock_path

_REWRITE_BYTES = 4 << 20
_log = log.get(__name__)


class Recovery:
    """Recovers the dead writers of one host. Safe for threads and processes.

    A WAL that cannot be recovered is logged as an error and stays OPEN; closed time stops at its writer until a person
    acts. It is tried again after ten times the time that it took, so that a large WAL is not read all the time.
    """

    def __init__(
        self,
        ledger: Ledger,
        files: Files,
        directory: str,
        host: str,
        boot: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._ledger = ledger
        self._files = files
        self._directory = directory
        self._host = host
        self._boot = boot
        self._again_s: dict[str, float] = {}
        self._changes = LedgerChanges(ledger, monotonic)
        self._writers: list[WriterRow] = []

    def run_once(self) -> list[FileId]:
        """Close the WALs of every dead writer and remove these writers from the ledger; return the WALs. Idempotent.

        Writers whose retry is not due are left out.
        """
        recovered: list[FileId] = []
        for writer in self._registered():
            if writer.host == self._host and self._monotonic() >= self._again_s.get(writer.writer, 0.0):
                recovered += self._recover(writer)
        return recovered

    def _registered(self) -> list[WriterRow]:
        """The writers, read again when one has come."""
        if self._changes.any():
            try:
                self._writers = self._ledger.time.writers()
            except ReplicationError:
                self._changes.forget()
                raise
        return self._writers

    def _recover(self, writer: WriterRow) -> list[FileId]:
        begun_s = self._monotonic()
        path = lock_path(self._directory, writer.writer)
        lock_file: AppendFile | None = None
        recovered: list[FileId] = []
        try:
            try:
                lock_file = self._files.open(path)
                lock_file.lock()
            except LockedFileError:
                return []
            except MissingFileError:
                pass
            for row in self._ledger.files.all(writer.host, open_only=True):
                if row.writer == writer.writer:
                    recover_file(self._ledger, self._files, row, self._boot)
                    recovered.append(row.file)
            self._ledger.time.remove_writer(writer.writer)
            self._changes.forget()
            self._files.remove(path)
            self._again_s.pop(writer.writer, None)
            _log.info("writer_recovered", writer=writer.writer, files=len(recovered))
        except ReplicationError as error:
            self._again_s[writer.writer] = next_ask_s(begun_s, self._monotonic(), 0.0)
            _log.error("recovery_failed", writer=writer.writer, error=str(error))
        finally:
            if lock_file is not None:
                lock_file.close()
        return recovered


def recover_file(ledger: Ledger, files: Files, row: FileRow, boot: str) -> None:
    """Make the intact frames of a dead writer's open file durable, cut the rest, and close it in the ledger.

    Raises:
        LockedFileError: a process still writes the file.
        MissingFileError: the file does not exist, but bytes of it were published.
        CorruptFrameError: published bytes are damaged; the file is not changed.
    """
    try:
        handle = files.open(row.path)
    except MissingFileError:
        if _published(row, files) > FILE_HEADER_BYTES:
            raise
        ledger.files.close(row.file, row.length)
        return
    counters: DurableLength | None = None
    try:
        handle.lock()
        counters = DurableLength.open(row.path, row.boot, files)
        published = _published(row, files)
        if counters is not None and counters.poisoned:
            ledger.files.close(row.file, published)
            return
        size = handle.size()
        length, record = _intact(handle, size, row, published)
        begin = published if row.boot == boot and counters is not None else 0
        _rewrite(handle, begin, length)
        handle.truncate(length)
        handle.sync()
        files.sync_directory(dirname(row.path))
        counters = counters or DurableLength.create(row.path, row.boot, length, 0, files)
        counters.publish(length, counters.watermark)
        append(handle, [encode_end_record(record)])
        handle.sync()
        ledger.files.close(row.file, length)
        cut = max(0, size - length)
        _log.info("wal_recovered", file=str(row.file), length=length, kept=length - published, cut=cut)
    finally:
        if counters is not None:
            counters.close()
        handle.close()


def _published(row: FileRow, files: Files) -> int:
    length = max(row.length, FILE_HEADER_BYTES)
    counters = DurableLength.open(row.path, row.boot, files)
    if counters is None:
        return length
    with closing(counters):
        return max(length, counters.length)


def _intact(handle: AppendFile, size: int, row: FileRow, published: int) -> tuple[int, EndRecord]:
    """Return the length of the intact prefix, and its end record."""
    streams: dict[StreamId, tuple[int, bytes]] = {}
    index: list[int] = []
    length = FILE_HEADER_BYTES
    try:
        owner, _ = read_file_header(handle.read(0, FILE_HEADER_BYTES))
        if owner != row.file:
            raise CorruptFrameError(f"{row.path} has the header of file {owner}, not of {row.file}")
        for frame, payload in frames(handle, length, size):
            check_payload(frame, payload)
            sequence, last = streams.get(frame.header.stream, (-1, bytes(32)))
            if (frame.header.sequence, frame.header.previous) != (sequence + 1, last):
                raise CorruptFrameError(f"the frame at offset {frame.begin} does not follow its stream")
            streams[frame.header.stream] = (frame.header.sequence, frame.hash)
            add_to_index(index, frame.begin)
            length = frame.end
    except CorruptFrameError as error:
        if length < published:
            raise CorruptFrameError(
                f"{row.path}: {error.what}; {published} bytes of it were published as durable",
                "The disk lost or changed bytes. Keep the file, and check the disk first",
            ) from error
    if length < published:
        raise CorruptFrameError(
            f"{row.path} ends at {length}, but {published} bytes were published as durable",
            "The disk lost bytes. Keep the file, and check the disk first",
        )
    return length, EndRecord(streams, tuple(index))


def _rewrite(handle: AppendFile, begin: int, end: int) -> None:
    for at in range(begin, end, _REWRITE_BYTES):
        content = handle.read(at, min(at + _REWRITE_BYTES, end))
        handle.seek(at)
        append(handle, [content])
