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

from replication.core.ids import ClusterId, FileId
from replication.core.lineage import Lineage
from replication.core.phase import Phase
from replication.core.planner import FileView
from replication.core.retention import FileFacts, RetentionPolicy
from replication.core.schema import SchemaVersion, TableSpec
from replication.core.status import ReplicationStatus
from replication.ledger.applying import Replay
from replication.ledger.batches import Batches, BatchPart
from replication.ledger.bootstraps import Bootstraps
from replication.ledger.deriving import Derivation, Derivations
from replication.ledger.landing import Landing
from replication.ledger.records import (
    AheadClock,
    AtRisk,
    Backlog,
    Bootstrap,
    Claim,
    Divergence,
    FileKind,
    FileRow,
    Gap,
    GivenUp,
    Grown,
    Landed,
    LetGo,
    OwnLoss,
    PassedOn,
    Peer,
    Pending,
    Progress,
    Quarantined,
    Readable,
    Registration,
    ReplayMark,
    Rule,
    Standing,
    Waiver,
    WriterRow,
)
from replication.ledger.sending import Attempt, HeldTable, Sending
from replication.ledger.timing import Time

__all__ = [
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
    "Files",
    "Gap",
    "GivenUp",
    "Grown",
    "HeldTable",
    "Landed",
    "Landing",
    "Ledger",
    "LetGo",
    "OwnLoss",
    "PassedOn",
    "Peer",
    "Pending",
    "Phase",
    "Progress",
    "Quarantined",
    "Readable",
    "Registration",
    "Replay",
    "ReplayMark",
    "Rule",
    "Rules",
    "Sending",
    "Standing",
    "Tables",
    "Terms",
    "Time",
    "Waiver",
    "WriterRow",
]

KEEP = RetentionPolicy()


class Terms(Protocol):
    """The master's term."""

    def current(self) -> int:
        """The highest term raised; 0 at first."""

    def raise_to_next(self) -> int:
        """Raise the term by one for a new master and return it."""

    def lineage(self) -> Lineage:
        """The newest terms with the marks drawn for them."""

    def recognise(self, other: ClusterId, lineage: Lineage) -> str:
        """Remember another cluster's newest term and mark; why it is not the one that was heard of by this name.

        It may be a copy of it, or the one that was copied; "" when nothing speaks against it.
        """


class Tables(Protocol):
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
        """Mark dropped. Its rules stay until peers have what they owe; see ``Rules.settle``."""

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

        With ``every_group`` groups that ``Tables.alter`` adds later go there, too, each in the transaction that adds it
        and so with its first frame; until ``disable`` ends any group.

        In the same transaction creates the statuses for the retained files and, per stream of the groups already in
        them, notes the first sequence owed (the next one), so that only what is written from now on goes. With
        ``bootstrap`` new rules are BOOTSTRAPPING: what lies before is owed too, by other means.
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
        """What a table's rules owe can be held no longer: NEEDS_BOOTSTRAP, which lets go of every file at once.

        Raises:
            RequestError: the table does not go to that peer.
        """

    def disable(self, peer: str, table: UUID, groups: Sequence[str], term: int) -> None:
        """End the rules; re-enabling is a new generation, whose gap is what was not sent in between."""

    def stand(self, standing: Standing, term: int) -> None:
        """From now on ``Tables.create`` begins rules for tables of the pattern; replaces a peer's rule of one pattern.

        A table that a rule names already, or that is there, is left as it is.
        """

    def end_standing(self, peer: str, pattern: str, term: int) -> bool:
        """Have tables to come stay here; rules that were begun stay. Whether there was such a standing rule."""

    def standing(self) -> list[Standing]:
        """Every standing rule, by peer and pattern."""

    def settle(self, term: int, now: int) -> list[Rule]:
        """End the rules of tables that were dropped here, whose peers have all that was written to them.

        Those dropped less than ten seconds before ``now`` (microseconds since 1970) wait: what was written last may not
        be registered yet.
        """

    def all(self) -> list[Rule]:
        """Rules in force."""

    def ended(self, cluster: ClusterId) -> list[tuple[UUID, str, int]]:
        """What (table, group) went to a cluster and does not now, with the generation that its last rule had."""


