"""Checks quotes in CSV while Arrow reads it: finds quotes that never close, or close before the end of their value.

Arrow reads such a quote without an error, and puts all rows up to the next quote into one value.
"""

from __future__ import annotations

import re
from io import RawIOBase
from typing import BinaryIO

from replication.errors import FormatError

_BOM = b"\xef\xbb\xbf"
_HINT = "Close the quote; inside a quoted value, write a quote twice"
_UTF16 = ("its bytes are UTF-16 and not UTF-8", "Save it as UTF-8")
_NO_TEXT = {
    b"\xff\xfe": _UTF16,
    b"\xfe\xff": _UTF16,
    b"\x1f\x8b": ("its bytes are compressed by gzip", "Unpack it first"),
}


class Quoted(RawIOBase):
    """A file for Arrow to read; ``check`` raises an error for the bytes read so far.

    As in Arrow, a quote counts at the beginning of a value only. An unfinished value is held until the next read. The
    caller closes ``opened``, which is buffered. ``delimiter`` is one ASCII character.
    """

    def __init__(self, opened: BinaryIO, delimiter: str) -> None:
        self._opened = opened
        ends = rf"\r\n{re.escape(delimiter)}".encode()
        quoted = rb'"(?:[^"]++|"")*+"'
        whole = rb"(?:" + quoted + rb'|[^"' + ends + rb"][^" + ends + rb"]*+)?+[" + ends + rb"]"
        self._values = re.compile(rb"(?:" + whole + rb")*+")
        self._ended_early = re.compile(quoted + rb"[^" + ends + rb"]")
        self._whole_last = re.compile(quoted + rb"\Z")
        self._ends = (b"\n", b"\r", delimiter.encode())
        self._rest: bytes | None = None
        self._line = 1
        self._error: FormatError | None = None

    def read(self, size: int = -1) -> bytes:
        """Return the next ``size`` bytes; fewer, or none, at the end."""
        content = self._opened.read(size)
        if self._rest is None and (found := _NO_TEXT.get(content[:2])):
            self._error = FormatError(*found)
            return b""  # Arrow would tell of its first line
        if self._error is None:
            self._scan(content, is_last=size < 0 or len(content) < size)
        return content

    def check(self) -> None:
        """Raise FormatError when a quote read so far is not closed at the end of its value."""
        if self._error is not None:
            raise self._error

    def readable(self) -> bool:
        """Return True: Arrow asks for it."""
        return True

    def _scan(self, content: bytes, *, is_last: bool) -> None:
        text = content.removeprefix(_BOM) if self._rest is None else self._rest + content
        if b'"' in text:
            match = self._values.match(text)
            ended = match.end() if match else 0
        else:
            ended = max(text.rfind(end) for end in self._ends) + 1
        self._line += text.count(b"\n", 0, ended)
        rest = self._rest = text[ended:]
        if not rest.startswith(b'"'):
            return
        if self._ended_early.match(rest):
            self._error = FormatError(f"the quote that opens a value in line {self._line} closes before its end", _HINT)
        elif is_last and not self._whole_last.match(rest):
            self._error = FormatError(f"the quote that opens a value in line {self._line} never closes", _HINT)
