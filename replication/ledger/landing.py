"""What a ledger does with landed and own bytes: register, claim, salvage. Part of ``base``, whose rules hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import UUID

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.phase import Phase
from replication.core.routes.carried import Carried, InboundRoute
from replication.core.routes.freshness import ClosedNotice
from replication.ledger.records import (
    AcknowledgedLoss,
    AtRisk,
    Claim,
    Divergence,
    FileRow,
    Landed,
    OwnLoss,
    Readable,
    Salvaged,
)


class LandingRecords(Protocol):
    """Registered and claimed bytes: landed ones and own ones."""

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

    def received(self, source: FileId) -> Ranges:
        """Durable and registered ranges of a peer's file."""

    def losses(self, sources: Sequence[FileId]) -> dict[FileId, tuple[int, Ranges]]:
        """Of those source files of which received ranges were salvaged: how often, and what is received now."""

    def at_risk(self, file: FileId, *, keeps_tables: bool = True) -> AtRisk:
        """What salvaging a landing file would lose, and where it may be found.

        Args:
            file: a CLOSED landing file.
            keeps_tables: whether this cluster has an own replay, so that somebody here waits for frames.

        Raises:
            MissingFileError: no such file.
            RequestError: it is no landing file, or still OPEN.
        """

    def give_up(
        self,
        file: FileId,
        term: int,
        readable: Sequence[Claim] = (),
        into: FileId | None = None,
        saved: Sequence[Claim] = (),
        *,
        keeps_tables: bool = True,
    ) -> Salvaged:
        """Forget a landing file that cannot be read, in one transaction; the own replay must not be running.

        What tables have applied of it stays claimed. The rest is claimed in ``into`` where ``saved`` has it, and else
        not at all, so that it counts when it comes again. What is copied goes from there to the peers that lack it, as
        far applied as it was. Received ranges with frames that are not claimed any more, or that a peer after this
        cluster lacks and that were not copied, are received no more, and the sources' ``losses`` tell the sender.
        It keeps what is not applied here. Once all that was received of its file is applied it may have let that go:
        tables with frames that a peer lacks and that are not copied then become NEEDS_BOOTSTRAP there.

        Args:
            file: a CLOSED landing file.
            term: the ledger's current one.
            readable: the frames of ``file`` that can be read, as they lie there, less those that are not copied though
                a table here or a peer needs them.
            into: a landing file made for the copies, OPEN and nothing registered; CLOSED with this.
            saved: the frames copied there: those of ``readable`` that somebody needs, in their order, then others.
            keeps_tables: as ``at_risk``.

        Raises:
            StaleTermError: a newer master was elected.
            MissingFileError, RequestError: as ``at_risk``; or it cannot be told what a table without key has applied;
                or a peer needs more than was saved.
        """

    def own_loss(self, file: FileId, readable: Readable, *, keeps_tables: bool = True) -> OwnLoss:
        """What salvaging a file that was written here, or copied from such, would mean now. Changes nothing.

        Args:
            file: a WAL that is CLOSED, or OPEN and without a writer.
            readable: what of it can be read.
            keeps_tables: whether this cluster has an own replay, so that somebody here waits for frames.

        Raises:
            MissingFileError: no such file.
            RequestError: it came from a peer.
        """

    def salvage_own(
        self,
        file: FileId,
        term: int,
        readable: Readable,
        into: FileId | None = None,
        saved: Sequence[Claim] = (),
        *,
        keeps_tables: bool = True,
    ) -> OwnLoss:
        """Forget a file that was written here, in one transaction; the own replay must not be running.

        What is copied is claimed in ``into``, as far applied as it was, and goes from there to every peer. What tables
        here have applied stays claimed. What is lost is claimed no more, so that it counts should it come back from a
        peer, and is acknowledged: neither closed nor replicated time waits for it, here or at peers. Tables with frames
        that a peer will not get become NEEDS_BOOTSTRAP there. A batch of which frames are lost may be appended again,
        unless its table has no key and a peer may have them. A dead writer whose last OPEN file this was holds closed
        time no more.

        Args:
            file: as ``own_loss``.
            term: the ledger's current one.
            readable: what of it can be read.
            into: a landing file made for the copies, OPEN and nothing registered; CLOSED with this.
            saved: what is copied there, ``own_loss().wanted`` at least, in the order of ``file``.
            keeps_tables: as ``own_loss``.

        Raises:
            StaleTermError: a newer master was elected.
            MissingFileError, RequestError: as ``own_loss``; or it cannot be told what a table without key has
                applied; or more is wanted than was saved.
        """

    def acknowledged_losses(self) -> list[AcknowledgedLoss]:
        """What was lost with files that were salvaged and has not come back, the oldest first."""

    def acknowledged(self) -> dict[tuple[UUID, str], dict[FileId, Ranges]]:
        """Per (table, group) and WAL, the sequences that went with files that were salvaged, come back or not."""

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

    def last_hash(self, stream: StreamId) -> tuple[int, bytes] | None:
        """Highest claimed sequence and its hash."""

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
