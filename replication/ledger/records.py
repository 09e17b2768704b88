"""What the ledger records, as frozen values.

Offsets and lengths are bytes, ranges half-open, times microseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from replication.core.coverage import Ranges
from replication.core.definition.evolution import without_properties
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.phase import Phase
from replication.core.routes.freshness import ClosedNotice


class FileKind(StrEnum):
    """Where a file of frames came from."""

    WAL = "wal"  # written here by a writer
    CONTROL = "control"  # written here by a worker: closed and succession frames
    LANDING = "landing"  # received from a peer
    BOOTSTRAP = "bootstrap"  # rows from before, written here for one peer, or received from one


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

    def told(self, spec: TableSpec) -> TableSpec:
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


@dataclass(frozen=True, slots=True)
class FileRow:
    """A file on one host of this cluster."""

    file: FileId
    kind: FileKind
    host: str
    path: str
    closed: bool
    length: int  # durable and registered bytes, file header included: the status's ``needed``
    boot: str
    writer: str  # writer id for WALs, else ""
    applied: int  # own replay's prefix
    created: int  # microseconds since 1970
    commit_hi: int  # commit time of the newest frame, 0 when none
    source: FileId | None = None  # for landing files: the sender's file
    closed_length: int = -1  # published bytes it was CLOSED at, -1 while OPEN; registration may still be catching up
    peer: str = ""  # of a bootstrap written here: the one peer it is for

    @property
    def is_stored(self) -> bool:
        """Whether it lies in a store rather than on its host's disk; ``path`` is then its address."""
        return "://" in self.path

    @property
    def is_landed(self) -> bool:
        """Whether it holds what came from other clusters, bootstraps too."""
        return self.kind is FileKind.LANDING or self.source is not None

    @property
    def is_redundant(self) -> bool:
        """Whether nothing is lost with it: later control logs say the same, a bootstrap is written anew."""
        return self.kind is FileKind.CONTROL or (self.kind is FileKind.BOOTSTRAP and self.source is None)

    @property
    def needed(self) -> int:
        """How far it must get to peers: the closed length when CLOSED, else what is registered."""
        return max(self.length, self.closed_length)


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """A table that is being bootstrapped at a peer, by the rules of ``generation`` and older ones.

    ``file`` holds what is sent for it, None before that is written. ``waits_for`` says what has to happen before it can
    be written, "" when nothing has to.
    """

    peer: str
    table: UUID
    groups: tuple[str, ...]
    generation: int
    file: FileRow | None = None
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class PassedOn:
    """A table's bootstrap that came from ``source`` and goes on to ``peer``."""

    peer: str
    table: UUID
    source: ClusterId


@dataclass(frozen=True, slots=True)
class Claim:
    """One frame found in a file: its place there and in its stream. ``commit`` is the header's ``commit_hi``."""

    stream: StreamId
    sequence: int
    previous: bytes
    hash: bytes
    begin: int
    end: int
    commit: int


@dataclass(frozen=True, slots=True)
class Landed:
    """What one landing file gained: its bytes ``[begin, end)`` hold ``[source_begin, source_end)`` of the source."""

    file: FileId
    begin: int
    end: int
    source: FileId
    source_begin: int
    source_end: int
    claims: tuple[Claim, ...]
    notices: tuple[tuple[ClusterId, ClosedNotice], ...] = ()


@dataclass(frozen=True, slots=True)
class AtRisk:
    """What goes with a landing file that is salvaged, but for what can be saved.

    ``sequences`` are claimed in it and not wholly applied, ``applied`` is how far each table is in it, ``duplicates``
    are
    ``[begin, end)`` of other files where some of these sequences landed as duplicates. ``lacked`` are the bytes that
    some peer lacks, per (table, group) that goes there.
    """

    row: FileRow
    sequences: Mapping[StreamId, Ranges]
    applied: Mapping[UUID, int]
    duplicates: tuple[tuple[FileRow, int, int], ...]
    lacked: Mapping[tuple[UUID, str], Ranges]


@dataclass(frozen=True, slots=True)
class Salvaged:
    """What became of a landing file that was salvaged.

    ``again`` are the source's ranges that the sender is asked for anew; ``dropped`` the sequences that are claimed no
    more until they come again; ``saved`` those that are claimed in the file of copies now. ``lacking`` says of which
    tables a peer may not get what it is required, since the sender may have let it go, and of how many frames at
    most.
    """

    file: FileId
    source: FileId | None
    again: Ranges
    dropped: Mapping[StreamId, Ranges]
    saved: Mapping[StreamId, Ranges]
    lacking: Mapping[str, Mapping[UUID, int]]


@dataclass(frozen=True, slots=True)
class Readable:
    """What of a file can be read: its whole frames, as they lie there, and where its frames ``end``.

    ``last`` is the last sequence of each stream by its end record; None when that cannot be read.
    """

    end: int
    frames: tuple[Claim, ...] = ()
    last: Mapping[StreamId, int] | None = None


