"""Recovery of WALs whose writer died, by the worker of their host (rule 1).

A writer is dead when nobody holds its lock file. Each of its open WALs is locked and read through: frames that are
intact are kept, a torn tail is cut, and everything past the last published length is written again and synced
before it is published, for bytes that a dead process left in the page cache may have failed to reach the disk. After
another boot that means the whole file.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from os.path import dirname

import structlog

from replication.core.frame import FILE_HEADER_BYTES, EndRecord, check_payload, encode_end_record, read_file_header
from replication.core.ids import FileId, StreamId
from replication.errors import CorruptFrameError, LockedFileError, MissingFileError, ReplicationError
from replication.files.base import AppendFile, Files, append
from replication.files.frames import frames
from replication.ledger.base import FileRow, Ledger, WriterRow
from replication.retries import next_ask_s
from replication.writer.wal.durable_length import DurableLength
from replication.writer.wal.registration import lock_path
from replication.writer.wal.wal_file import INDEX_BYTES

_REWRITE_BYTES = 4 << 20
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """A WAL that was closed at ``length``: so many bytes past the last published one were kept, so many were cut."""

    file: FileId
    length: int
    kept_bytes: int
    cut_bytes: int


class Recovery:
    """Recovers the dead writers of one host, again and again. Safe for threads.

    A failed recovery is tried again after ten times as long as it took, so that a large WAL is not read all the time.
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

    def run_once(self) -> list[Recovered]:
        """As ``recover_writers``, but for writers that failed a moment ago."""
        recovered: list[Recovered] = []
        for writer in self._ledger.time.writers():
            if writer.host == self._host and self._monotonic() >= self._again_s.get(writer.writer, 0.0):
                recovered += self._recover(writer)
        return recovered

    def _recover(self, writer: WriterRow) -> list[Recovered]:
        begun_s = self._monotonic()
        path = lock_path(self._directory, writer.writer)
        held: AppendFile | None = None
        recovered: list[Recovered] = []
        try:
            try:
                held = self._files.open(path)
                held.lock()
            except LockedFileError:
                return []
            except MissingFileError:
                pass
            for row in self._ledger.files.all(writer.host, open_only=True):
                if row.writer == writer.writer:
                    recovered.append(recover_file(self._ledger, self._files, row, self._boot))
            self._ledger.time.remove_writer(writer.writer)
            self._files.remove(path)
            self._again_s.pop(writer.writer, None)
            _log.info("writer_recovered", writer=writer.writer, files=len(recovered))
        except ReplicationError as error:
            self._again_s[writer.writer] = next_ask_s(begun_s, self._monotonic(), 0.0)
            _log.error("recovery_failed", writer=writer.writer, error=str(error))
        finally:
            if held is not None:
                held.close()
        return recovered


def recover_writers(ledger: Ledger, files: Files, directory: str, host: str, boot: str) -> list[Recovered]:
    """Close the WALs of every dead writer of ``host`` and remove those writers; live ones are passed over.

    A WAL that cannot be recovered is logged as an error, stays open, and its writer goes on holding closed time until
    a person has looked. Idempotent; several processes may try at once.
    """
    return Recovery(ledger, files, directory, host, boot).run_once()


def recover_file(ledger: Ledger, files: Files, row: FileRow, boot: str) -> Recovered:
    """Keep what is intact in an open file that nobody writes any more, durably, and close it.

    Raises:
        LockedFileError: somebody does write it.
        MissingFileError: it is gone, though the ledger has registered bytes of it.
        CorruptFrameError: bytes that were published are damaged; the file is left as it is.
    """
    try:
        handle = files.open(row.path)
    except MissingFileError:
        if row.length > FILE_HEADER_BYTES:
            raise
        ledger.files.close(row.file, row.length)
        return Recovered(row.file, row.length, 0, 0)
    counters: DurableLength | None = None
    try:
        handle.lock()
        counters = DurableLength.open(row.path, row.boot, files)
        published = max(row.length, FILE_HEADER_BYTES, counters.length if counters else 0)
        poisoned = counters is not None and counters.poisoned
        if poisoned:
            ledger.files.close(row.file, published)
            return Recovered(row.file, published, 0, 0)
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
        return Recovered(row.file, length, length - published, cut)
    finally:
        if counters is not None:
            counters.close()
        handle.close()


def _intact(handle: AppendFile, size: int, row: FileRow, published: int) -> tuple[int, EndRecord]:
    """The length up to which everything is intact, and the end record of that much."""
    streams: dict[StreamId, tuple[int, bytes]] = {}
    index: list[int] = []
    length = FILE_HEADER_BYTES
    try:
        found, _ = read_file_header(handle.read(0, FILE_HEADER_BYTES))
        if found != row.file:
            raise CorruptFrameError(f"{row.path} says that it is {found}", offset=0)
        for frame, payload in frames(handle, length, size):
            check_payload(frame, payload)
            sequence, last = streams.get(frame.header.stream, (-1, bytes(32)))
            if (frame.header.sequence, frame.header.previous) != (sequence + 1, last):
                raise CorruptFrameError(
                    f"the frame at offset {frame.begin} does not follow its stream", offset=frame.begin
                )
            streams[frame.header.stream] = (frame.header.sequence, frame.hash)
            if not index or frame.begin - index[-1] >= INDEX_BYTES:
                index.append(frame.begin)
            length = frame.end
    except CorruptFrameError as error:
        if length < published:
            raise CorruptFrameError(
                f"{row.path}: {error.what}; {published} bytes of it were published as durable",
                "The disk lost or changed bytes. Keep the file, and look at the disk before anything else",
                offset=length,
                lost_bytes=published - length,
            ) from error
    if length < published:
        raise CorruptFrameError(
            f"{row.path} ends at {length}, but {published} bytes were published as durable",
            "The disk lost bytes. Keep the file, and look at the disk before anything else",
            offset=length,
            lost_bytes=published - length,
        )
    return length, EndRecord(streams, tuple(index))


def _rewrite(handle: AppendFile, begin: int, end: int) -> None:
    for at in range(begin, end, _REWRITE_BYTES):
        content = handle.read(at, min(at + _REWRITE_BYTES, end))
        handle.seek(at)
        append(handle, [content])
