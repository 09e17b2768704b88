"""Peers, and the rules that say which tables go to them. Part of ``base``, whose rules hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from replication.core.definition.evolution import without_properties
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId, FileId
from replication.core.phase import Phase


@dataclass(frozen=True, slots=True)
class Peer:
    """A cluster this one sends to, as defined by ``definecluster``."""

    name: str
    zookeepers: str  # host:port[,host:port]/root
    cluster: ClusterId
    paused: bool = False
    rate: int = 0  # bytes per second that all workers together may send it; 0 for no limit


@dataclass(frozen=True, slots=True)
class Gap:
    """``frames`` written between two moments (microseconds since 1970; 0: ever) that a rule's peer is never sent."""

    begin: int
    end: int
    frames: int


@dataclass(frozen=True, slots=True)
class Rule:
    """One enablement: (table, group) goes to a peer as ``remote_table``; each enablement is a new generation."""

    peer: str
    table: UUID
    group: str
    remote_table: str
    generation: int
    required_from: Mapping[FileId, int] = field(
        default_factory=dict
    )  # first sequence required, per retained WAL of the table's streams
    phase: Phase = Phase.LIVE
    since: int = 0  # when it began, in microseconds since 1970
    gaps: tuple[Gap, ...] = ()
    with_properties: bool = True  # whether the peer's table takes this one's properties
    every_group: bool = False  # whether groups that are added to the table later go there, too

    def spec_for_peer(self, spec: TableSpec) -> TableSpec:
        """The table's definition as the peer is told it."""
        return spec if self.with_properties else without_properties(spec)


@dataclass(frozen=True, slots=True)
class PatternRule:
    """A rule for tables that are made, or come from other clusters, later: those of a pattern, less the excluded ones.

    ``groups`` are the names of those that go; empty for all of each table.
    """

    peer: str
    pattern: str
    excluded: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    with_properties: bool = True


class Rules(Protocol):
    """Peers and what goes to them."""

    def define(self, peer: Peer, term: int) -> None:
        """Add a peer; PeerExistsError when the name is taken."""

    def delete(self, name: str, term: int) -> None:
        """Remove a peer, its rules and statuses; UnknownPeerError."""

    def set_address(self, name: str, zookeepers: str, term: int) -> None:
        """Say where the same peer's ZooKeeper is now."""

    def set_paused(self, name: str, paused: bool, term: int) -> None:
        """Stop or go on assigning work for a peer."""

    def set_rate(self, name: str, rate: int, term: int) -> None:
        """Have all workers together send a peer at most ``rate`` bytes per second; 0 for no limit."""

    def peers(self) -> list[Peer]:
        """All peers, by name."""

    def generation(self) -> int:
        """That of the newest rule there ever was: a rule up to it that is not there any more has ended."""

    def enable(
        self,
        peer: str,
        table: UUID,
        groups: Sequence[str],
        remote_table: str,
        term: int,
        *,
        bootstrap: bool = False,
        with_properties: bool | None = None,
        every_group: bool = False,
    ) -> list[Rule]:
        """Start replicating groups; rules already in force stay as they are, but for what is said here.

        ``with_properties`` is of all the table's rules for the peer; None leaves it as it is, True where there is none.

        With ``every_group`` groups that are added later go there, too, each in the transaction that adds it
        and so with its first frame; until ``disable`` ends any group.

        In the same transaction creates the statuses for the retained files and, per stream of the groups already in
        them, notes the first sequence required_from (the next one), so that only what is written from now on goes. With
        ``bootstrap`` new rules are BOOTSTRAPPING: what lies before is required too, by other means.
        """

    def begin_bootstrap(self, peer: str, table: UUID, term: int) -> list[Rule]:
        """Begin the rules of a table anew, from now on, as BOOTSTRAPPING; those that are stay as they are.

        Raises:
            RequestError: the table does not go to that peer.
        """

    def end_bootstrap(self, peer: str, table: UUID, generation: int, term: int) -> list[Rule]:
        """The peer has adopted what ``generation`` and older ones were bootstrapped with: LIVE; returns those that are.

        Rules that began anew meanwhile stay as they are. Ending twice has no effect.
        """

    def need_bootstrap(self, peer: str, table: UUID, term: int) -> list[Rule]:
        """What a table's rules require can be retained no longer: NEEDS_BOOTSTRAP, which releases every file at once.

        Raises:
            RequestError: the table does not go to that peer.
        """

    def disable(self, peer: str, table: UUID, groups: Sequence[str], term: int) -> None:
        """End the rules; re-enabling is a new generation, whose gap is what was not sent in between."""

    def add_pattern_rule(self, pattern_rule: PatternRule, term: int) -> None:
        """From now on tables that match the pattern begin with rules; replaces the peer's rule of that pattern.

        A table that a rule names already, or that is there, is left as it is.
        """

    def end_pattern_rule(self, peer: str, pattern: str, term: int) -> bool:
        """Have tables to come stay here; rules that were begun stay. Whether there was such a pattern rule."""

    def pattern_rules(self) -> list[PatternRule]:
        """Every pattern rule, by peer and pattern."""

    def settle(self, term: int) -> list[Rule]:
        """End the rules of tables that were dropped here, whose peers have all that was written to them.

        They wait until closed time is ten seconds past the drop: before, what was written last may not be registered.
        """

    def all(self) -> list[Rule]:
        """Rules in force."""

    def ended(self, cluster: ClusterId) -> list[tuple[UUID, str, int]]:
        """What (table, group) went to a cluster and does not now, with the generation that its last rule had."""
