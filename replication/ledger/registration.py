"""Registration: durable bytes count, and their sequences are claimed, in one transaction. Part of ``base``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.routes.freshness import ClosedNotice


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
class Divergence:
    """A frame whose sequence is claimed already with another hash: two histories of one stream."""

    claim: Claim
    file: FileId
    held_by: FileId


class Registration(Protocol):
    """Registers bytes of files: landed ones and own ones."""

    def register(self, landed: Sequence[Landed]) -> list[Divergence]:
        """Register groups of landed bytes in one transaction, claiming their sequences.

        A sequence claimed before is marked duplicate in the file; one whose hash differs is returned as divergence
        and is not claimed. Moves the files' ``length`` and the sources' received ranges. Registering the same again
        has no effect. A range of a source that holds nothing for this cluster is registered with ``begin == end``.

        Raises:
            GapError: ``begin`` is not the file's registered length.
            ClosedFileError: past the length the file was CLOSED at.
            MissingFileError: no such file.
        """

    def register_own(
        self, file: FileId, begin: int, end: int, claims: Sequence[Claim], notices: Sequence[ClosedNotice] = ()
    ) -> list[Divergence]:
        """The same for this host's own WAL or control file; ``begin`` must be the registered length."""
