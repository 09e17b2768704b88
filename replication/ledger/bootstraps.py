"""Bootstraps in the ledger, sent and received. The guarantees of ``base`` apply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.routes.bootstrap import Coverage, Purged
from replication.ledger.files import FileRow


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """A table that is being bootstrapped at a peer, under its rules up to ``generation``.

    ``file`` is the bootstrap file to send, None before it is begun. ``waits_for`` says what must happen before the file
    can be written; "" when it can be written now.
    """

    peer: str
    table: UUID
    groups: tuple[str, ...]
    generation: int
    file: FileRow | None = None
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class PassedOn:
    """A table's bootstrap that was received from ``source`` and is forwarded to ``peer``."""

    peer: str
    table: UUID
    source: ClusterId


class Bootstraps(Protocol):
    """Bootstraps sent to peers and received from them."""

    def wanted(self) -> list[Bootstrap]:
        """Every (peer, table) with BOOTSTRAPPING rules."""

    def coverage(self, table: UUID, groups: Sequence[str]) -> list[Coverage]:
        """The sequences that the table has applied here, per group, in one snapshot. Later reads include them."""

    def covered(self, wanted: Bootstrap) -> tuple[list[Coverage], int]:
        """Return the ``coverage`` that the file for ``wanted`` may state, and the replay commit that holds it.

        The file's rows must be read from a table that has this commit. It is the number of the newest checkpoint, 0
        without one. Both values come from one snapshot. Discarded frames are not covered: their rows are sent by a
        bootstrap after a retry.

        Raises:
            RequestError: the table has not applied everything from before the rules' begin, or keeps lost writes; see
                ``waits_for``.
        """

    def begin_file(self, wanted: Bootstrap, host: str, directory: str, boot: str) -> FileRow:
        """Add an OPEN file for ``wanted``; drop an earlier one.

        Raises:
            RequestError: the rules have ended or begun again since.
        """

    def finish_file(self, file: FileId, length: int) -> None:
        """Mark a durable file CLOSED at ``length``; it can then be shipped.

        Raises:
            MissingFileError: the file was dropped since.
        """

    def is_applied(self, file: FileId) -> bool:
        """Whether the peer has reported all of a finished file applied."""

    def passed_on(self) -> frozenset[PassedOn]:
        """Bootstraps received and applied here, with each peer that has yet to apply them."""

    def keep_known(self, peer: str, table: UUID, generation: int, known: Mapping[StreamId, Ranges]) -> None:
        """Store the sequences that a peer has already: its bootstrap of that generation leaves their rows out."""

    def known(self, wanted: Bootstrap) -> Mapping[StreamId, Ranges]:
        """The sequences stored for a bootstrap; none when they are of another generation."""

    def adopt(self, parts: Sequence[tuple[FileId, int, int, Coverage]]) -> Mapping[StreamId, Ranges]:
        """Claim the unclaimed sequences of a received bootstrap.

        One transaction claims all, or two bootstraps of a table could each wait for what the other has claimed.
        ``parts`` are the coverages of its groups, each with the file and the bytes ``[begin, end)`` to claim it for.
        Frames that land later with these sequences are duplicates. Replay of the bootstrap applies the rows. Of this
        cluster's own WALs only sequences of acknowledged losses are claimed: the others come from the WALs themselves.

        Returns:
            The sequences claimed there, by this call and earlier ones: replay takes their rows.

        Raises:
            DivergenceError: the hashes contradict earlier claims. Nothing was changed.
        """

    def note_purged(self, table: UUID, purged: Purged) -> None:
        """Record for which timestamps a table no longer has deletes and rows; call it before they are removed.

        Also call it with a bootstrap source's record before its rows are taken: they are missing here then, too.
        """

    def purged(self, table: UUID) -> Purged:
        """The join of everything passed to ``note_purged``."""
