"""Reading files of this host: whole frames for shipping, headers only for registering."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import closing

from replication.core.frame import (
    FILE_HEADER_BYTES,
    FRAME_BYTES_MAX,
    FrameView,
    end_record_length,
    read_end_record,
    scan,
)
from replication.core.ids import FileId
from replication.errors import CorruptFrameError, MissingFileError, StorageError, VersionError
from replication.files.local import read_at
from replication.files.mapped import load_pages, scan_mapped
from replication.files.store import is_stored, store_of

_ENVELOPE_BYTES_MAX = 64 << 10
_READERS_MAX = 64
_STORED_BYTES = 4 << 20
_AHEAD_BYTES = 8 << 20
_LARGE_BYTES = 1 << 20  # smaller reads follow a writer, whose bytes are in memory


class FrameReader:
    """One open file. Not safe for threads."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._whole = 0
        self._asked = 0
        self._fd = -1
        self._store = store_of(path) if is_stored(path) else None
        if self._store is not None:
            return
        with _path_errors(path):
            self._fd = os.open(path, os.O_RDONLY)

    def read(self, begin: int, end: int, size: int) -> tuple[bytes, list[FrameView]]:
        """Read about ``size`` bytes from offset ``begin``: at least one whole frame, none past ``end``.

        Returns:
            The bytes that were read, and the whole frames in them; frame offsets are the file's.

        Raises:
            CorruptFrameError: there is no whole frame at ``begin``, although ``end`` bytes are durable.
            VersionError: the frame at ``begin`` has a newer format.
        """
        want = max(size, self._whole)
        while True:
            content = self._pread(begin, min(end, begin + want))
            frames: list[FrameView] = []
            try:
                frames.extend(scan(content, 0, begin))
            except CorruptFrameError as error:
                if not frames:  # whole frames before a damaged one are returned
                    remedy = "Restore it from a copy; walship wal verify shows details"
                    raise CorruptFrameError(f"{self.path}: {error.what}", remedy) from None
            except VersionError as error:
                if not frames:
                    raise VersionError(f"{self.path}: {error.what}", error.hint) from None
            if frames:
                self._whole = max(f.end - f.begin for f in frames) + _ENVELOPE_BYTES_MAX
                return content, frames
            if begin + want >= end or want > FRAME_BYTES_MAX + _ENVELOPE_BYTES_MAX:
                raise CorruptFrameError(
                    f"{self.path}: no whole frame at offset {begin}, though {end} bytes are durable",
                    "Keep the file and check the disk; walship wal verify shows details",
                )
            want *= 2

    def close(self) -> None:
        """Close it. Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _pread(self, begin: int, end: int) -> bytes:
        if self._store is not None:
            return self._store.read(self.path, begin, end)
        with _path_errors(self.path):
            if end - begin >= _LARGE_BYTES:
                self._read_ahead(end)
            return read_at(self._fd, begin, end)

    def _read_ahead(self, begin: int) -> None:
        """Prefetch what follows ``begin``, while the bytes before it are sent."""
        if sys.platform == "linux" and self._asked < begin + _AHEAD_BYTES // 2:
            with contextlib.suppress(OSError):  # a hint; some file systems do not support it
                os.posix_fadvise(self._fd, begin, _AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
            self._asked = begin + _AHEAD_BYTES


class FrameReaders:
    """Readers by file; the last ``_READERS_MAX`` opened stay open. Not safe for threads."""

    def __init__(self) -> None:
        self._readers: dict[FileId, FrameReader] = {}

    def of(self, file: FileId, path: str) -> FrameReader:
        """Return a file's reader; open it when needed."""
        reader = self._readers.get(file)
        if reader is None:
            if len(self._readers) >= _READERS_MAX:
                self.drop(next(iter(self._readers)))
            reader = self._readers[file] = FrameReader(path)
        return reader

    def drop(self, file: FileId) -> None:
        """Close a file's reader, if it is open."""
        reader = self._readers.pop(file, None)
        if reader is not None:
            reader.close()

    def close(self) -> None:
        """Close all. Idempotent."""
        for file in list(self._readers):
            self.drop(file)


class MappedFrames:
    """The frames of ``[begin, end)`` of a file. A payload is read from the disk only by ``payload``.

    The mapping is released with this object, never earlier: an error's traceback may still refer to it.
    """

    def __init__(self, path: str, begin: int, end: int) -> None:
        self._path = path
        self._start = begin - begin % mmap.ALLOCATIONGRANULARITY
        self._begin = begin
        with _path_errors(path), open(path, "rb") as file:
            self._mapped = mmap.mmap(file.fileno(), end - self._start, prot=mmap.PROT_READ, offset=self._start)

    def __iter__(self) -> Iterator[FrameView]:
        """Yield frames. Raises CorruptFrameError at a damaged frame, StorageError at an unreadable one."""
        with _path_errors(self._path):
            yield from scan_mapped(self._mapped, self._begin - self._start, len(self._mapped), self._start)

    def payload(self, frame: FrameView) -> bytes:
        """Return a copy of one frame's payload."""
        begin, end = frame.payload_begin - self._start, frame.end - self._start
        with _path_errors(self._path):
            load_pages(self._mapped, begin, end)
        return self._mapped[begin:end]


@contextlib.contextmanager
def _path_errors(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise MissingFileError(
            f"{path} does not exist, but is in the ledger", "Restore it, or salvage the file"
        ) from None
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot read {path}: {error}", "Look at the disk") from error


def frame_start(path: str, at: int, length: int) -> int:
    """Return the offset of a closed file's first frame at or after ``at``; ``length`` when there is none."""
    if at <= FILE_HEADER_BYTES or at >= length:
        return min(max(at, FILE_HEADER_BYTES), length)
    known = max((offset for offset in _index(path, length) if offset <= at), default=FILE_HEADER_BYTES)
    frames = stored_frames(path, known, length) if is_stored(path) else MappedFrames(path, known, length)
    return next((frame.begin for frame in frames if frame.begin >= at), length)


def stored_frames(path: str, begin: int, end: int) -> Iterator[FrameView]:
    """Yield the frames of ``[begin, end)`` of a file in the store. Raises CorruptFrameError, StorageError."""
    with closing(FrameReader(path)) as reader:
        while begin < end:
            _, frames = reader.read(begin, end, _STORED_BYTES)
            yield from frames
            begin = frames[-1].end


def _index(path: str, length: int) -> tuple[int, ...]:
    """Return the end record's frame offsets; empty when it is not there or damaged, since it only saves reading."""
    tail, size = _tail(path, 12)
    record = end_record_length(tail)
    try:
        return read_end_record(_tail(path, record)[0]).index if 0 < record <= size - length else ()
    except CorruptFrameError:
        return ()


def _tail(path: str, length: int) -> tuple[bytes, int]:
    """Return the last ``length`` bytes of a file, and its size."""
    if is_stored(path):
        store = store_of(path)
        size = store.size(path)
        return store.read(path, max(0, size - length), size), size
    with _path_errors(path), open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        return os.pread(file.fileno(), length, max(0, size - length)), size
