"""What of a damaged file of frames can be read: every whole frame, before the damage and after it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from peer.frames.check import end_start
from peer.repair.salvage import claim_of, is_whole
from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES, FRAME_MAGIC, FrameView, read_end_record, read_frame
from replication.core.ids import StreamId
from replication.errors import FormatError
from replication.ledger.base import FileKind, FileRow, Readable

_BLOCK_BYTES = 1 << 20
_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ReadableFile:
    """What can be read, for the ledger; and the frames with their bytes, by offset, mapped from the disk."""

    readable: Readable
    frames: Mapping[int, tuple[FrameView, memoryview]] = field(default_factory=dict)


def find_readable(row: FileRow, published: int) -> ReadableFile:
    """Look through a file of this host up to where its frames end; a file that is gone has nothing.

    Past damage the next frame is looked for by its magic. What is found counts with the checksums of both headers and
    the SHA-256 of its payload right, and in a WAL only frames that say they belong to it.

    Args:
        row: the file.
        published: how many bytes of it are known to have been durable. A file that is OPEN may have whole frames past
            them, which count too.
    """
    end = max(row.needed, published)
    try:
        with open(row.path, "rb") as source:
            good = _without_errors(source.fileno())
            view = memoryview(mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ))  # unmapped with its last view
    except (OSError, ValueError):  # gone, or empty
        return ReadableFile(Readable(end))
    found: dict[int, tuple[FrameView, memoryview]] = {}
    for low, high in good.within(FILE_HEADER_BYTES, end if row.closed else len(view)):
        for frame in _frames(view, low, high):
            if row.kind is not FileKind.WAL or frame.header.wal == row.file:
                found[frame.begin] = frame, view[frame.begin : frame.end]
    last = _last(view, end) if row.closed and good.contains(min(end, len(view)), len(view)) else None
    end = max([end, *(frame.end for frame, _ in found.values())])
    return ReadableFile(Readable(end, tuple(claim_of(frame) for frame, _ in found.values()), last), found)


def _without_errors(handle: int) -> Ranges:
    """The bytes that the disk gives; one touched in a mapping that it does not give would end this process."""
    size = os.fstat(handle).st_size
    good: list[tuple[int, int]] = []
    for block in range(0, size, _BLOCK_BYTES):
        end = min(size, block + _BLOCK_BYTES)
        pages = [(block, end)] if _reads(handle, block, end) else _pages(handle, block, end)
        good += pages
    return Ranges.union_of(good)


def _pages(handle: int, begin: int, end: int) -> list[tuple[int, int]]:
    spans = [(at, min(end, at + _PAGE_BYTES)) for at in range(begin, end, _PAGE_BYTES)]
    return [span for span in spans if _reads(handle, *span)]


def _reads(handle: int, begin: int, end: int) -> bool:
    try:
        return len(os.pread(handle, end - begin, begin)) == end - begin
    except OSError:
        return False


def _frames(view: memoryview, at: int, end: int) -> Iterator[FrameView]:
    """Every whole frame of ``[at, end)``."""
    within = view[:end]
    while 0 <= at < end:
        try:
            frame = read_frame(within, at)
        except FormatError:
            frame = None
        if frame is None:
            at = _next(view, at + 1, end)
            continue
        if is_whole(frame, within[frame.begin : frame.end]):
            yield frame
        at = frame.end


def _next(view: memoryview, begin: int, end: int) -> int:
    """Where the next frame may start; -1 when none does."""
    mapped = view.obj
    assert isinstance(mapped, mmap.mmap), "the view of a mapping"
    return mapped.find(FRAME_MAGIC, begin, end)


def _last(view: memoryview, end: int) -> dict[StreamId, int] | None:
    try:
        start = end_start(view)
        if start != end:
            return None
        return {stream: last for stream, (last, _) in read_end_record(view[start:]).streams.items()}
    except (FormatError, ValueError, KeyError):
        return None
