"""Messages between a receiver and the process that answers questions about tables: each with its length before it."""

from __future__ import annotations

import struct
from typing import IO

_LENGTH = struct.Struct(">I")


def write(stream: IO[bytes], content: bytes) -> None:
    """Write one message."""
    stream.write(_LENGTH.pack(len(content)))
    stream.write(content)  # which may be large: it is not copied
    stream.flush()


def read(stream: IO[bytes]) -> bytes | None:
    """The next message; None at the end of the stream."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    content = stream.read(size)
    return content if len(content) == size else None
