"""What a ledger does when a file is lost or damaged: say what salvaging it means, and do it. Part of ``base``."""

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
    """What of a file its sender certainly has. Nothing else tells files that were written here from landed ones."""

    NOTHING = "nothing"
    """There is no sender: the file was written here, or copied from such."""
    WHAT_IS_NOT_APPLIED = "what_is_not_applied"
    """It keeps what is not applied here; the rest it may have deleted."""
    EVERYTHING = "everything"
    """It keeps its whole file, since some of that is not applied here."""


@dataclass(frozen=True, slots=True)
class Readable:
    """What can be read of a file: its whole frames, as they lie there, and where its frames ``end``.

    ``last`` is the last sequence of each stream by its end record; None when that cannot be read. ``elsewhere`` are
    whole frames that landed as duplicates in other files, as they lie there.
    """

    end: int
    frames: tuple[Claim, ...] = ()
    last: Mapping[StreamId, int] | None = None
    elsewhere: tuple[Claim, ...] = ()


@dataclass(frozen=True, slots=True)
class SalvagePlan:
    """What salvaging a file means.

    ``wanted`` can be read, and a table here or a peer still needs it: it is copied, and so is what of ``elsewhere``
    cannot be read in the file itself. ``lost`` can be read nowhere, and no table here has applied it. A sender is asked
    for it: ``again`` are the ranges of its file. Without a sender it is an acknowledged loss, and ``at_peers`` is what
    each peer has of it. ``lacking`` counts per peer and table the frames that the peer may never get. Nobody knows what
    ``unknown_bytes`` of the ``unreadable_bytes`` held. ``doubtful`` are tables without a key that have applied an
    unknown part of what is lost: the file cannot be salvaged.
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

    @property
    def saved(self) -> dict[StreamId, Ranges]:
        """The sequences that are copied."""
        made: dict[StreamId, Ranges] = {}
        for claim in (*self.wanted, *self.elsewhere):
            made[claim.stream] = made.get(claim.stream, Ranges()).add(claim.sequence, claim.sequence + 1)
        return made


@dataclass(frozen=True, slots=True)
class AcknowledgedLoss:
    """Sequences that went with ``file``, which was written here and salvaged at ``at``; those that came back are not.

    Nobody waits for them: they are acknowledged in what this cluster requires.
    """

    stream: StreamId
    sequences: Ranges
    file: FileId
    at: int


class Salvage(Protocol):
    """Salvage of lost and damaged files, and what was lost with them."""

    def losses(self, sources: Sequence[FileId]) -> dict[FileId, tuple[int, Ranges]]:
        """Of those source files of which received ranges were salvaged: how often, and what is received now."""

    def plan(
        self,
        file: FileId,
        readable: Readable,
        *,
        keeps_tables: bool = True,
        applied: Mapping[UUID, int] = MappingProxyType({}),
    ) -> SalvagePlan:
        """What ``carry_out`` would do now. Changes nothing.

        Args:
            file: a file that nobody writes.
            readable: what can be read of it.
            keeps_tables: whether this cluster has an own replay, so that somebody here waits for frames.
            applied: up to where tables have applied the file, where the ledger has not recorded that yet.

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
        """Forget a file, in one transaction; the own replay must not be running. Returns what was done.

        What tables here have applied stays claimed. What is copied is claimed in ``into``, as far applied as it was,
        and goes from there to the peers that lack it. What is lost is claimed no more, so that it counts when it comes
        again. With a sender, received ranges with lost frames, or with unreadable ones that a peer lacks, count as
        received no more, and ``losses`` tells the sender. Without one the loss is acknowledged: neither closed nor
        replicated time waits for it, here or at peers; its batches may be appended again, unless their table has no key
        and a peer may have them; and a dead writer whose last OPEN file this was holds closed time no more. Tables with
        frames that a peer may never get become NEEDS_BOOTSTRAP there.

        Args:
            file: a WAL, or a CLOSED landing file.
            term: the ledger's current one.
            readable: what can be read of it.
            into: a landing file made for the copies, OPEN and nothing registered; CLOSED with this.
            saved: the copies, as they lie in ``into``: of the plan's ``wanted`` in their order, then ``elsewhere``.
            keeps_tables: as ``plan``.

        Raises:
            StaleTermError: a newer master was elected.
            MissingFileError: no such file.
            RequestError: it is an OPEN landing file; a table without a key has applied an unknown part of what is lost;
                or more is wanted than was saved.
        """

    def acknowledged_losses(self) -> list[AcknowledgedLoss]:
        """What was lost with files that were salvaged and has not come back, the oldest first."""

    def acknowledged(self) -> dict[tuple[UUID, str], dict[FileId, Ranges]]:
        """Per (table, group) and WAL, the sequences that went with files that were salvaged, come back or not."""
