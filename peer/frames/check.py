"""Read and check WAL and landing files offline: headers, payloads, hash chains and end records."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from replication.core.frame import (
    FILE_HEADER_BYTES,
    ZERO_HASH,
    EndRecord,
    FrameView,
    check_payload,
    end_record_length,
    read_end_record,
    read_file_header,
    read_frame,
)
from replication.core.ids import FileId, StreamId
from replication.errors import CorruptFrameError, MissingFileError, StorageError
from replication.files.boot import boot_id
from replication.files.mapped import HEAD_BYTES_MAX, load_pages
from replication.writer.wal.durable_length import DurableLength

END_TRAILER_BYTES = 12


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of checking one file; ``problems`` is empty when the file is sound.

    ``frames`` and ``rows`` count whole frames up to ``length`` (bytes, file header included). ``closed`` is True when
    an end record follows. ``repeated`` counts frames whose sequence occurred before; a lost link leaves such frames in
    a landing file.
    """

    path: str
    file: FileId | None
    length: int
    frames: int
    rows: int
    repeated: int
    streams: int
    closed: bool
    problems: tuple[str, ...] = field(default=())


class WalView:
    """One file, mapped for reading."""

    def __init__(self, path: Path, content: memoryview, length: int) -> None:
        self.path = path
        self.content = content
        self.length = length

    def file(self) -> FileId:
        """Return the file's id. Raises CorruptFrameError when the file header is damaged."""
        return read_file_header(self.content[:FILE_HEADER_BYTES])[0]

    def frames(self) -> Iterator[FrameView]:
        """Yield every published frame, in order.

        Raises:
            CorruptFrameError: the next frame is damaged or cut short.
            StorageError: the disk cannot read it.
        """
        at = FILE_HEADER_BYTES
        while at < self.length:
            _ask(self.path, self.content, at, at + HEAD_BYTES_MAX)
            frame = read_frame(self.content[: self.length], at)
            if frame is None:
                raise CorruptFrameError(f"the frame at offset {at} is cut short by the published length {self.length}")
            yield frame
            at = frame.end

    def payload(self, frame: FrameView) -> memoryview:
        """Return a frame's payload. Raises StorageError when the disk cannot read it."""
        _ask(self.path, self.content, frame.payload_begin, frame.end)
        return self.content[frame.payload_begin : frame.end]

    def end_record(self) -> EndRecord | None:
        """Return the end record, or None without one. Raises StorageError when the disk cannot read it."""
        start = end_start(self.content)
        if start < 0:
            return None
        _ask(self.path, self.content, start, len(self.content))
        return read_end_record(self.content[start:])


@contextmanager
def open_wal(path: Path, registered: int | None = None) -> Iterator[WalView]:
    """Map a file for reading.

    Args:
        path: the file.
        registered: its length in the ledger; None when the ledger has no such file.

    Raises:
        MissingFileError: the file does not exist.
        StorageError: the disk cannot read the file's beginning or end.
    """
    try:
        opened = path.open("rb")
    except FileNotFoundError:
        raise MissingFileError(f"there is no file {path}", "See walship wal list") from None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from None
    with opened:
        counted = _counted(path)  # before the mapping, which then covers the published length
        if path.stat().st_size == 0:
            yield WalView(path, memoryview(b""), 0)
            return
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        content = memoryview(mapped)
        _ask(path, content, 0, FILE_HEADER_BYTES)
        _ask(path, content, len(content) - END_TRAILER_BYTES, len(content))
        view = WalView(path, content, _published(path, content, counted, registered))
        try:
            yield view
        finally:
            view.content = memoryview(b"")
            with suppress(BufferError):  # a raised error may still refer to views of it
                content.release()
                mapped.close()


def check_file(path: Path, registered: int | None = None) -> Checked:
    """Check header, frames, payloads, the hash chain of each stream, and the end record."""
    with open_wal(path, registered) as view:
        problems: list[str] = []
        last: dict[StreamId, tuple[int, bytes]] = {}
        file: FileId | None = None
        frames = rows = repeated = 0
        try:
            file = view.file()
            for frame in view.frames():
                check_payload(frame, view.payload(frame))
                frames += 1
                before = last.get(frame.header.stream)
                if before is not None and frame.header.sequence <= before[0]:
                    repeated += 1
                    problems += _repeat_problem(frame, before)
                    continue
                problems += _chain_problem(frame, before)
                last[frame.header.stream] = (frame.header.sequence, frame.hash)
                rows += frame.header.row_count
        except (CorruptFrameError, StorageError) as error:
            problems.append(error.what)
        record: EndRecord | None = None
        try:
            record = view.end_record()
        except (CorruptFrameError, StorageError) as error:
            problems.append(error.what)
        if record is not None and not problems and dict(record.streams) != last:
            problems.append("the end record does not match the streams in the file")
        closed = record is not None
        return Checked(str(path), file, view.length, frames, rows, repeated, len(last), closed, tuple(problems))


def _chain_problem(frame: FrameView, before: tuple[int, bytes] | None) -> list[str]:
    header = frame.header
    if before is None:
        if header.sequence == 0 and header.previous != ZERO_HASH:
            return [f"the first frame of a stream, at offset {frame.begin}, has the hash of a frame before it"]
        return []
    if header.sequence == before[0] + 1 and header.previous != before[1]:
        return [f"the hash chain of {header.stream} breaks at offset {frame.begin}"]
    return []


def _repeat_problem(frame: FrameView, before: tuple[int, bytes]) -> list[str]:
    if frame.header.sequence == before[0] and frame.hash != before[1]:
        return [
            f"sequence {before[0]} of {frame.header.stream} occurs twice, with other content at offset {frame.begin}"
        ]
    return []


def end_start(content: memoryview) -> int:
    """Return the offset of a file's end record, or -1 without one."""
    total = end_record_length(content[-END_TRAILER_BYTES:])
    return len(content) - total if 0 < total <= len(content) - FILE_HEADER_BYTES else -1


def _counted(path: Path) -> int | None:
    """Return the published length from the live counter, or None without one."""
    counter = DurableLength.open(str(path), boot_id())
    if counter is None:
        return None
    with closing(counter):
        return counter.length


def _published(path: Path, content: memoryview, counted: int | None, registered: int | None) -> int:
    """Return where frames end: by the end record, else the live counter, the ledger, or the last whole frame."""
    end = end_start(content)
    if end >= 0:
        return end
    if counted is not None:
        return max(counted, registered or 0)
    return registered if registered is not None else _last_whole(path, content)


def _ask(path: Path, content: memoryview, begin: int, end: int) -> None:
    """Read bytes of a mapping in advance: touching a page that the disk cannot read would kill this process."""
    mapped = content.obj
    assert isinstance(mapped, mmap.mmap), "the view of a mapping"
    try:
        load_pages(mapped, max(0, begin), end)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}", "Check the disk") from None


def _last_whole(path: Path, content: memoryview) -> int:
    at = FILE_HEADER_BYTES
    while True:
        _ask(path, content, at, at + HEAD_BYTES_MAX)
        try:
            frame = read_frame(content, at)
        except CorruptFrameError:
            return at
        if frame is None:
            return at
        at = frame.end
