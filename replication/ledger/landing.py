"""Landed and claimed bytes in the ledger: coverage, received ranges, inbound routes. Part of ``base``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.routes.carried import InboundRoute
from replication.ledger.files import FileRow

#: Source files of one cluster, by name, that are remembered; past it new ones are refused.
SOURCES_MAX = 1_000_000


class LandingRecords(Protocol):
    """Coverage, received ranges, terms of sources, and the routes that bring frames here."""

    def received(self, source: FileId) -> Ranges:
        """Durable and registered ranges of a peer's file."""

    def accept_term(self, source: FileId, term: int) -> bool:
        """Keep the highest term per source file; False when ``term`` is older.

        Raises:
            NoSpaceError: the file is new, and ``SOURCES_MAX`` files of clusters of that name are known.
        """

    def keep_epoch(self, source: ClusterId, epoch: int) -> int:
        """Keep the highest role epoch that a cluster has shipped under, and return it.

        A result above ``epoch`` means that ``epoch`` is stale (rule 6).
        """

    def applied_prefix(self, sources: Sequence[FileId], *, keeps_tables: bool = True) -> dict[FileId, int]:
        """How far each source file is applied here: the end of a prefix, in the source's offsets.

        On a cluster without tables landed bytes count as applied; its landing files are retained for its own peers.
        Exact to within one registration. A sender that starts later registers the bytes it skips as empty ranges.
        """

    def coverage(self, table: UUID | None = None) -> dict[StreamId, Ranges]:
        """Claimed sequences per stream."""

    def newest(self, cluster: ClusterId) -> tuple[FileId, ...]:
        """The highest file of a cluster, per host slot, that this ledger has frames or received ranges of."""

    def declare_routes(self, routes: Sequence[InboundRoute]) -> None:
        """Store routes of one sender in one transaction; their ``last_seen`` is not read.

        A newer generation replaces an older one. The same generation replaces an open route, but never returns to an
        earlier phase. An older one changes nothing. The table's replicated time does not advance while the sender's
        rule is not LIVE.
        """

    def routes(self) -> list[InboundRoute]:
        """The open routes into this cluster, by source, table and group; their ``last_seen`` is 0, see ``last_seen``.

        While none changes, they are the same objects.
        """

    def last_seen(self) -> dict[ClusterId, int]:
        """When each cluster that sends here, or did once, last sent anything, in microseconds since 1970."""

    def carried_by(self, source: ClusterId) -> frozenset[ClusterId]:
        """Every origin that routes of ``source`` carry, or carried once."""

    def repeats(self, stream: StreamId, sequence: int) -> list[tuple[FileRow, int, int]]:
        """Landing files with a duplicate of the frame, each with the ``[begin, end)`` that contains it."""

    def duplicates(self, file: FileId, begin: int, end: int) -> Ranges:
        """Ranges of a landing file in ``[begin, end)`` whose frames are duplicates and need not be forwarded.

        Empty when received ranges of the file's source were ever salvaged. Frames that its sender repeats may be
        missing at this cluster's peers although they are claimed here.
        """

    def close_route(self, source: ClusterId, table: UUID, group: str, generation: int) -> None:
        """Close a route up to ``generation``, because the sender's rule has ended; it requires nothing more."""

    def keep_refused(self, host: str, report: str) -> None:
        """Replace a host's report of refused messages."""

    def refused(self) -> dict[str, str]:
        """The hosts' reports of refused messages."""
