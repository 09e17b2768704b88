"""Replay in the ledger: what is pending, applied, quarantined and folded. Part of ``base``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from replication.core.coverage import Ranges
from replication.core.ids import FileId, StreamId
from replication.ledger.files import FileRow
from replication.ledger.registration import Claim


@dataclass(frozen=True, slots=True)
class Pending:
    """Registered bytes that replay has not applied yet: the frames in ``[begin, end)``, less ``duplicates``."""

    row: FileRow
    begin: int  # lowest applied offset of any table
    end: int  # registered length
    duplicates: Ranges
    behind: Mapping[UUID, int]  # applied offsets of tables that are past ``begin``


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A frame that was not applied, with the reason.

    It holds back its table's replicated time until a retry succeeds or it is ``discarded``. A lost write does not;
    ``succession`` is what made it one, "" for a frame that could not be applied.
    """

    file: FileId
    begin: int
    end: int
    table: UUID
    reason: str
    copy: str  # path of the saved copy
    at: int  # microseconds since 1970
    discarded: int = 0  # when a person discarded it, 0 if not discarded
    succession: str = ""


@dataclass(frozen=True, slots=True)
class ReplayCheckpoint:
    """What one replay commit applied: offsets per file; ``snapshot`` is 0 for a round without rows."""

    table: UUID
    epoch: int
    commit: int
    snapshot: int
    positions: Mapping[FileId, int]


class Replay(Protocol):
    """What this cluster's replay has applied."""

    def pending(self) -> list[Pending]:
        """Every file with registered bytes that some table has not applied, in order of creation."""

    def unapplied(self, table: UUID) -> dict[FileId, int]:
        """By file, the lowest offset of registered frames that a table has yet to apply; nothing of a dropped table."""

    def checkpoint_applied(self, checkpoint: ReplayCheckpoint) -> None:
        """Join a commit's positions. A file's applied prefix ends where its slowest table is.

        An older checkpoint never replaces a newer one.
        """

    def waiting_bytes(self, host: str, held: Collection[UUID]) -> int:
        """Bytes of a host's landing files that tables of this cluster, other than ``held``, have yet to apply."""

    def rewind(self, table: UUID, positions: Mapping[FileId, int]) -> None:
        """Lower a table's positions after it was rolled back: it has only the bytes before these offsets."""

    def checkpoint(self, table: UUID) -> ReplayCheckpoint | None:
        """The ledger's copy of the table's last checkpoint."""

    def raise_epoch(self) -> int:
        """Raise the replay epoch by one and return it."""

    def epoch(self) -> int:
        """The newest replay epoch; 0 before the first."""

    def note_replayer(self, host: str, replays: bool) -> None:
        """Store whether a host is configured to run replay. ZooKeeper's data may be lost, so the ledger has it too.

        While any host runs replay, no file is retired before its frames are applied.
        """

    def replayers(self) -> tuple[str, ...]:
        """Hosts that are configured to run replay, by slot."""

    def keep_report(self, report: str) -> None:
        """Store replay's report about itself in place of the last one."""

    def last_report(self) -> str:
        """The last report; "" when replay never ran."""

    def quarantine(self, frame: Quarantined, sequence: tuple[StreamId, int]) -> None:
        """Record a quarantined frame, of that stream and sequence; it counts as applied."""

    def quarantined(self) -> list[Quarantined]:
        """All quarantined frames, discarded ones included."""

    def discard(
        self, file: FileId, begin: int, at: int, damaged: Claim | None = None, *, is_lost: bool = False
    ) -> None:
        """Discard a quarantined frame at time ``at``: it no longer holds back its table's replicated time.

        ``damaged`` is the readable header of a damaged frame, ``is_lost`` that nobody has a copy. Its claim is dropped,
        so that another cluster's bootstrap can bring its rows. Until then its sequence is an acknowledged loss.

        Raises:
            RequestError: no such frame is quarantined.
        """

    def release(self, file: FileId, begin: int) -> None:
        """End a frame's quarantine without applying it: its rows are in its table by other frames."""

    def released(self, table: UUID, succession: str) -> list[Quarantined]:
        """The lost writes of a table and a succession whose quarantine was ended so, as they were."""

    def requeue(self, copies: Mapping[tuple[FileId, int], Claim], into: FileId) -> None:
        """End the quarantine of frames, discarded or not, and have them applied from another file.

        ``copies`` has the new claim of each, by its old file and offset. ``into`` is a new landing file, OPEN and with
        nothing registered. It holds a durable copy of each frame at its claim's place. The frames' claims move to it,
        and it is CLOSED there, in the same transaction.

        Raises:
            RequestError: no such frame is quarantined, or it must not be applied; the message says why.
            ClosedFileError: ``into`` was closed since.
        """

    def set_folded(self, table: UUID, upto: int, changes_snapshot: int, at: int) -> None:
        """Store a fold: ``<table>`` has all of that ``__changes`` snapshot up to commit time ``upto``, inclusive."""

    def folds(self) -> dict[UUID, int]:
        """Up to when each table is folded, of those that were."""
