"""Frames of a file, read piece by piece."""

from __future__ import annotations

from collections.abc import Iterator

from replication.core.frame import FrameView, scan
from replication.files.base import AppendFile

_READ_BYTES = 4 << 20


def frames(file: AppendFile, begin: int, end: int) -> Iterator[tuple[FrameView, memoryview]]:
    """Every whole frame in ``[begin, end)``, with its payload; stops before what is incomplete.

    ``begin`` is where a frame starts.

    Raises:
        CorruptFrameError: something else than a frame or an end record; frames before it have been given.
    """
    step = _READ_BYTES
    while begin < end:
        content = memoryview(file.read(begin, min(begin + step, end)))
        at = begin
        for frame in scan(content, 0, begin):
            yield frame, content[frame.payload_begin - begin : frame.end - begin]
            at = frame.end
        if at > begin:
            begin, step = at, _READ_BYTES
        elif begin + len(content) >= end or len(content) < step:
            return
        else:
            step *= 4
