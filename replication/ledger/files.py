"""WAL, control and landing files in the ledger: what there is, how far peers have it, and what may go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import UUID

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId
from replication.core.shipping.planner import FileView
from replication.core.shipping.retention import FileFacts, RetentionPolicy
from replication.core.status import ReplicationStatus
from replication.ledger.records import (
    Backlog,
    FileKind,
    FileRow,
    PeerProgress,
    Released,
    Rule,
)

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

    def overtaken(self, heard: Sequence[FileId] = ()) -> FileId | None:
        """A file of this cluster that was heard of before its number was given: the ledger is an older copy.

        Noted once it is among those ``heard`` of from a peer, since its number is given next.
        """

    def last_seen_by(self, peer: ClusterId) -> tuple[FileId, ...]:
        """The highest file of this cluster that a peer ever acked something of, of each host slot.

        A peer that has not heard of it goes on from an older copy of its ledger.
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
        """Peers that something of a file could not be shipped to when it was last tried, withheld tables aside."""

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

    def relocate(self, paths: Mapping[FileId, str]) -> None:
        """Say by what paths files of a host are found now, OPEN ones too; for when nothing of that host runs."""

    def backlogs(self) -> list[Backlog]:
        """What each peer that rules name lacks, by peer."""

    def lacked(self) -> dict[str, list[FileId]]:
        """CLOSED files of frames that each peer lacks something of, oldest first."""

    def release(self, budget: int, term: int) -> list[Released]:
        """Have files wait no more for peers that lack more than ``budget`` bytes of local files, oldest files first.

        In one transaction the tables with frames in what a peer lacks of them become NEEDS_BOOTSTRAP there, and these
        files, and others with frames of no other table, count as shipped and applied for the peer. FileRecords with
        nothing
        that it lacks go first. What is in a store, OPEN or not wholly registered stays.

        Files with frames of a table that the peer is being bootstrapped with are counted by themselves, and stay.
        Where they
        are more than ``budget`` bytes, those tables with frames in the oldest of them become NEEDS_BOOTSTRAP.

        Raises:
            StaleTermError: a newer master was elected.
        """
