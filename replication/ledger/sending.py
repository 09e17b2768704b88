"""What those who send tell of it for people to see, and the samples that forecasts are made from.

Facts like the others: the newest telling of one teller replaces its older ones, and nothing is decided by them but
which bytes a table that is held keeps to itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one teller (a host's ``tail`` or ``chunks`` thread, the master's ``plan``) fares with a peer.

    ``failures`` in a row, ``total`` ever, both 0 and more; the next try is at ``next_at``. Times are microseconds
    since 1970; ``next_at`` is 0 when nothing is waited for, or when somebody must act first.
    """

    peer: str
    host: str
    work: str
    failures: int
    total: int
    next_at: int
    at: int
    error: str


@dataclass(frozen=True, slots=True)
class HeldTable:
    """A table that a host withholds from a peer, since when (microseconds since 1970), and why."""

    peer: str
    table: UUID
    host: str
    reason: str
    since: int


class Sending(Protocol):
    """Tellings of those who send."""

    def attempted(self, peer: str, host: str, work: str, failures: int, next_at: int, at: int, error: str) -> None:
        """Replace what this teller said before; ``failures`` 0 means that it goes well again. Unknown peers: no-op."""

    def attempts(self) -> list[Attempt]:
        """The last of each teller, by peer, host and work."""

    def set_held(self, peer: str, host: str, held: Mapping[UUID, str], at: int) -> None:
        """The tables that a host withholds from a peer now, with the reason; replaces those it withheld before."""

    def held(self) -> list[HeldTable]:
        """Every table withheld, by peer and table."""

    def sample(self, gauge: str, at: int, value: int, keep_since: int = 0) -> None:
        """Note a gauge's value at a time, and forget its samples older than ``keep_since``."""

    def samples(self, gauge: str) -> Sequence[tuple[int, int]]:
        """(time, value) of a gauge, oldest first."""
