"""Interval sets, and the sequences of a stream that a cluster has.

``Ranges`` is the project's interval set: byte ranges of files, sequences of streams. ``Interval`` adds the hash chain:
the hash before its first frame and the hash of its last one. Adjoining intervals must agree on the hash between them.
Pure; all ranges are half-open ``[begin, end)``.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

_K = TypeVar("_K")
Span = tuple[int, int]
#: The hash of sequences that, after a ledger was lost, are known only from their rows.
UNKNOWN_HASH = b""
_FEW_CHARS = 4096


@dataclass(frozen=True, slots=True)
class Ranges:
    """An immutable set of integers, as disjoint, ascending, non-adjoining half-open spans.

    Build it with ``Ranges.of`` (any spans, any order) or from the empty ``Ranges()``. Equal sets compare equal.
    """

    spans: tuple[Span, ...] = ()

    @staticmethod
    def of(*spans: Span) -> Ranges:
        """Return the union of any spans; empty spans are ignored."""
        return Ranges.union_of(spans)

    @staticmethod
    def union_of(spans: Iterable[Span]) -> Ranges:
        """Return the union of an iterable of spans, as ``of``."""
        merged: list[Span] = []
        for begin, end in sorted(span for span in spans if span[0] < span[1]):
            if merged and begin <= merged[-1][1]:
                if end > merged[-1][1]:
                    merged[-1] = (merged[-1][0], end)
            else:
                merged.append((begin, end))
        return Ranges(tuple(merged))

    def add(self, begin: int, end: int) -> Ranges:
        """Return the set with ``[begin, end)`` added; adjoining spans become one."""
        if begin >= end:
            return self
        spans = self.spans
        low = bisect_left(spans, begin, key=lambda span: span[1])
        high = bisect_right(spans, end, key=lambda span: span[0])
        if low < high:
            begin, end = min(begin, spans[low][0]), max(end, spans[high - 1][1])
        return Ranges((*spans[:low], (begin, end), *spans[high:]))

    @staticmethod
    def by_key(spans: Iterable[tuple[_K, Span]]) -> dict[_K, Ranges]:
        """Return the union of each key's spans."""
        of_keys: dict[_K, list[Span]] = {}
        for key, span in spans:
            of_keys.setdefault(key, []).append(span)
        return {key: Ranges.union_of(of_key) for key, of_key in of_keys.items()}

    def union(self, other: Ranges) -> Ranges:
        """Return the integers in either set."""
        if not other.spans or self == other:
            return self
        return Ranges.union_of((*self.spans, *other.spans)) if self.spans else other

    def subtract(self, other: Ranges) -> Ranges:
        """Return the integers in this set that are not in ``other``."""
        if not other.spans:
            return self
        left: list[Span] = []
        cuts = other.spans
        at = 0
        for begin, end in self.spans:
            while at < len(cuts) and cuts[at][1] <= begin:
                at += 1
            cut = at
            while cut < len(cuts) and cuts[cut][0] < end:
                if begin < cuts[cut][0]:
                    left.append((begin, cuts[cut][0]))
                begin = max(begin, cuts[cut][1])
                cut += 1
            if begin < end:
                left.append((begin, end))
        return Ranges(tuple(left))

    def intersect(self, other: Ranges) -> Ranges:
        """Return the integers in both sets."""
        return self.subtract(self.subtract(other))

    def within(self, begin: int, end: int) -> Ranges:
        """Return the part of this set inside ``[begin, end)``."""
        return Ranges(tuple((max(b, begin), min(e, end)) for b, e in self.spans if b < end and e > begin))

    def missing(self, begin: int, end: int) -> Ranges:
        """Return the part of ``[begin, end)`` that is not in this set."""
        return Ranges.of((begin, end)).subtract(self)

    def contains(self, begin: int, end: int | None = None) -> bool:
        """Return whether all of ``[begin, end)`` is in the set; without ``end``, whether ``begin`` is."""
        end = begin + 1 if end is None else end
        return begin >= end or self.prefix(begin) >= end

    def prefix(self, begin: int) -> int:
        """Return the first integer at or after ``begin`` that is not in the set: the end of the contiguous part."""
        at = bisect_right(self.spans, begin, key=lambda span: span[0]) - 1
        return max(begin, self.spans[at][1]) if at >= 0 else begin

    def first_gap(self, begin: int, end: int) -> Span | None:
        """Return the first missing span of ``[begin, end)``, or None when nothing is missing."""
        start = self.prefix(begin)
        if start >= end:
            return None
        at = bisect_right(self.spans, start, key=lambda span: span[0])
        return start, min(end, self.spans[at][0]) if at < len(self.spans) else end

    @property
    def end(self) -> int:
        """One past the highest integer; 0 when empty."""
        return self.spans[-1][1] if self.spans else 0

    @property
    def total(self) -> int:
        """The number of integers in the set."""
        return sum(end - begin for begin, end in self.spans)

    def __bool__(self) -> bool:
        return bool(self.spans)

    def __iter__(self) -> Iterator[Span]:
        """The spans, ascending."""
        return iter(self.spans)

    def __str__(self) -> str:
        """``[0, 5) [7, 9)``, or ``nothing``."""
        return " ".join(f"[{begin}, {end})" for begin, end in self.spans) or "nothing"

    def to_json(self) -> str:
        """``[[0,5],[7,9]]``."""
        return json.dumps(self.spans, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Ranges:
        """Read the JSON form."""
        return (_few if len(text) < _FEW_CHARS else _many)(text)


def _read(text: str) -> Ranges:
    return Ranges.union_of((int(begin), int(end)) for begin, end in json.loads(text))


_few, _many = (lru_cache(maxsize)(_read) for maxsize in (4096, 16))  # a peer may report a file in very many pieces


@dataclass(frozen=True, slots=True)
class Interval:
    """Sequences ``[begin, end)`` of one stream: the hash before the first frame, and the hash of the last."""

    begin: int
    end: int
    previous: bytes
    last: bytes

    def within(self, allowed: Ranges) -> list[Interval]:
        """Return the parts inside ``allowed``; hashes inside of an interval are not known."""
        return [
            Interval(
                begin,
                end,
                self.previous if begin == self.begin else UNKNOWN_HASH,
                self.last if end == self.end else UNKNOWN_HASH,
            )
            for begin, end in Ranges.of((self.begin, self.end)).intersect(allowed)
        ]

    def without(self, known: Ranges) -> list[Interval]:
        """Return the parts outside ``known``, as ``within``."""
        return self.within(Ranges.of((self.begin, self.end)).subtract(known))


def conflict(one: Interval, two: Interval) -> int | None:
    """Return the sequence at which the hashes of two intervals contradict each other, or None.

    Hashes are compared where the intervals adjoin, and where they begin or end together.
    """
    if one.begin == two.begin and differ(one.previous, two.previous):
        return one.begin
    if one.end == two.end and differ(one.last, two.last):
        return one.end - 1
    if one.end == two.begin and differ(one.last, two.previous):
        return two.begin
    if two.end == one.begin and differ(two.last, one.previous):
        return one.begin
    return None


def differ(one: bytes, two: bytes) -> bool:
    """Return whether two hashes contradict each other; UNKNOWN_HASH contradicts none."""
    return one != two and UNKNOWN_HASH not in (one, two)
