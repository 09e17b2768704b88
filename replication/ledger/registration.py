"""Registration of durable bytes and claiming of their sequences, in one transaction. Part of ``base``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from replication.core.frame import FrameView
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.routes.freshness import ClosedNotice
from replication.ledger.batches import BatchPart


@dataclass(frozen=True, slots=True)
class Claim:
    """One frame in a file: its place there and in its stream. ``commit`` is the header's ``commit_hi``."""

    stream: StreamId
    sequence: int
    previous: bytes
    hash: bytes
    begin: int
    end: int
    commit: int

    @staticmethod
    def of(frame: FrameView, begin: int, end: int) -> Claim:
        """The claim of a frame that lies, or will lie, at ``[begin, end)`` of a file."""
        header = frame.header
        return Claim(header.stream, header.sequence, header.previous, frame.hash, begin, end, header.commit_hi)


@dataclass(frozen=True, slots=True)
class LandedPart:
    """A frame that has a batch id; it was written under role epoch ``epoch`` of its origin."""

    table: UUID
    batch_id: str
    part: BatchPart
    epoch: int
    commit: int


@dataclass(frozen=True, slots=True)
class Landed:
    """New bytes of a landing file: its bytes ``[begin, end)`` hold ``[source_begin, source_end)`` of the source.

    The batch ids of ``parts`` exist from then on, unless another cluster has taken over from their origin by then.
    """

    file: FileId
    begin: int
    end: int
    source: FileId
    source_begin: int
    source_end: int
    claims: tuple[Claim, ...]
    notices: tuple[tuple[ClusterId, ClosedNotice], ...] = ()
    parts: tuple[LandedPart, ...] = ()


@dataclass(frozen=True, slots=True)
class Divergence:
    """A frame whose sequence is claimed already with another hash: two histories of one stream."""

    claim: Claim
    file: FileId
    held_by: FileId


class Registration(Protocol):
    """Registers durable bytes of landing files and of own files."""

    def register(self, landed: Sequence[Landed]) -> list[Divergence]:
        """Register groups of landed bytes in one transaction and claim their sequences.

        A frame whose sequence was claimed before is marked as a duplicate. A frame whose hash contradicts a claim is
        returned as a divergence and is not claimed. Moves the files' ``length`` and the sources' received ranges.
        Registering the same bytes again has no effect. A source range with nothing for this cluster is registered with
        ``begin == end``.

        Raises:
            GapError: ``begin`` is not the file's registered length.
            ClosedFileError: ``end`` is past the length that the file was CLOSED at.
            MissingFileError: no such file.
        """

    def register_own(
        self, file: FileId, begin: int, end: int, claims: Sequence[Claim], notices: Sequence[ClosedNotice] = ()
    ) -> list[Divergence]:
        """The same for this host's own WAL or control file; ``begin`` must be the registered length."""
