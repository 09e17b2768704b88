"""Files mapped for reading. Pages are loaded before they are accessed.

Accessing a page that the disk cannot read ends the process with SIGBUS. Loading the page first raises OSError instead.
"""

from __future__ import annotations

import errno
import mmap
import sys
from collections.abc import Iterator, Sequence

from replication.core.coverage import Span
from replication.core.frame import FrameView, scan

_POPULATE_READ = 22  # MADV_POPULATE_READ of Linux since 5.14, for which Python has no name
_UNREADABLE = (errno.EFAULT, getattr(errno, "EHWPOISON", 133))
#: Both headers of a frame, whose lengths have 16 bits.
HEAD_BYTES_MAX = 128 << 10
_AHEAD_BYTES = 2 * HEAD_BYTES_MAX
_TOGETHER_BYTES = 1 << 20


def load_pages(mapped: mmap.mmap, begin: int, end: int) -> None:
    """Load the pages of ``[begin, end)`` from the disk. Does nothing when the kernel has no call for that.

    Raises:
        OSError: the disk cannot read all of them.
    """
    end = min(end, len(mapped))
    if sys.platform != "linux" or begin >= end:
        return
    first = begin - begin % mmap.PAGESIZE
    try:
        mapped.madvise(_POPULATE_READ, first, end - first)
    except OSError as error:
        if error.errno in _UNREADABLE:
            raise OSError(errno.EIO, f"the disk cannot read all of bytes {begin} to {end}") from None


def read_mapped(mapped: mmap.mmap, spans: Sequence[Span]) -> Iterator[memoryview]:
    """Yield the bytes of each span, not copied. Adjacent spans are loaded together.

    Raises:
        OSError: the disk cannot read the bytes.
    """
    view = memoryview(mapped)
    low = high = 0
    for at, (begin, end) in enumerate(spans):
        if begin < low or end > high:
            low, high, following = begin, end, at + 1
            while following < len(spans) and spans[following][0] == high < low + _TOGETHER_BYTES:
                high, following = spans[following][1], following + 1
            load_pages(mapped, low, high)
        yield view[begin:end]


def scan_mapped(mapped: mmap.mmap, begin: int, end: int, base: int = 0) -> Iterator[FrameView]:
    """As ``core.frame.scan`` of ``mapped[begin:end]``; payloads are not loaded.

    Raises:
        CorruptFrameError: bytes are not a frame.
        OSError: the disk cannot read the bytes.
    """
    frames = scan(memoryview(mapped)[:end], begin, base)
    at = loaded = begin
    while True:
        if loaded < at + HEAD_BYTES_MAX:
            loaded = max(at, loaded) + _AHEAD_BYTES
            load_pages(mapped, at, min(loaded, end))
        frame = next(frames, None)
        if frame is None:
            return
        yield frame
        at = frame.end - base
