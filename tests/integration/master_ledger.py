"""As much of a ledger as a master uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import uuid4

from replication.core.coverage import Ranges
from replication.core.ids import NIL_UUID, ClusterId, FileId
from replication.core.shipping.planner import FileView
from replication.core.shipping.retention import RetentionPolicy
from replication.errors import RequestError, StaleTermError
from replication.ledger.base import Attempt, FileRow, Peer, Rule

EAST, WEST, SOUTH = (ClusterId(name, uuid4()) for name in ("east", "west", "south"))


@dataclass
class Books:
    """As much of a ledger as a master uses, with hooks to have something happen at the worst moment."""

    cluster: ClusterId = EAST
    term: int = 0
    defined: list[Peer] = field(default_factory=list)
    rows: list[FileRow] = field(default_factory=list)
    lacking: dict[tuple[FileId, str], Ranges] = field(default_factory=dict)
    held: str = ""
    told: Sending = field(default_factory=lambda: Sending())
    after_raise: Callable[[], None] = lambda: None
    on_rules: Callable[[], None] = lambda: None
    assigned: Callable[[], dict[str, int]] = dict

    @property
    def terms(self) -> Books:
        return self

    @property
    def rules(self) -> Rules:
        return Rules(self)

    @property
    def files(self) -> Files:
        return Files(self)

    @property
    def sending(self) -> Sending:
        return self.told

    def current(self) -> int:
        return self.term

    def raise_to_next(self) -> int:
        self.term += 1
        self.after_raise()
        return self.term

    def assign(self, host: str, term: int) -> None:
        if term != self.term:
            raise StaleTermError(f"term {term} is over")


@dataclass
class Sending:
    """What ``status`` would show of why a peer gets nothing."""

    reasons: dict[str, str] = field(default_factory=dict)

    def attempted(self, peer: str, host: str, work: str, failures: int, next_at: int, at: int, error: str) -> None:
        assert work == "plan" and bool(failures) == bool(error)
        self.reasons[peer] = error

    def attempts(self) -> list[Attempt]:
        return [Attempt(peer, "", "plan", int(bool(why)), 1, 0, 0, why) for peer, why in self.reasons.items()]


@dataclass
class Rules:
    books: Books

    def all(self) -> list[Rule]:
        hook, self.books.on_rules = self.books.on_rules, lambda: None
        hook()
        return [Rule(peer.name, NIL_UUID, "g", "t", 1) for peer in self.books.defined]

    def peers(self) -> list[Peer]:
        return self.books.defined

    def end_of_dropped(self, term: int) -> list[Rule]:
        return []


@dataclass
class Files:
    books: Books

    def all(self, host: str | None = None, *, open_only: bool = False) -> list[FileRow]:
        return [row for row in self.books.rows if host in (None, row.host)]

    def failing(self) -> frozenset[str]:
        return frozenset()

    def upcoming(self, host: str) -> int:
        return max((row.file.number + 1 for row in self.books.rows if row.host == host), default=0)

    def lacking(self) -> list[FileView]:
        found: dict[FileId, dict[str, Ranges]] = {}
        for (file, peer), lacks in self.books.lacking.items():
            found.setdefault(file, {})[peer] = lacks
        return [
            FileView(row.file, row.host, row.closed, row.needed, found[row.file])
            for row in self.books.rows
            if row.file in found
        ]

    def retirable(self, host: str, policy: RetentionPolicy) -> list[FileRow]:
        return [row for row in self.books.rows if row.host == host and row.closed]

    def retire(self, file: FileId, term: int, policy: RetentionPolicy) -> None:
        if term != self.books.term:
            raise StaleTermError(f"term {term} is over")
        if self.books.held:
            raise RequestError(self.books.held)
        self.books.rows = [row for row in self.books.rows if row.file != file]
