"""What a comparison of a table at two clusters found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

DIFFERENCES_MAX = 1000


@dataclass(frozen=True, slots=True)
class Holding:
    """One cluster's content of a table: its name, row count and content hash (32 hexadecimal digits).

    ``held`` says why the table could not move on there, "" when it could.
    """

    cluster: str
    rows: int
    content: str
    held: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """One key and why it is listed: ``only in east``, ``only in west`` or ``different``, then in which columns."""

    key: dict[str, Any]
    what: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a comparison found.

    Attributes:
        upto: the common replicated time of the readings, in microseconds since 1970. 0 when a side had folded past the
            common time, so that each was read as it was at that moment.
        differing: how many keys differ.
        moving: how many keys were still being written, and are not judged.
        differences: at most ``DIFFERENCES_MAX`` of the keys that differ.
    """

    table: str
    left: Holding
    right: Holding
    upto: int
    differing: int = 0
    moving: int = 0
    rounds: int = 1
    differences: tuple[Difference, ...] = field(default=())

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return self.differing == 0

    @property
    def held(self) -> str:
        """Where and why the table was held while it was compared; "" when it was not."""
        return "; ".join(f"at {side.cluster}: {side.held}" for side in (self.left, self.right) if side.held)

    @property
    def identical(self) -> bool:
        """Whether the two readings themselves were equal, row count and content hash."""
        return (self.left.rows, self.left.content) == (self.right.rows, self.right.content)
