"""Reports about sending, for ``status``: attempts per peer, held tables, and the samples behind forecasts.

They are facts: each reporter's newest report replaces its older ones. Only held tables affect decisions: they decide
which bytes are withheld from a peer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Attempt:
    """The latest attempt of one reporter (a host's ``tail`` or ``chunks`` thread, the master's ``plan``) at a peer.

    ``failures`` counts failures in a row, ``total`` all failures. ``next_at`` is the time of the next attempt; 0 when
    none is due, or when a person must act first. Times are microseconds since 1970.
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
    """A table that a host withholds from a peer, with the reason, since ``since`` (microseconds since 1970)."""

    peer: str
    table: UUID
    host: str
    reason: str
    since: int


class Sending(Protocol):
    """Attempts, held tables and samples."""

    def attempted(self, peer: str, host: str, work: str, failures: int, next_at: int, at: int, error: str) -> None:
        """Replace this reporter's last attempt; ``failures`` is 0 after a success. No effect for unknown peers."""

    def attempts(self) -> list[Attempt]:
        """Each reporter's last attempt, by peer, host and work."""

    def set_held(self, peer: str, host: str, held: Mapping[UUID, str], at: int) -> None:
        """Replace the tables, with reasons, that a host withholds from a peer."""

    def held(self) -> list[HeldTable]:
        """Every withheld table, by peer and table."""

    def sample(self, gauge: str, at: int, value: int, keep_since: int = 0) -> None:
        """Store a gauge's value at a time, and delete its samples older than ``keep_since``."""

    def samples(self, gauge: str) -> Sequence[tuple[int, int]]:
        """(time, value) of a gauge, oldest first."""
