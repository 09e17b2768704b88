"""Peers, and the rules that say which tables are replicated to them. The guarantees of ``base`` apply."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from replication.core.definition.evolution import without_properties
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId, FileId
from replication.core.phase import Phase


@dataclass(frozen=True, slots=True)
class Peer:
    """A cluster that this one sends to, as defined by ``definecluster``."""

    name: str
    zookeepers: str  # host:port[,host:port]/root
    cluster: ClusterId
    paused: bool = False
    rate: int = 0  # bytes per second that all workers together may send to it; 0 for no limit


@dataclass(frozen=True, slots=True)
class Gap:
    """``frames`` written in ``[begin, end)`` that a peer is never sent; microseconds since 1970, 0: unbounded."""

    begin: int
    end: int
    frames: int


@dataclass(frozen=True, slots=True)
class Rule:
    """Replication of a (table, group) to a peer as ``remote_table``; each enablement is a new generation."""

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
    every_group: bool = False  # whether groups that are added to the table later are replicated, too

    def spec_for_peer(self, spec: TableSpec) -> TableSpec:
        """The table's definition that is sent to the peer."""
        return spec if self.with_properties else without_properties(spec)


@dataclass(frozen=True, slots=True)
class PatternRule:
    """Begins rules for later tables, created here or by replication, whose name matches ``pattern`` and no exclusion.

    ``groups`` names the groups to replicate; empty for all groups.
    """

    peer: str
    pattern: str
    excluded: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    with_properties: bool = True


class Rules(Protocol):
    """Peers and the rules for them."""

    def define(self, peer: Peer, term: int) -> None:
        """Add a peer; PeerExistsError when the name is taken."""

    def delete(self, name: str, term: int) -> None:
        """Remove a peer, its rules and statuses; UnknownPeerError."""

    def set_address(self, name: str, zookeepers: str, term: int) -> None:
        """Change the address of a peer's ZooKeeper."""

    def set_paused(self, name: str, paused: bool, term: int) -> None:
        """Stop or resume assigning work for a peer."""

    def set_rate(self, name: str, rate: int, term: int) -> None:
        """Limit the bytes per second that all workers together send to a peer; 0 for no limit."""

    def peers(self) -> list[Peer]:
        """All peers, by name."""

    def generation(self) -> int:
        """The generation of the newest rule ever begun. Rules up to it that are not in force have ended."""

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
        """Start replicating groups of a table. Rules already in force keep their begin and phase.

        ``with_properties`` applies to all the table's rules for the peer; None keeps the present value, True at first.

        With ``every_group`` the other groups are replicated, too, also those that are added later, from their first
        frame on. Their rules begin in the transaction that adds the group. Disabling any group ends this.

        The statuses for the retained files are created in the same transaction. ``required_from`` is the next sequence
        of each stream, so only frames written from now on are sent. With ``bootstrap`` new rules are BOOTSTRAPPING:
        older rows are required too, and a bootstrap sends them.
        """

    def enable_all(
        self,
        peer: str,
        groups: Mapping[UUID, Collection[str]],
        term: int,
        *,
        bootstrap: bool = False,
        with_properties: bool = True,
    ) -> int:
        """Start replicating groups of many tables under their own names, as ``enable`` does; in one step.

        A table of which all groups begin is enabled with ``every_group``. Rules already in force stay as they are, and
        tables that are dropped are left out. ``with_properties`` is for tables without rules. Returns how many began.
        """

    def unsent(self, peer: str) -> list[TableSpec]:
        """Tables of which a group has no rule for a peer, by name."""

    def not_returned(self, origin: ClusterId) -> dict[UUID, set[str]]:
        """Groups of tables that come from a cluster by open routes, and have no rule for the peer of its name."""

    def begin_bootstrap(self, peer: str, table: UUID, term: int) -> list[Rule]:
        """Begin the rules of a table again, from now on, as BOOTSTRAPPING; rules in that phase stay as they are.

        Raises:
            RequestError: the table is not replicated to that peer.
        """

    def end_bootstrap(self, peer: str, table: UUID, generation: int, term: int) -> list[Rule]:
        """Make BOOTSTRAPPING rules up to ``generation`` LIVE, once the peer has adopted the bootstrap.

        Rules that began again since stay as they are. Ending twice has no effect. Returns the table's LIVE rules.
        """

    def disable(self, peer: str, table: UUID, groups: Sequence[str], term: int) -> None:
        """End the rules. Enabling again begins a new generation, with the frames in between as its gap."""

    def add_pattern_rule(self, pattern_rule: PatternRule, term: int) -> None:
        """Begin rules for every later table that matches; replaces the peer's pattern rule of the same pattern.

        Existing tables and existing rules stay as they are.
        """

    def end_pattern_rule(self, peer: str, pattern: str, term: int) -> bool:
        """Remove a pattern rule; rules that it began stay. Return whether it existed."""

    def pattern_rules(self) -> list[PatternRule]:
        """Every pattern rule, by peer and pattern."""

    def end_of_dropped(self, term: int) -> list[Rule]:
        """End the rules of tables that were dropped here once the peer has all of their frames; return those rules.

        Those that need a bootstrap end, too: nothing is sent before one, and none can be begun any more. Only when
        closed time is ten seconds past the drop: earlier, the last frames may not be registered yet.
        """

    def all(self) -> list[Rule]:
        """Rules in force."""

    def to(self, peer: str) -> tuple[Rule, ...]:
        """Those for one peer. While none changes, it is the same object."""

    def ended(self, cluster: ClusterId) -> list[tuple[UUID, str, int]]:
        """Each (table, group) whose rule for a cluster has ended, with the generation of the last such rule."""