@dataclass(frozen=True, slots=True)
class OwnLoss:
    """What salvaging a file that was written here means.

    ``wanted`` can be read, and a table here or a peer still needs it. ``lost`` cannot be read, and no table here has
    applied it; ``at_peers`` is what of that each peer has. ``lacking`` says of which tables a peer will not get what it
    is required, and of how many frames at most. Of ``unreadable_bytes`` nobody can tell what ``untold_bytes``
    held.
    ``doubtful`` are tables without key of which it cannot be told whether they have applied some of what is lost.
    """

    row: FileRow
    wanted: tuple[Claim, ...]
    lost: Mapping[StreamId, Ranges]
    at_peers: Mapping[str, Mapping[StreamId, Ranges]]
    lacking: Mapping[str, Mapping[UUID, int]]
    unreadable_bytes: int
    untold_bytes: int
    doubtful: frozenset[UUID]


@dataclass(frozen=True, slots=True)
class AcknowledgedLoss:
    """Sequences that went with ``file``, which was written here and salvaged at ``at``; those that came back are not.

    Nobody waits for them: they are acknowledged in what this cluster requires.
    """

    stream: StreamId
    sequences: Ranges
    file: FileId
    at: int


@dataclass(frozen=True, slots=True)
class Divergence:
    """A frame whose sequence is claimed already with another hash: two histories of one stream."""

    claim: Claim
    file: FileId
    held_by: FileId


@dataclass(frozen=True, slots=True)
class PeerProgress:
    """What the worker learnt about one file at one peer; joined by union and max.

    ``generation`` is that of the newest rule for the peer which the worker knew when it skipped what no rule names.
    Where a newer rule begins, bytes reported under an older generation do not count as shipped. None = all rules in
    force. ``losses`` is how often the peer had lost bytes of the file when this was learnt: what was learnt before an
    older loss counts no more, and of what was known then only ``kept`` does. ``withheld`` names bytes of the file that
    hold only frames of one table, which is withheld: the file's other tables need not wait for them. With
    ``tells_error`` False nothing is said of how shipping goes, and the last error stays.
    """

    file: FileId
    peer: str
    shipped: Ranges  # durable at the peer, skipped bytes included
    applied: int  # prefix the peer reports as applied
    commit: int = 0  # commit time of the newest frame known durable there
    error: str = ""  # last error, "" when the last attempt went well
    generation: int | None = None
    losses: int = 0
    kept: Ranges = Ranges()
    withheld: Mapping[UUID, Ranges] = field(default_factory=dict)
    tells_error: bool = True


@dataclass(frozen=True, slots=True)
class Backlog:
    """Files that a peer lacks something of, in whole files; ``oldest`` is when the oldest was made, 0 without any.

    ``pinned_bytes`` of ``local_bytes`` are in files with frames of a table that the peer is being bootstrapped with.
    """

    peer: str
    local_files: int
    local_bytes: int
    stored_files: int
    stored_bytes: int
    oldest: int
    pinned_bytes: int = 0

    @property
    def counted_bytes(self) -> int:
        """What the peer's disk budget is compared with: pinned files have one of their own, of the same size."""
        return max(self.pinned_bytes, self.local_bytes - self.pinned_bytes)


@dataclass(frozen=True, slots=True)
class Released:
    """Files, of ``bytes``, that wait for a peer no more, and the tables that need a bootstrap there because of it."""

    peer: str
    files: tuple[FileId, ...]
    bytes: int
    tables: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class LandedGroup:
    """A writer's entry: its commit times must stay above ``closed``."""

    writer: str
    closed: int
    role_epoch: int


@dataclass(frozen=True, slots=True)
class WriterRow:
    """A registered writer: its host and the watermark that later commits are above ``floor``."""

    writer: str
    host: str
    pid: int
    boot: str
    floor: int


@dataclass(frozen=True, slots=True)
class AheadClock:
    """An origin whose commit times are far ahead of the clock here: the furthest one, and when it was seen."""

    origin: ClusterId
    commit: int
    at: int


@dataclass(frozen=True, slots=True)
class Grown:
    """A WAL that grew, or copies from one: its registered length, and the last sequence of each own stream that did."""

    length: int
    last: Mapping[StreamId, int]


@dataclass(frozen=True, slots=True)
class Pending:
    """Registered bytes that the own replay has not passed: frames in ``[begin, end)``, less ``duplicates``, are due."""

    row: FileRow
    begin: int  # lowest applied offset of any table
    end: int  # registered length
    duplicates: Ranges
    behind: Mapping[UUID, int]  # tables whose own applied offset differs from ``begin``


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A frame that could not be applied, kept withheld with its reason.

    It holds its table's replicated time until it is tried again with success, or ``discarded``.
    """

    file: FileId
    begin: int
    end: int
    table: UUID
    reason: str
    copy: str  # path of its own copy
    at: int  # microseconds since 1970
    discarded: int = 0  # when a person discarded it, 0 while nobody has


@dataclass(frozen=True, slots=True)
class ReplayCheckpoint:
    """What one replay commit applied: offsets per file; ``snapshot`` is 0 for a round without rows."""

    table: UUID
    epoch: int
    commit: int
    snapshot: int
    positions: Mapping[FileId, int]
