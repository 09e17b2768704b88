"""Edits of bytes: what a hostile sender, a damaged disk or another version may make of a true message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

#: Numbers at which arithmetic and storage break.
EDGES = (0, 1, 2, 127, 128, 255, 256, 65535, 65536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
WIDE = (1 << 62, (1 << 62) - 1, 1 << 63, (1 << 63) - 1, (1 << 64) - 1)
#: Texts at which readers of JSON and of names break.
TOKENS = (
    *(b"null", b"true", b"-1", b"0.5", b"1e999", b"-1e999", b"NaN", b'""', b"[]", b"{}", b"{", b"]", b'"', b",", b":"),
    *(b"\0", b"\xff\xfe", b"..", b"/", b"|", b"../../etc/x", b"\\ud800", b"%s", b'"a"', b"18446744073709551616"),
    *(b"9" * 30, b"9" * 5000, b"[" * 3000, b'{"a":' * 3000, b"list<" * 2000),
)
KINDS = ("flip", "byte", "number", "number_be", "cut", "repeat", "token", "splice", "digits", "swap")


@dataclass(frozen=True, slots=True)
class Edit:
    """One change: which, where (taken modulo the length), and a number that it depends on."""

    kind: str
    at: int
    value: int

    def __call__(self, raw: bytes, others: Sequence[bytes]) -> bytes:
        """The changed bytes; ``others`` are other examples."""
        at = self.at % (len(raw) + 1)
        return _DO[self.kind](raw, at, self.value, others)


def random_edits(random: Random) -> list[Edit]:
    """One to four of them."""
    count = 1 + min(int(random.expovariate(1.2)), 3)
    return [Edit(random.choice(KINDS), random.getrandbits(32), random.getrandbits(16)) for _ in range(count)]


def edited(raw: bytes, edits: Sequence[Edit], others: Sequence[bytes]) -> bytes:
    """``raw`` after all ``edits``."""
    for edit in edits:
        raw = edit(raw, others)
    return raw


def _flip(raw: bytes, at: int, value: int, _: Sequence[bytes]) -> bytes:
    return raw[:at] + bytes(byte ^ 1 << value % 8 for byte in raw[at : at + 1]) + raw[at + 1 :]


def _byte(raw: bytes, at: int, value: int, _: Sequence[bytes]) -> bytes:
    return raw[:at] + bytes((value & 255,)) + raw[at + 1 :]


def _number(raw: bytes, at: int, value: int, order: str) -> bytes:
    width = (1, 2, 4, 8)[value % 4]
    edges = (*EDGES, *WIDE) if width == 8 else EDGES
    number = edges[value // 4 % len(edges)] % (1 << 8 * width)
    return raw[:at] + number.to_bytes(width, "little" if order == "little" else "big") + raw[at + width :]


def _cut(raw: bytes, at: int, value: int, _: Sequence[bytes]) -> bytes:
    return raw[:at] if value % 8 == 0 else raw[:at] + raw[at + 1 + value % 40 :]


def _repeat(raw: bytes, at: int, value: int, _: Sequence[bytes]) -> bytes:
    size = 1 + value % 80
    return raw[: at + size] + raw[at : at + size] * (1 + value // 80 % 3) + raw[at + size :]


def _token(raw: bytes, at: int, value: int, _: Sequence[bytes]) -> bytes:
    token = TOKENS[value % len(TOKENS)]
    over = len(token) if value // len(TOKENS) % 2 and len(token) < 100 else 0
    return raw[:at] + token + raw[at + over :]


def _splice(raw: bytes, at: int, value: int, others: Sequence[bytes]) -> bytes:
    other = others[value % len(others)] if others else raw
    begin = value * 7919 % (len(other) + 1)
    return raw[:at] + other[begin : begin + 1 + value % 300] + raw[at:]


def _digits(raw: bytes, at: int, value: int, _: Sequence[bytes]) -> bytes:
    """Another text in place of the number or word that begins at or after ``at``."""
    word = b"0123456789abcdefghijklmnopqrstuvwxyz.-"
    while at < len(raw) and raw[at] not in word:
        at += 1
    end = at
    while end < len(raw) and raw[end] in word:
        end += 1
    return raw[:at] + TOKENS[value % len(TOKENS)] + raw[end:]


def _swap(raw: bytes, at: int, value: int, _: Sequence[bytes]) -> bytes:
    size = 1 + value % 24
    return raw[:at] + raw[at + size : at + 2 * size] + raw[at : at + size] + raw[at + 2 * size :]


_DO: dict[str, Callable[[bytes, int, int, Sequence[bytes]], bytes]] = {
    "flip": _flip,
    "byte": _byte,
    "number": lambda raw, at, value, _: _number(raw, at, value, "little"),
    "number_be": lambda raw, at, value, _: _number(raw, at, value, "big"),
    "cut": _cut,
    "repeat": _repeat,
    "token": _token,
    "splice": _splice,
    "digits": _digits,
    "swap": _swap,
}
