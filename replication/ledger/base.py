"""What a ledger's stores must do, as small protocols over the frozen values of ``records``, re-exported here.

Facts (files, lengths, progress, landings, claims, applied) are monotone joins: any process may report them, in any
order, twice. Decisions (rules, retire) are conditional on the master's term and raise StaleTermError under a newer
one. Every method is one SQL transaction and is durable when it returns. All raise LedgerBusyError when the store
stays locked past its time-out, and CoordinationError when it cannot be reached.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol
from uuid import UUID

from replication.core.definition.schema import SchemaVersion, TableSpec
from replication.core.ids import ClusterId
from replication.core.phase import Phase
from replication.core.roles import RoleState
from replication.core.routes.forks import TermHistory
from replication.ledger.batches import Batches, BatchPart
from replication.ledger.bootstraps import Bootstraps
from replication.ledger.derivations import Derivation, Derivations
from replication.ledger.files import KEEP, FileRecords
from replication.ledger.landing import LandingRecords
from replication.ledger.records import (
    AcknowledgedLoss,
    AheadClock,
    AtRisk,
    Backlog,
    Bootstrap,
    Claim,
    Divergence,
    FileKind,
    FileRow,
    Gap,
    Grown,
    Landed,
    LandedGroup,
    OwnLoss,
    PassedOn,
    PatternRule,
    Peer,
    PeerProgress,
    Pending,
    Quarantined,
    Readable,
    Released,
    ReplayCheckpoint,
    Rule,
    Salvaged,
    WriterRow,
)
from replication.ledger.registration import Registration
from replication.ledger.replay import Replay
from replication.ledger.salvage import Salvage
from replication.ledger.sending import Attempt, HeldTable, Sending
from replication.ledger.time import Time

__all__ = [
    "KEEP",
    "AheadClock",
    "AtRisk",
    "Attempt",
    "Backlog",
    "BatchPart",
    "Batches",
    "Bootstrap",
    "Bootstraps",
    "Claim",
    "Derivation",
    "Derivations",
    "Divergence",
    "FileKind",
    "FileRow",
    "FileRecords",
    "Gap",
    "Salvage",
    "Salvaged",
    "Grown",
    "HeldTable",
    "Landed",
    "LandingRecords",
    "Ledger",
    "Released",
    "OwnLoss",
    "PassedOn",
    "Peer",
    "Pending",
    "Phase",
    "PeerProgress",
    "Quarantined",
    "Readable",
    "LandedGroup",
    "Registration",
    "Replay",
    "ReplayCheckpoint",
    "Rule",
    "Rules",
    "Sending",
    "PatternRule",
    "TableRecords",
    "Terms",
    "Time",
    "AcknowledgedLoss",
    "WriterRow",
]


class Terms(Protocol):
    """The master's term, and what else tells one cluster's past from another's."""

    def current(self) -> int:
        """The highest term raised; 0 at first."""

    def raise_to_next(self) -> int:
        """Raise the term by one for a new master and return it."""

    def assign(self, host: str, term: int) -> None:
        """Note that a host is about to be given work under ``term``.

        Raises:
            StaleTermError: a newer master was elected.
        """

    def assigned(self) -> dict[str, int]:
        """The newest term under which each host was to be given work: what ZooKeeper has of an older one is a copy."""

    def term_history(self) -> TermHistory:
        """The newest terms with the marks drawn for them."""

    def recognise(self, other: ClusterId, term_history: TermHistory) -> str:
        """Remember another cluster's newest term and mark; why it is not the one that was heard of by this name.

        It may be a copy of it, or the one that was copied; "" when nothing speaks against it.
        """

    def role(self) -> RoleState:
        """The newest role that was kept, ACTIVE with epoch 1 at first; ZooKeeper has the one in force."""

    def keep_role(self, state: RoleState) -> None:
        """Remember a role, for when ZooKeeper's data are lost; one with a lower epoch changes nothing."""


