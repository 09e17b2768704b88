"""Decides which frames are sent to a peer, from a frame's header and provenance alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from uuid import UUID

from replication.core.frame import FrameView
from replication.core.ids import NIL_UUID, ClusterId
from replication.ledger.base import Phase, Rule


class FrameDecision(Enum):
    """What to do with a frame."""

    SEND = auto()
    SKIP = auto()  # not for the peer; counts as sent
    WITHHOLD = auto()  # the peer refuses its table now; counts as needed


@dataclass(frozen=True)
class FrameFilter:
    """The rules of one peer, and the tables it refuses for now."""

    peer: ClusterId
    rules: dict[tuple[UUID, str], Rule]
    withheld: dict[UUID, str] = field(default_factory=dict)  # with the reason
    generation: int = 0  # of the newest rule

    @staticmethod
    def of(peer: ClusterId, rules: Iterable[Rule]) -> FrameFilter:
        """Return the filter of one peer's rules, with no table withheld."""
        by_group = {(rule.table, rule.group): rule for rule in rules}
        return FrameFilter(peer, by_group, generation=max((rule.generation for rule in by_group.values()), default=0))

    def sends(self, table: UUID) -> bool:
        """Whether a rule sends the table to the peer."""
        return any(key[0] == table for key in self.rules)

    def without(self, table: UUID, reason: str) -> FrameFilter:
        """Return a copy with one more table withheld."""
        return replace(self, withheld={**self.withheld, table: reason})

    def passing_over(self, table: UUID) -> FrameFilter:
        """Return a copy without the rules of one table."""
        kept = {key: rule for key, rule in self.rules.items() if key[0] != table}
        return replace(self, rules=kept)

    @property
    def error(self) -> str:
        """Why a table is withheld; empty when none is."""
        return next(iter(self.withheld.values()), "")

    def judge(self, frame: FrameView) -> FrameDecision:
        """Decide about one frame.

        A frame is not sent to a cluster in its provenance (rule 4). A control frame is sent to every other peer. A
        data frame is sent when a rule has its table and group, from the first sequence that the rule requires. When
        a frame that the rule required is lost, the table needs a bootstrap and its frames are skipped.
        """
        header = frame.header
        if self.peer in frame.provenance:
            return FrameDecision.SKIP
        if header.table == NIL_UUID:
            return FrameDecision.SEND
        rule = self.rules.get((header.table, header.group))
        if (
            rule is None
            or rule.phase is Phase.NEEDS_BOOTSTRAP
            or header.sequence < rule.required_from.get(header.wal, 0)
        ):
            return FrameDecision.SKIP
        return FrameDecision.WITHHOLD if header.table in self.withheld else FrameDecision.SEND
