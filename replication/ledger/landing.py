"""What a ledger knows of landed and claimed bytes: coverage, received ranges, routes. Part of ``base``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import UUID

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.phase import Phase
from replication.core.routes.carried import Carried, InboundRoute
from replication.ledger.files import FileRow


class LandingRecords(Protocol):
    """Coverage, received ranges, terms of sources, and the routes that bring frames here."""

    def received(self, source: FileId) -> Ranges:
        """Durable and registered ranges of a peer's file."""

    def accept_term(self, source: FileId, term: int) -> bool:
        """Keep the highest term per source file; False when ``term`` is older."""

    def keep_epoch(self, source: ClusterId, epoch: int) -> int:
        """Keep the highest role epoch that a cluster has shipped under, and return it.

        More than ``epoch``: the caller has not seen a role change yet (rule 6).
        """

    def applied_prefix(self, sources: Sequence[FileId], *, keeps_tables: bool = True) -> dict[FileId, int]:
        """How far each source file is applied here, as a prefix of the source's offsets from its header's end.

        On a cluster that keeps no tables, what has landed counts: its landing files are held by the peers after it.
        Exact to within a registration; a sender that starts later registers what it skips before as empty ranges.
        """

    def coverage(self, table: UUID | None = None) -> dict[StreamId, Ranges]:
        """Claimed sequences per stream."""

    def newest(self, cluster: ClusterId) -> tuple[FileId, ...]:
        """The highest file of a cluster that is known here, by its frames or by its bytes, of each host slot."""

    def declare_route(
        self,
        source: ClusterId,
        table: UUID,
        group: str,
        generation: int,
        required_from: Mapping[FileId, int],
        acknowledged: Mapping[FileId, Ranges] | None = None,
        carried: Sequence[Carried] = (),
        phase: Phase = Phase.LIVE,
    ) -> None:
        """Where a sender's route starts in each WAL, less acknowledged gaps; WALs that are not named start at 0.

        It requires its own WALs, and those of the origins that it says it carries. A newer generation replaces an older
        one; the same generation replaces what was declared while the route is open, but does not go back to an earlier
        phase; an older one changes nothing. While the sender's rule is not LIVE replicated time of the table stands.
        """

    def routes(self) -> list[InboundRoute]:
        """The open routes into this cluster, by source, table and group."""

    def repeats(self, stream: StreamId, sequence: int) -> list[tuple[FileRow, int, int]]:
        """Landing files that are kept in which a frame landed again, with the ``[begin, end)`` that has it."""

    def duplicates(self, file: FileId, begin: int, end: int) -> Ranges:
        """Ranges of a landing file between ``begin`` and ``end`` whose frames are claimed elsewhere.

        They need not be sent on. None are, while the sender of the file has something to make good that was lost here:
        what then comes again may be lacking at clusters after this one, though it is claimed here.
        """

    def close_route(self, source: ClusterId, table: UUID, group: str, generation: int) -> None:
        """The sender's rule of that generation, or an older one, has ended: it requires nothing more."""
