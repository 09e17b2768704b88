"""Salvage of lost and damaged files in the ledger: plan it, carry it out, list the losses. Part of ``base``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol
from uuid import UUID

from replication.core.coverage import Ranges
from replication.core.ids import FileId, StreamId
from replication.ledger.files import FileRow
from replication.ledger.registration import Claim


class SenderKeeps(StrEnum):
    """Which frames of a file its sender certainly has. Salvage treats own and landed files differently only by this."""

    NOTHING = "nothing"
    """There is no sender: the file was written here, or was copied from such a file."""
    WHAT_IS_NOT_APPLIED = "what_is_not_applied"
    """The sender retains what is not applied here; it may have deleted the rest."""
    EVERYTHING = "everything"
    """The sender retains its whole file, since some of it is not applied here."""


@dataclass(frozen=True, slots=True)
class Readable:
    """The readable part of a file: its whole frames, at their offsets, and the offset where its frames ``end``.

    ``last`` is the last sequence of each stream by the end record; None when that cannot be read. ``elsewhere`` are
    whole frames that landed as duplicates in other files, at their offsets there.
    """

    end: int
    frames: tuple[Claim, ...] = ()
    last: Mapping[StreamId, int] | None = None
    elsewhere: tuple[Claim, ...] = ()


@dataclass(frozen=True, slots=True)
class SalvagePlan:
    """The effects of salvaging a file.

    ``wanted`` are readable frames that a table here or a peer still needs; they are copied. ``elsewhere`` are frames
    that are unreadable in this file and are copied from duplicates in other files. ``lost`` are sequences that are
    readable nowhere and not applied here. With a sender they are requested again: ``again`` are the ranges of its file.
    Without one they are an acknowledged loss, and ``at_peers`` are those that each peer has. So are ``unsent``,
    whose rows a sender sends by a bootstrap only. ``lacking`` counts, per peer and table, frames that the peer may
    never get. ``unknown_bytes`` of the ``unreadable_bytes`` have unknown content. ``doubtful`` are tables without a key
    that have applied an unknown part of the loss: with any, the file cannot be salvaged.
    """

    row: FileRow
    sender_keeps: SenderKeeps
    wanted: tuple[Claim, ...] = ()
    elsewhere: tuple[Claim, ...] = ()
    lost: Mapping[StreamId, Ranges] = field(default_factory=dict)
    again: Ranges = Ranges()
    at_peers: Mapping[str, Mapping[StreamId, Ranges]] = field(default_factory=dict)
    lacking: Mapping[str, Mapping[UUID, int]] = field(default_factory=dict)
    unreadable_bytes: int = 0
    unknown_bytes: int = 0
    doubtful: frozenset[UUID] = frozenset()
    unsent: Mapping[StreamId, Ranges] = field(default_factory=dict)

    @property
    def gone(self) -> Mapping[StreamId, Ranges]:
        """Those of ``lost`` that nobody sends again."""
        return self.lost if self.sender_keeps is SenderKeeps.NOTHING else self.unsent


@dataclass(frozen=True, slots=True)
class AcknowledgedLoss:
    """Sequences lost with ``file``, which was written here and salvaged at ``at``, less those that have landed since.

    Closed and replicated time do not wait for them, here or at peers.
    """

    stream: StreamId
    sequences: Ranges
    file: FileId
    at: int


class Salvage(Protocol):
    """Salvage of lost and damaged files, and the losses."""

    def losses(self, sources: Sequence[FileId]) -> dict[FileId, tuple[int, Ranges]]:
        """For source files with received ranges lost by salvage: the number of losses, and the ranges received now."""

    def plan(
        self,
        file: FileId,
        readable: Readable,
        *,
        keeps_tables: bool = True,
        applied: Mapping[UUID, int] = MappingProxyType({}),
    ) -> SalvagePlan:
        """Return what ``carry_out`` would do now. Changes nothing.

        Args:
            file: a file without a live writer.
            readable: its readable frames.
            keeps_tables: whether this cluster has tables, and so a replay that needs the frames.
            applied: offsets to which tables have applied the file and that the ledger does not have yet.

        Raises:
            MissingFileError: no such file.
        """

    def duplicates(self, file: FileId, streams: Iterable[StreamId]) -> list[tuple[FileRow, int, int]]:
        """Other files with ``[begin, end)`` where frames of these streams landed as duplicates."""

    def carry_out(
        self,
        file: FileId,
        term: int,
        readable: Readable,
        into: FileId | None = None,
        saved: Sequence[Claim] = (),
        *,
        keeps_tables: bool = True,
    ) -> SalvagePlan:
        """Drop a file in one transaction and return what was done. Replay must not be running.

        Sequences that tables here have applied stay claimed. Copied frames are claimed in ``into``, with the applied
        positions they had, and are shipped from there to the peers that lack them. Claims of lost sequences are
        dropped, so that they count when they land again.

        With a sender, received ranges that hold lost frames, or unreadable ones that a peer lacks, are removed;
        ``losses`` then reports this to the sender. Without a sender the loss is acknowledged. Closed and replicated
        time do not wait for it, here or at peers. Its batches may be appended again, unless their table has no key and
        a peer may have them. If this was a dead writer's last OPEN file, that writer no longer holds back closed time.
        Tables with frames that a peer may never get become NEEDS_BOOTSTRAP there.

        Args:
            file: a WAL, or a CLOSED landing file.
            term: the current term.
            readable: its readable frames.
            into: a new landing file for the copies, OPEN and with nothing registered; it is CLOSED by this call.
            saved: the copies at their offsets in ``into``: the plan's ``wanted`` in order, then ``elsewhere``.
            keeps_tables: as in ``plan``.

        Raises:
            StaleTermError: a newer master was elected.
            MissingFileError: no such file.
            RequestError: the file is an OPEN landing file, a table without a key has applied an unknown part of the
                loss, or ``saved`` lacks wanted frames.
        """

    def acknowledged_losses(self) -> list[AcknowledgedLoss]:
        """Sequences lost by salvage that have not landed again, oldest first."""

    def acknowledged(self) -> dict[tuple[UUID, str], dict[FileId, Ranges]]:
        """Per (table, group) and WAL, all sequences lost by salvage, whether or not they have landed again."""
