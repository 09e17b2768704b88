"""WAL, control and landing files in the ledger: their rows, the peers' progress, and which files may be retired."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
    BOOTSTRAP = "bootstrap"  # a table's older rows, written here for one peer or received from one


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
    applied: int  # prefix that this cluster's replay has applied
    created: int  # microseconds since 1970
    commit_hi: int  # commit time of the newest frame, 0 when none; of own rows never below closed time of then
    source: FileId | None = None  # for landing files: the sender's file
    closed_length: int = -1  # published bytes it was CLOSED at, -1 while OPEN; ``length`` may still be below it
    peer: str = ""  # for bootstraps written here: the peer it is for

    @property
    def is_stored(self) -> bool:
        """Whether the file is in the spill store and not on its host's disk; ``path`` is then a URL."""
        return "://" in self.path

    @property
    def is_landed(self) -> bool:
        """Whether its frames came from another cluster; received bootstraps count."""
        return self.kind is FileKind.LANDING or self.source is not None

    @property
    def is_redundant(self) -> bool:
        """Whether losing it loses nothing: later control files repeat it, or the bootstrap is written again."""
        return self.kind is FileKind.CONTROL or (self.kind is FileKind.BOOTSTRAP and self.source is None)

    @property
    def needed(self) -> int:
        """The length that peers need: the closed length when CLOSED, else the registered length."""
        return max(self.length, self.closed_length)


@dataclass(frozen=True, slots=True)
class PeerProgress:
    """A worker's report about one file at one peer; ``decisions/progress.py`` joins reports.

    ``generation`` is the newest rule for the peer that the worker had loaded when it skipped bytes that no rule names;
    None for all rules in force. Bytes past a newer rule's begin do not count as shipped under an older generation.
    ``losses`` counts how often the peer had lost bytes of the file by then. Of an earlier report, with fewer losses,
    only the ranges in ``kept`` still count. ``withheld`` are bytes of the file, by table, that hold only frames of that
    withheld table; the file's other tables need not wait for them. ``error`` is the last error, "" after a successful
    attempt. None leaves the stored error as it is.
    """

    file: FileId
    peer: str
    shipped: Ranges = Ranges()  # durable at the peer, skipped bytes included
    applied: int = 0  # prefix the peer reports as applied
    commit: int = 0  # commit time of the newest frame that is durable there
    error: str | None = ""
    generation: int | None = None
    losses: int = 0
    kept: Ranges = Ranges()
    withheld: Mapping[UUID, Ranges] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Backlog:
    """Files that a peer lacks bytes of, counted whole; ``oldest`` is when the oldest was created, 0 for none.

    ``pinned_bytes`` of ``local_bytes`` are in files with frames of a table that is being bootstrapped at the peer.
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
        """The bytes to compare with the peer's disk budget; pinned and other files each have the whole budget."""
        return max(self.pinned_bytes, self.local_bytes - self.pinned_bytes)


@dataclass(frozen=True, slots=True)
class Released:
    """Files, ``bytes`` in all, that are no longer retained for a peer, and the tables that need a bootstrap for it."""

    peer: str
    files: tuple[FileId, ...]
    bytes: int
    tables: tuple[UUID, ...]


KEEP = RetentionPolicy()


