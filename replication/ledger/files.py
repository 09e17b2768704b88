"""WAL, control and landing files in the ledger: what there is, how far peers have it, and what may go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId
from replication.core.shipping.planner import FileView
from replication.core.shipping.retention import FileFacts, RetentionPolicy
from replication.core.status import ReplicationStatus
from replication.ledger.rules import Rule


class FileKind(StrEnum):
    """Where a file of frames came from."""

    WAL = "wal"  # written here by a writer
    CONTROL = "control"  # written here by a worker: closed and succession frames
    LANDING = "landing"  # received from a peer
    BOOTSTRAP = "bootstrap"  # rows from before, written here for one peer, or received from one


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
class PeerProgress:
    """What the worker learnt about one file at one peer; ``decisions/progress.py`` joins reports.

    ``generation`` is that of the newest rule for the peer which the worker knew when it skipped what no rule names.
    Where a newer rule begins, bytes reported under an older generation do not count as shipped. None = all rules in
    force. ``losses`` is how often the peer had lost bytes of the file when this was learnt: what was learnt before an
    older loss counts no more, and of what was known then only ``kept`` does. ``withheld`` names bytes of the file that
    hold only frames of one table, which is withheld: the file's other tables need not wait for them. ``error`` is the
    last error, "" when the last attempt went well, None when the report says nothing of attempts: the last error stays.
    """

    file: FileId
    peer: str
    shipped: Ranges = Ranges()  # durable at the peer, skipped bytes included
    applied: int = 0  # prefix the peer reports as applied
    commit: int = 0  # commit time of the newest frame known durable there
    error: str | None = ""
    generation: int | None = None
    losses: int = 0
    kept: Ranges = Ranges()
    withheld: Mapping[UUID, Ranges] = field(default_factory=dict)


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


KEEP = RetentionPolicy()


class FileRecords(Protocol):
    """WAL, control and landing files, and what peers have of them."""

    def allocate(
        self, host: str, kind: FileKind, directory: str, boot: str, writer: str = "", source: FileId | None = None
    ) -> FileRow:
        """The next dense number of this host's slot, as an OPEN file at ``directory/<number:012d>.wal``.

        Its statuses for peers are there at once. It counts as ``FILE_HEADER_BYTES`` long, where its ranges begin.
        """

    def upcoming(self, host: str) -> int:
        """The number that ``allocate`` gives next; every file of the host has a lower one."""

    def overtaken(self, seen: Sequence[FileId] = ()) -> FileId | None:
        """A file of this cluster that a peer knows before its number was given: the ledger is an older copy.

        Noted once it is among those ``seen`` at a peer, since its number is given next.
        """

    def last_seen_by(self, peer: ClusterId) -> tuple[FileId, ...]:
        """The highest file of this cluster that a peer ever acked something of, of each host slot.

        A peer that does not know it goes on from an older copy of its ledger.
        """

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

    def record(self, progress: Sequence[PeerProgress]) -> None:
        """Join what workers learnt about peers; after a loss there, less counts than before."""

    def progress(self, peer: str | None = None) -> list[PeerProgress]:
        """What is known, per file and peer."""

    def withheld(self, file: FileId) -> Mapping[UUID, Ranges]:
        """Bytes of a file that workers found to hold only frames of one table, which they withheld; by table."""

    def failing(self) -> frozenset[str]:
        """Peers that something of a file could not be shipped to at the last try. Withheld tables do not count."""

    def lacking(self) -> list[FileView]:
        """Files that some peer lacks something of, and what; costs what changed since the last time it was asked."""

    def statuses(self, peer: str | None = None) -> list[tuple[FileId, Rule, ReplicationStatus]]:
        """ReplicationStatus per (file, peer, table, group): a view over files, progress and rules.

        Control files have one per peer that any rule names, under a rule of the NIL table and group "". Landing files
        have none for the peer they came from. Rules that need a bootstrap have none. Bytes known to hold only frames of
        other tables, which are withheld, count as shipped.
        """

    def retirable(self, host: str, policy: RetentionPolicy = KEEP) -> list[FileRow]:
        """Files that rule 2 releases, decided in one transaction."""

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

    def relocate(self, paths: Mapping[FileId, str]) -> None:
        """Say by what paths files of a host are found now, OPEN ones too; for when nothing of that host runs."""

    def backlogs(self) -> list[Backlog]:
        """What each peer that rules name lacks, by peer."""

    def lacked(self) -> dict[str, list[FileId]]:
        """CLOSED files of frames that each peer lacks something of, oldest first."""

    def release(self, budget: int, term: int) -> list[Released]:
        """Have files wait no more for peers that lack more than ``budget`` bytes of local files, oldest files first.

        In one transaction the tables with frames in what a peer lacks of them become NEEDS_BOOTSTRAP there, and these
        files, and others with frames of no other table, count as shipped and applied for the peer. Files with nothing
        that it lacks go first. What is in a store, OPEN or not wholly registered stays.

        Files with frames of a table that the peer is being bootstrapped with are counted by themselves, and stay.
        Where they
        are more than ``budget`` bytes, those tables with frames in the oldest of them become NEEDS_BOOTSTRAP.

        Raises:
            StaleTermError: a newer master was elected.
        """
