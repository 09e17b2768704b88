"""What a ledger knows of the own replay: what is pending, applied, quarantined, folded. Part of ``base``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from replication.core.coverage import Ranges
from replication.core.ids import FileId
from replication.ledger.files import FileRow
from replication.ledger.registration import Claim


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
    """A frame that could not be applied, with the reason.

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


class Replay(Protocol):
    """What the own replay has applied."""

    def pending(self) -> list[Pending]:
        """Every file with registered bytes not yet applied by all tables, in the order in which they were begun."""

    def checkpoint_applied(self, checkpoint: ReplayCheckpoint) -> None:
        """Join a commit's positions; a file passes when all tables have.

        Tables that have caught up share the file's prefix. An older checkpoint never replaces a newer one.
        """

    def waiting_bytes(self, host: str, held: Collection[UUID]) -> int:
        """Bytes of a host's landing files that tables of this cluster, other than ``held``, have yet to apply."""

    def rewind(self, table: UUID, positions: Mapping[FileId, int]) -> None:
        """The table was rolled back: of these files it now has only what lies before these offsets."""

    def checkpoint(self, table: UUID) -> ReplayCheckpoint | None:
        """The ledger's copy of the table's last checkpoint."""

    def raise_epoch(self) -> int:
        """A new replay epoch."""

    def epoch(self) -> int:
        """The newest replay epoch; 0 before the first."""

    def note_replayer(self, host: str, replays: bool) -> None:
        """Remember that a host is told to run replay, up or not, or that it is not: ZooKeeper's data may be lost.

        While one is, no file goes before its frames are applied, whatever is known of hosts elsewhere.
        """

    def replayers(self) -> tuple[str, ...]:
        """Hosts that were noted so, by slot."""

    def keep_report(self, report: str) -> None:
        """Keep what replay reports of itself, in the place of its last report."""

    def last_report(self) -> str:
        """The last report; "" when replay never ran."""

    def quarantine(self, frame: Quarantined) -> None:
        """Record a quarantined frame; it counts as applied."""

    def quarantined(self) -> list[Quarantined]:
        """All quarantined frames, those that a person discarded included."""

    def discard(self, file: FileId, begin: int, at: int, damaged: Claim | None = None) -> None:
        """A person discards a quarantined frame at time ``at``: it no longer holds its table's replicated time.

        One that is ``damaged``, by what can be read of its header, is claimed no more, so that it counts when another
        cluster's bootstrap brings its rows, and its sequence is acknowledged until then.

        Raises:
            RequestError: no such frame is quarantined.
        """

    def requeue(self, file: FileId, begin: int, claim: Claim, into: FileId) -> None:
        """Have a quarantined frame, discarded or not, applied from another file, and end its quarantine.

        ``into`` is a landing file made for it, OPEN and nothing registered, which holds a copy of the frame durably at
        ``claim``'s place; it is CLOSED there in the same transaction. The frame's sequence moves to it.

        Raises:
            RequestError: no such frame is quarantined, or applying it is not what is wanted; says why.
            ClosedFileError: ``into`` was closed meanwhile.
        """

    def set_folded(self, table: UUID, upto: int, changes_snapshot: int, at: int) -> None:
        """Remember a fold: all at or below commit time ``upto`` of that ``__changes`` snapshot is in ``<table>``."""

    def folded(self, table: UUID) -> tuple[int, int, int]:
        """(upto, changes snapshot, when), zeros before the first fold."""
