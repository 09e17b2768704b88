r"""Convert bytes to text and back exactly: printable ASCII unchanged, ``\\`` for a backslash, ``\xNN`` for other bytes.

The HBase shell shows keys in the same way. In text from users any other character stands for its UTF-8 bytes.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa

from replication.errors import FormatError

_BACKSLASH = ord("\\")
_SPOILED = re.compile(rb"\\(?!x[0-9a-fA-F]{2})")


def _texts() -> list[bytes]:
    plain = {byte: bytes([byte]) for byte in range(0x20, 0x7F)} | {_BACKSLASH: b"\\\\"}
    return [plain.get(byte, b"\\x%02x" % byte) for byte in range(256)]


_TEXT = np.array([list(text.ljust(4, b"\0")) for text in _texts()], np.uint8)
_WIDTH = np.array([len(text) for text in _texts()], np.int64)
_USED = np.arange(4) < _WIDTH[:, None]


def escaped(value: bytes) -> str:
    """Return ``value`` as text."""
    raw = np.frombuffer(value, np.uint8)
    return _TEXT[raw][_USED[raw]].tobytes().decode("ascii")


def unescaped(text: str | bytes) -> bytes:
    """Return the bytes of ``text``, which may also be given as UTF-8.

    Raises:
        FormatError: a backslash is followed by neither a backslash nor ``xNN``.
    """
    raw = text.encode() if isinstance(text, str) else text
    if _BACKSLASH not in raw:
        return raw
    if spoiled := _SPOILED.search(raw.replace(b"\\\\", b"..")):
        odd = raw[spoiled.start() : spoiled.start() + 4].decode(errors="replace")
        raise FormatError(f"{odd!r} is not an escaped byte", r"Write a byte as \xNN and a backslash as \\")
    return raw.decode("unicode_escape").encode("latin-1")


def escaped_column(column: pa.Array) -> pa.Array:
    """Convert a binary column of any width to text."""
    if not len(column):
        return pa.array([], pa.large_string())
    column = column.cast(pa.large_binary())
    offsets = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
    content = column.buffers()[2]
    raw = np.frombuffer(content or b"", np.uint8)[offsets[0] : offsets[-1]]
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(_WIDTH[raw])])[offsets - offsets[0]]
    text = pa.py_buffer(_TEXT[raw][_USED[raw]].tobytes())
    valid = column.is_valid().buffers()[1]
    return pa.LargeStringArray.from_buffers(len(column), pa.py_buffer(ends.tobytes()), text, valid)


def unescaped_column(column: pa.Array, name: str, first_row: int) -> pa.Array:
    """Convert a column of text, or of its UTF-8 bytes, to binary.

    ``name``, and the number of the first row, are for errors.

    Raises:
        FormatError: as ``unescaped``; the message has the row and column.
    """
    import pyarrow.compute as pc  # deferred: loading it takes longer than printing rows, which does not need it

    column = column.cast(pa.binary())
    if not pc.any(pc.match_substring(column, "\\")).as_py():
        return column
    values: list[bytes | None] = []
    for at, value in enumerate(column.to_pylist()):
        try:
            values.append(None if value is None else unescaped(value))
        except FormatError as error:
            raise FormatError(f"row {first_row + at}, column {name!r}: {error.what}", error.hint) from None
    return pa.array(values, pa.binary())
