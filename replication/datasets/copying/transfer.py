"""Copies the bytes of one file, or of one range of it, and returns digests of what was read and written.

Digest and write take the same buffer, so the digest is of what was written. A stream between two stores is read by one
thread while another writes, with a bounded queue between; ranges overlap by being copied by several threads.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing

from blake3 import blake3

from replication.core.copying.conversions import Conversion
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import RelativePath
from replication.core.copying.ranges import Range, file_digest, ranges_of
from replication.datasets.converters.plugins import converter_of
from replication.datasets.copying.throttle import CopyThrottle
from replication.datasets.stores.base import FileReader, FileWriter, PartsWriter, Store, read_whole
from replication.errors import ChangedFileError, CopyError

PIECE = 256 << 10  # stays in the CPU's cache between read, digest and write
_STREAM_PIECE = 4 << 20
_AHEAD = 2  # pieces that are read before the writer takes them

#: Told of bytes that were copied.
Moved = Callable[[int], None]


def read_small(source: Store, file: CopyableFile, throttle: CopyThrottle) -> bytes:
    """A file that fits in memory; raises as :func:`read_whole`."""
    throttle.take(file.origin.size)
    return read_whole(source, file.origin)


def digest_of_content(data: bytes, range_bytes: int) -> str:
    """The digest of a file with that content."""
    content = memoryview(data)
    return file_digest([blake3(content[part.begin : part.end]).digest() for part in ranges_of(len(data), range_bytes)])


def copy_range(
    reader: FileReader,
    writer: FileWriter | PartsWriter,
    file: CopyableFile,
    part: Range,
    throttle: CopyThrottle,
    moved: Moved,
) -> bytes:
    """Copy one range of a file to the same place of a writer; its BLAKE3 digest. Not durable on return."""
    digest = blake3()
    buffer = memoryview(bytearray(min(PIECE, max(part.size, 1))))
    at = part.begin
    while at < part.end:
        wanted = min(len(buffer), part.end - at)
        throttle.take(wanted)
        count = reader.read_into(at, buffer[:wanted])
        if count == 0:
            raise changed(file)
        piece = buffer[:count]
        digest.update(piece)
        writer.write(at, piece)
        at += count
        moved(count)
    return digest.digest()


def copy_stream(
    source: Store, writer: FileWriter, file: CopyableFile, parts: list[Range], throttle: CopyThrottle, moved: Moved
) -> list[bytes]:
    """Copy a whole file front to back; the BLAKE3 digest of each range. Reading and writing overlap."""
    digests = []
    with _ReadAhead(source, file, throttle) as pieces:
        rest: memoryview = memoryview(b"")
        for part in parts:
            digest, at = blake3(), part.begin
            while at < part.end:
                if not rest:
                    read: bytes = next(pieces, b"")
                    rest = memoryview(read)
                if not rest:
                    raise changed(file)
                piece, rest = rest[: part.end - at], rest[part.end - at :]
                digest.update(piece)
                writer.write(at, piece)
                at += len(piece)
                moved(len(piece))
            digests.append(digest.digest())
        beyond: bytes = next(pieces, b"")
        if rest or beyond:
            raise changed(file)
    return digests


def copy_converted(
    source: Store,
    writer: FileWriter,
    file: CopyableFile,
    conversions: Sequence[Conversion],
    range_bytes: int,
    throttle: CopyThrottle,
) -> tuple[int, str]:
    """Copy a file through conversions, front to back; the size of what was written, and its digest.

    Raises:
        CopyError: it does not fit a conversion, or unpacks to far too much.
    """
    digests, digest, at = [], blake3(), 0
    with _ReadAhead(source, file, throttle) as read, ExitStack() as stack:
        pieces: Iterator[bytes] = read
        for each in conversions:
            pieces = stack.enter_context(closing(converter_of(each.text)(pieces, file.origin.size)))
        for whole in pieces:
            rest = memoryview(whole)
            while rest:
                part = rest[: range_bytes - at % range_bytes]
                digest.update(part)
                writer.write(at, part)
                at, rest = at + len(part), rest[len(part) :]
                if at % range_bytes == 0:
                    digests.append(digest.digest())
                    digest = blake3()
    if at % range_bytes or not digests:
        digests.append(digest.digest())
    return at, file_digest(digests)


def changed(file: CopyableFile) -> ChangedFileError:
    """The error for a file that is shorter or longer than its listing said."""
    return ChangedFileError(f"{file.origin.path} changed while it was copied", "It is copied by the next run")


class _ReadAhead:
    """Reads a file in a thread of its own; an iterator of pieces. Ended with the block, whatever is left."""

    def __init__(self, source: Store, file: CopyableFile, throttle: CopyThrottle) -> None:
        self._source, self._file, self._throttle = source, file, throttle
        self._pieces: queue.Queue[bytes | BaseException] = queue.Queue(_AHEAD)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name="copy-read-ahead", daemon=True)

    def __enter__(self) -> Iterator[bytes]:
        self._thread.start()
        return self._taken()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        while self._thread.is_alive():
            try:
                self._pieces.get(timeout=0.05)
            except queue.Empty:
                continue
        self._thread.join()

    def _taken(self) -> Iterator[bytes]:
        while True:
            piece = self._pieces.get()
            if isinstance(piece, BaseException):
                raise piece
            if not piece:
                return
            yield piece

    def _read(self) -> None:
        try:
            with closing(self._source.open(self._file.origin)) as reader:
                at = 0
                while not self._ended.is_set():
                    self._throttle.take(min(_STREAM_PIECE, max(self._file.origin.size - at, 0)))
                    data = reader.read(at, _STREAM_PIECE)
                    if not data:
                        if at != self._file.origin.size:  # also of a connection that was lost: FTP has no other end
                            raise changed(self._file)
                        reader.check_unchanged()
                        break
                    at += len(data)
                    self._pieces.put(data)
        except BaseException as error:
            self._pieces.put(error)
        else:
            self._pieces.put(b"")


def check_digest(target: Store, staged: RelativePath, part: Range, expected: bytes) -> None:
    """Read a range back, past the caches of this host. CopyError if the target has other bytes."""
    if _range_digest(target, staged, part) != expected:
        raise _other_bytes(staged, part)


def check_file(target: Store, staged: RelativePath, size: int, range_bytes: int, expected: str) -> None:
    """Read a file back, once it is durable; raises as :func:`check_digest`."""
    target.sync([staged])
    if digest_of(target, staged, size, range_bytes) != expected:
        raise _other_bytes(staged, Range(0, 0, size))


def _other_bytes(staged: RelativePath, part: Range) -> CopyError:
    error = CopyError(f"{staged} has other bytes than were written, in {part.begin}–{part.end}", "Check the disk")
    error.retryable = True
    return error


def digest_of(store: Store, path: RelativePath, size: int, range_bytes: int) -> str:
    """The digest of a file as the store has it, past the caches of this host."""
    return file_digest([_range_digest(store, path, part) for part in ranges_of(size, range_bytes)])


def _range_digest(store: Store, path: RelativePath, part: Range) -> bytes:
    digest, at = blake3(), part.begin
    while at < part.end:
        data = store.reread(path, at, min(_STREAM_PIECE, part.end - at))
        if not data:
            break
        digest.update(data)
        at += len(data)
    return digest.digest()
