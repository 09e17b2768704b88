"""What of a damaged file of frames can be read: every whole frame, before the damage and after it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from peer.frames.check import end_start
from peer.repair.saved_copy import SENT_AGAIN
from replication.core.coverage import Ranges, Span
from replication.core.frame import FILE_HEADER_BYTES, FRAME_MAGIC, FrameView, check_payload, read_end_record, read_frame
from replication.core.ids import StreamId
from replication.errors import CorruptFrameError, FormatError, VersionError
from replication.ledger.base import Claim, FileKind, FileRow, Readable

_BLOCK_BYTES = 1 << 20
_PAGE_BYTES = 4096

Frames = Mapping[Claim, tuple[FrameView, memoryview]]


@dataclass(frozen=True, slots=True)
class ReadableFile:
    """What can be read, for the ledger; and the frames with their bytes, mapped from the disk."""

    readable: Readable
    frames: Frames = field(default_factory=dict)


def find_readable(row: FileRow, published: int) -> ReadableFile:
    """Look through a file of this host up to where its frames end; a file that is gone has nothing.

    Past damage the next frame is looked for by its magic. A frame counts if the checksums of both headers and the
    SHA-256 of its payload are right. In a WAL it must also say that it belongs there. Frames of bootstraps do not
    count: their sender sends them again.

    So many bytes as ``published`` are known to have been durable. A file that is OPEN may have whole frames past them,
    which count too.

    Raises:
        VersionError: a frame is of a newer walship, which can read it.
    """
    end = max(row.needed, published)
    opened = _open(row.path)
    if opened is None:
        return ReadableFile(Readable(end))
    view, good = opened
    spans = good.within(FILE_HEADER_BYTES, end if row.closed else len(view))
    found = {
        claim: (frame, content)
        for claim, frame, content in _whole_frames(view, spans)
        if row.kind is not FileKind.WAL or frame.header.wal == row.file
    }
    last = _last(view, end) if row.closed and good.contains(min(end, len(view)), len(view)) else None
    end = max([end, *(claim.end for claim in found)])
    return ReadableFile(Readable(end, tuple(found), last), found)


def find_elsewhere(places: Iterable[tuple[FileRow, int, int]], wanted: Mapping[StreamId, Ranges]) -> Frames:
    """Whole frames of the wanted sequences in ``[begin, end)`` of other files of this host; of a repeat the first."""
    rest, found = dict(wanted), {}
    for row, begin, end in places:
        opened = _open(row.path)
        if opened is None:
            continue
        view, good = opened
        for claim, frame, content in _whole_frames(view, good.within(begin, end)):
            if rest.get(claim.stream, Ranges()).contains(claim.sequence):
                found[claim] = (frame, content)
                rest[claim.stream] = rest[claim.stream].subtract(Ranges.of((claim.sequence, claim.sequence + 1)))
    return found


def is_whole(frame: FrameView, content: memoryview) -> bool:
    """Whether a frame's payload, at the end of its bytes, is what its header promises."""
    try:
        check_payload(frame, content[frame.payload_begin - frame.begin :])
    except CorruptFrameError:
        return False
    return True


def _open(path: str) -> tuple[memoryview, Ranges] | None:
    """A file's bytes, and which of them the disk gives; None of one that is gone, or empty."""
    try:
        with open(path, "rb") as source:
            good = _without_errors(source.fileno())
            return memoryview(mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)), good  # unmapped with its views
    except (OSError, ValueError):
        return None


def _without_errors(handle: int) -> Ranges:
    """The bytes that the disk gives; one touched in a mapping that it does not give would end this process."""
    size = os.fstat(handle).st_size
    good: list[Span] = []
    for block in range(0, size, _BLOCK_BYTES):
        end = min(size, block + _BLOCK_BYTES)
        pages = [(block, end)] if _reads(handle, block, end) else _pages(handle, block, end)
        good += pages
    return Ranges.union_of(good)


def _pages(handle: int, begin: int, end: int) -> list[Span]:
    spans = [(at, min(end, at + _PAGE_BYTES)) for at in range(begin, end, _PAGE_BYTES)]
    return [span for span in spans if _reads(handle, *span)]


def _reads(handle: int, begin: int, end: int) -> bool:
    try:
        return len(os.pread(handle, end - begin, begin)) == end - begin
    except OSError:
        return False


def _whole_frames(view: memoryview, spans: Iterable[Span]) -> Iterator[tuple[Claim, FrameView, memoryview]]:
    for begin, end in spans:
        for frame in _frames(view, begin, end):
            if frame.header.kind not in SENT_AGAIN:
                yield Claim.of(frame, frame.begin, frame.end), frame, view[frame.begin : frame.end]


def _frames(view: memoryview, at: int, end: int) -> Iterator[FrameView]:
    """Every whole frame of ``[at, end)``. VersionError when one is of a newer walship: it is not damaged."""
    within = view[:end]
    while 0 <= at < end:
        try:
            frame = read_frame(within, at)
        except VersionError:
            raise
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