class TableRecords(Protocol):
    """Table definitions and schema versions."""

    def create(self, spec: TableSpec) -> None:
        """Add a table and its schema versions; the same uuid again is no change. Rules that stand for it begin with it.

        Raises:
            TableExistsError: the name is taken by another uuid.
        """

    def alter(self, table: UUID, change: Callable[[TableSpec], TableSpec]) -> TableSpec:
        """Replace a table's definition by what ``change`` makes of it, with its schema versions; return that.

        ``change`` is pure; it is called within the transaction, so that nobody else's change is lost. The name stays.

        Raises:
            UnknownTableError: there is no such table, or it was dropped.
            SchemaError: what ``change`` raises; nothing was changed.
        """

    def revision(self) -> int:
        """A number that grows with every ``alter`` that changed something."""

    def drop(self, table: UUID) -> None:
        """Mark dropped. Its rules stay until peers have what they require; see ``Rules.settle``."""

    def get(self, name: str) -> TableSpec:
        """By name; UnknownTableError lists near names."""

    def by_uuid(self, table: UUID) -> TableSpec | None:
        """By uuid, dropped ones included; None when unknown."""

    def told(self, tables: Collection[UUID]) -> dict[UUID, tuple[TableSpec, list[SchemaVersion]]]:
        """As ``by_uuid`` and ``schemas`` of each; unknown ones are left out."""

    def all(self) -> list[TableSpec]:
        """Every table not dropped, by name."""

    def put_schema(self, version: SchemaVersion) -> None:
        """Remember a schema version; idempotent."""

    def schema(self, name: bytes) -> SchemaVersion | None:
        """The version of that hash, or None."""

    def schemas(self, table: UUID) -> list[SchemaVersion]:
        """Every version in use for a table."""


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
        """What a table's rules require can be held no longer: NEEDS_BOOTSTRAP, which lets go of every file at once.

        Raises:
            RequestError: the table does not go to that peer.
        """

    def disable(self, peer: str, table: UUID, groups: Sequence[str], term: int) -> None:
        """End the rules; re-enabling is a new generation, whose gap is what was not sent in between."""

    def stand(self, standing: PatternRule, term: int) -> None:
        """From now on tables that match the pattern begin with rules; replaces the peer's rule of that pattern.

        A table that a rule names already, or that is there, is left as it is.
        """

    def end_pattern_rule(self, peer: str, pattern: str, term: int) -> bool:
        """Have tables to come stay here; rules that were begun stay. Whether there was such a standing rule."""

    def standing(self) -> list[PatternRule]:
        """Every standing rule, by peer and pattern."""

    def settle(self, term: int) -> list[Rule]:
        """End the rules of tables that were dropped here, whose peers have all that was written to them.

        They wait until closed time is ten seconds past the drop: before, what was written last may not be registered.
        """

    def all(self) -> list[Rule]:
        """Rules in force."""

    def ended(self, cluster: ClusterId) -> list[tuple[UUID, str, int]]:
        """What (table, group) went to a cluster and does not now, with the generation that its last rule had."""


class Ledger(Protocol):
    """The whole ledger of one cluster."""

    cluster: ClusterId
    former: tuple[ClusterId, ...]  # what it was called before it was restored

    @property
    def terms(self) -> Terms:
        """The master's term."""

    @property
    def tables(self) -> TableRecords:
        """Table definitions."""

    @property
    def rules(self) -> Rules:
        """Peers and rules."""

    @property
    def files(self) -> FileRecords:
        """Files and what peers have of them."""

    @property
    def registration(self) -> Registration:
        """Durable bytes, registered and claimed."""

    @property
    def landing(self) -> LandingRecords:
        """Coverage, received ranges and routes."""

    @property
    def salvage(self) -> Salvage:
        """Lost and damaged files."""

    @property
    def batches(self) -> Batches:
        """Batch ids."""

    @property
    def bootstraps(self) -> Bootstraps:
        """Tables that are bootstrapped at peers, and bootstraps received."""

    @property
    def derivations(self) -> Derivations:
        """Tables that are derived here."""

    @property
    def replay(self) -> Replay:
        """What the own replay has applied."""

    @property
    def time(self) -> Time:
        """Writers, closed and replicated time."""

    @property
    def sending(self) -> Sending:
        """What those who send tell of it."""

    def close(self) -> None:
        """Let go of connections."""