class FileRecords(Protocol):
    """WAL, control and landing files, and each peer's progress on them."""

    def allocate(
        self, host: str, kind: FileKind, directory: str, boot: str, writer: str = "", source: FileId | None = None
    ) -> FileRow:
        """Add an OPEN file ``directory/<number:012d>.wal`` with the next number of this host's slot.

        Numbers are dense. The file's statuses for peers exist at once. Its length is ``FILE_HEADER_BYTES``.

        Raises:
            RequestError: the cluster has got another id since this ledger was opened.
        """

    def upcoming(self, host: str) -> int:
        """The number that ``allocate`` returns next; every file of the host has a lower one."""

    def overtaken(self, peer: ClusterId, seen: Sequence[FileId] = ()) -> FileId | None:
        """Return a file of this cluster that ``peer`` has and this ledger never allocated: the ledger is an older copy.

        ``seen`` are the newest files that the peer has. A file that is found is stored, since its number is allocated
        next, and later calls for that peer return it. What one peer says does not count for others: it may lie.
        """

    def last_seen_by(self, peer: ClusterId) -> tuple[FileId, ...]:
        """The highest file of this cluster, per host slot, of which a peer ever acked bytes.

        A peer that does not know this file runs on an older copy of its ledger.
        """

    def get(self, file: FileId) -> FileRow | None:
        """One file, or None."""

    def all(self, host: str | None = None, *, open_only: bool = False) -> list[FileRow]:
        """Files by id, of one host or all."""

    def close(self, file: FileId, length: int) -> None:
        """Mark a file CLOSED at ``length`` published bytes; its bytes may still be registered up to there.

        Raises:
            ClosedFileError: it was CLOSED at another length, or more than ``length`` is registered.
            MissingFileError: no such file.
        """

    def record(self, progress: Sequence[PeerProgress]) -> None:
        """Join workers' reports about peers. A report with more losses discards ranges of earlier ones."""

    def progress(self, peer: str | None = None) -> list[PeerProgress]:
        """Every stored report, by file and peer."""

    def withheld(self, file: FileId) -> Mapping[UUID, Ranges]:
        """By withheld table, the bytes of a file that are known to hold only frames of that table."""

    def withholding(self) -> frozenset[FileId]:
        """The files that ``withheld`` knows bytes of."""

    def failing(self) -> frozenset[str]:
        """Peers to which the last attempt to ship some file failed. Withheld tables do not count."""

    def lacking(self) -> list[FileView]:
        """Files that some peer lacks bytes of, and which bytes. Only reads what changed since the last call."""

    def statuses(
        self,
        peer: str | None = None,
        files: Collection[FileId] | None = None,
        rules: Sequence[Rule] | None = None,
    ) -> list[tuple[FileId, Rule, ReplicationStatus]]:
        """ReplicationStatus per (file, peer, table, group): a view over files, progress and rules.

        Of one peer, or of all; of some files, or of all; under ``rules``, which may have ended, or those in force.

        A control file has one per peer with rules, under a rule of the NIL table and group "". A landing file has none
        for the peer that it came from. A rule that needs a bootstrap has none. Bytes known to hold only frames of
        other, withheld tables count as shipped.
        """

    def at_peer(self, peer: str) -> dict[FileId, ReplicationStatus]:
        """The status of each file at one peer, under the rule that begins first in it. Files without a rule are absent.

        Bytes of withheld tables do not count as shipped here. Its cost does not grow with the number of rules.
        """

    def retirable(self, host: str, policy: RetentionPolicy = KEEP) -> list[FileRow]:
        """Files of a host that rule 2 allows to delete, decided in one transaction."""

    def retention(self, policy: RetentionPolicy = KEEP) -> list[FileFacts]:
        """The facts that decide whether each file is retained, for files of all hosts, by file."""

    def retire(self, file: FileId, term: int, policy: RetentionPolicy = KEEP) -> None:
        """Check rule 2 again and drop the file's row in one transaction; the caller then deletes the file.

        Raises:
            StaleTermError: a newer master was elected.
            RequestError: the file must stay; the message says why.
        """

    def retired_bytes(self) -> int:
        """Bytes of all files that were ever retired."""

    def retired(self, source: ClusterId) -> int:
        """The newest commit time in files that landed here with frames of a cluster and were retired; 0 for none."""

    def move(self, file: FileId, path: str) -> bool:
        """Set the path of a CLOSED file that was moved. False when the ledger has no such file any more."""

    def relocate(self, paths: Mapping[FileId, str]) -> None:
        """Set new paths for files of a host, OPEN ones included. No process of that host may be running."""

    def backlogs(self) -> list[Backlog]:
        """What each peer with rules lacks, by peer."""

    def lacked(self) -> dict[str, list[FileId]]:
        """CLOSED files of frames that each peer lacks bytes of, oldest first."""

    def release(self, budget: int, term: int) -> list[Released]:
        """Stop retaining the oldest files for peers that lack more than ``budget`` bytes of local files.

        The tables with frames in the released, lacking bytes become NEEDS_BOOTSTRAP for the peer. The released files
        count as shipped and applied for the peer, and so do files with frames of no other table. All of this is one
        transaction. Files without lacking bytes are released first. Files that are in a store, OPEN or not wholly
        registered stay.

        Files with frames of a table that is being bootstrapped at the peer are counted separately, and stay. When they
        exceed ``budget`` bytes, those tables with frames in the oldest of them become NEEDS_BOOTSTRAP.

        Raises:
            StaleTermError: a newer master was elected.
        """
