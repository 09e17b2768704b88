"""Registration: durable bytes count, and their sequences are claimed, in one transaction. Part of ``base``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from replication.core.ids import FileId
from replication.core.routes.freshness import ClosedNotice
from replication.ledger.records import (
    Claim,
    Divergence,
    Landed,
)


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
