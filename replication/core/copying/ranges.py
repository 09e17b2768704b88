"""Ranges of a large file, and the digest of a file: BLAKE3, over its ranges' digests where it has several.

So ranges are copied and checked in any order and in parallel, and a damaged one alone is copied again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3


@dataclass(frozen=True, slots=True)
class Range:
    """The bytes ``[begin, end)`` of a file, its ``index``-th range."""

    index: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        """In bytes."""
        return self.end - self.begin


def ranges_of(size: int, range_bytes: int) -> list[Range]:
    """The ranges that tile a file of ``size`` bytes; one, maybe empty, for a file not larger than ``range_bytes``."""
    assert size >= 0 < range_bytes
    begins = range(0, size, range_bytes) if size else (0,)
    return [Range(index, begin, min(begin + range_bytes, size)) for index, begin in enumerate(begins)]


def file_digest(digests: Sequence[bytes]) -> str:
    """The digest of a file in hexadecimal, from the BLAKE3 digest of each of its ranges in order.

    With one range it is the digest of the content, as ``b3sum`` prints it; with more, that of their number and digests.
    """
    if len(digests) == 1:
        return digests[0].hex()
    tree = blake3(b"ranges" + len(digests).to_bytes(8, "big"))
    for digest in digests:
        tree.update(digest)
    return tree.hexdigest()
