"""Which frames go to a peer: decided from a frame's header and provenance alone. Pure."""

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
    SKIP = auto()  # it is not meant for the peer; counts as sent
    WITHHOLD = auto()  # the peer does not take its table now; counts as needed


@dataclass(frozen=True)
class FrameFilter:
    """The rules of one peer, and the tables it refuses for now."""

    peer: ClusterId
    rules: dict[tuple[UUID, str], Rule]
    withheld: dict[UUID, str] = field(default_factory=dict)  # with the reason
    generation: int = 0  # of the newest rule

    @staticmethod
    def of(peer: ClusterId, rules: Iterable[Rule]) -> FrameFilter:
        """Of the rules of one peer."""
        found = {(rule.table, rule.group): rule for rule in rules}
        return FrameFilter(peer, found, generation=max((rule.generation for rule in found.values()), default=0))

    def without(self, table: UUID, reason: str) -> FrameFilter:
        """The same with one more table withheld."""
        return replace(self, withheld={**self.withheld, table: reason})

    def passing_over(self, table: UUID) -> FrameFilter:
        """The same as if one table had no rule."""
        kept = {key: rule for key, rule in self.rules.items() if key[0] != table}
        return replace(self, rules=kept)

    @property
    def trouble(self) -> str:
        """Why a table is withheld; empty when none is."""
        return next(iter(self.withheld.values()), "")

    def judge(self, frame: FrameView) -> FrameDecision:
        """Decide about one frame.

        Nothing goes where it has been (rule 4). What closes time or a role goes to every other peer, whatever the
        rules. The rest goes when a rule wants its table and group, from the first sequence that the rule requires,
        unless something that it required is lost: then the table waits to be bootstrapped.
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