class Files(Protocol):
    """WAL, control and landing files, and what peers have of them."""

    def allocate(
        self, host: str, kind: FileKind, directory: str, boot: str, writer: str = "", source: FileId | None = None
    ) -> FileRow:
        """The next dense number of this host's slot, as an OPEN file at ``directory/<number:012d>.wal``.

        Its statuses for peers are there at once. It counts as ``FILE_HEADER_BYTES`` long, where its ranges begin.
        """

    def upcoming(self, host: str) -> int:
        """The number that ``allocate`` gives next; every file of the host has a lower one."""

    def get(self, file: FileId) -> FileRow | None:
        """One file, or None."""

    def all(self, host: str | None = None, *, open_only: bool = False) -> list[FileRow]:
        """Files by id, of one host or all."""

    def close(self, file: FileId, length: int) -> None:
        """CLOSED at ``length`` published bytes; registration may still catch up to there.

        Raises:
            ClosedFileError: it was CLOSED at another length, or more than ``length`` is registered.
            MissingFileError: no such file.
        """

    def record(self, progress: Sequence[Progress]) -> None:
        """Join what workers learnt about peers; after a loss there, less counts than before."""

    def progress(self, peer: str | None = None) -> list[Progress]:
        """What is known, per file and peer."""

    def failing(self) -> frozenset[str]:
        """Peers that something of a file could not be shipped to when it was last tried."""

    def lacking(self) -> list[FileView]:
        """Files that some peer lacks something of, and what; costs what changed since the last time it was asked."""

    def statuses(self, peer: str | None = None) -> list[tuple[FileId, Rule, ReplicationStatus]]:
        """ReplicationStatus per (file, peer, table, group): a view over files, progress and rules.

        Control files have one per peer that any rule names, under a rule of the NIL table and group "". Landing files
        have none for the peer they came from. Rules that need a bootstrap have none. Bytes known to hold only frames of
        other tables, which are withheld, count as shipped.
        """

    def retirable(self, host: str, policy: RetentionPolicy = KEEP) -> list[FileRow]:
        """Files rule 2 lets go, decided in one transaction."""

    def retention(self, policy: RetentionPolicy = KEEP) -> list[FileFacts]:
        """What holds each file, or lets it go, by file; files of all hosts."""

    def retire(self, file: FileId, term: int, policy: RetentionPolicy = KEEP) -> None:
        """Check rule 2 again and drop the file's row in one transaction; the caller then deletes the file.

        Raises:
            StaleTermError: a newer master was elected.
            RequestError: something holds the file; says what.
        """

    def retired_bytes(self) -> int:
        """Bytes of all files that were ever retired."""

    def move(self, file: FileId, path: str) -> bool:
        """Say where a CLOSED file lies now, once it does; False when the ledger has no such file any more."""

    def backlogs(self) -> list[Backlog]:
        """What each peer that rules name lacks, by peer."""

    def lacked(self) -> dict[str, list[FileId]]:
        """CLOSED files of frames that each peer lacks something of, oldest first, less those that a bootstrap pins."""

    def let_go(self, budget: int, term: int) -> list[LetGo]:
        """Have files wait no more for peers that lack more than ``budget`` bytes of local files, oldest files first.

        In one transaction the tables with frames in what a peer lacks of them become NEEDS_BOOTSTRAP there, and these
        files, and others with frames of no other table, count as shipped and applied for the peer. Files with nothing
        that it lacks go first. What is pinned for a bootstrap, in a store, OPEN or not wholly registered stays.

        Raises:
            StaleTermError: a newer master was elected.
        """


class Ledger(Protocol):
    """The whole ledger of one cluster."""

    cluster: ClusterId
    former: tuple[ClusterId, ...]  # what it was called before it was restored

    @property
    def terms(self) -> Terms:
        """The master's term."""

    @property
    def tables(self) -> Tables:
        """Table definitions."""

    @property
    def rules(self) -> Rules:
        """Peers and rules."""

    @property
    def files(self) -> Files:
        """Files and what peers have of them."""

    @property
    def landing(self) -> Landing:
        """Registered and claimed bytes."""

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
