"""Drills in the ledger: those that run, and a bounded history. Part of ``base``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

#: Iceberg tags, and the namespace of scratch tables, of a drill: this and its id.
DRILL_PREFIX = "walship_drill_"
HISTORY_MAX = 400
#: A drill begun so much later than now, in microseconds, does not count: the clock was wrong then.
AHEAD_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Drill:
    """One drill; times are microseconds since 1970, 0 for never.

    Attributes:
        id: digits, small letters and ``_``.
        host: the slot of the host it runs on, which has its ``report``, a file.
        owner: its process.
        until: it ends by then; what is left of it afterwards is removed.
        instant: the commit time up to which its fork has everything.
        passed: whether every check and probe passed.
        why: why it did not pass.
        rpo_s: how old the instant was when it was forked; None also if commit times were ahead of the clock here.
        rto_s: how long it took until the fork had answered.
        kept_until: the instant is tagged until then.
    """

    id: str
    host: str
    owner: str
    begun: int
    until: int
    instant: int = 0
    ended: int = 0
    passed: bool = False
    why: str = ""
    rpo_s: float | None = None
    rto_s: float | None = None
    kept_until: int = 0
    report: str = ""
    scheduled: bool = False

    @property
    def tag(self) -> str:
        """The tag of its snapshots, and the namespace of its scratch tables."""
        return f"{DRILL_PREFIX}{self.id}"

    def is_open(self, now: int, is_gone: Callable[[str], bool]) -> bool:
        """Whether it runs: it has not ended, its process lives as far as is known, and its time is not up."""
        return not self.ended and self.until > now and not is_gone(self.owner)

    def holds_tags(self, now: int, is_gone: Callable[[str], bool]) -> bool:
        """Whether its tags are still needed."""
        return self.kept_until > now if self.ended else self.is_open(now, is_gone)


class Drills(Protocol):
    """The drills of a cluster."""

    def put(self, drill: Drill) -> None:
        """Store a drill, in place of what was stored under its id. The newest ``HISTORY_MAX`` are kept."""

    def all(self) -> list[Drill]:
        """Every stored drill, newest first."""
