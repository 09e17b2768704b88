"""What a ledger does when a file is lost or damaged: say what that loses, and forget the file. Part of ``base``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from replication.core.coverage import Ranges
from replication.core.ids import FileId, StreamId
from replication.ledger.files import FileRow
from replication.ledger.registration import Claim


@dataclass(frozen=True, slots=True)
class AtRisk:
    """What goes with a landing file that is salvaged, but for what can be saved.

    ``sequences`` are claimed in it and not wholly applied, ``applied`` is how far each table is in it, ``duplicates``
    are
    ``[begin, end)`` of other files where some of these sequences landed as duplicates. ``lacked`` are the bytes that
    some peer lacks, per (table, group) that goes there.
    """

    row: FileRow
    sequences: Mapping[StreamId, Ranges]
    applied: Mapping[UUID, int]
    duplicates: tuple[tuple[FileRow, int, int], ...]
    lacked: Mapping[tuple[UUID, str], Ranges]


@dataclass(frozen=True, slots=True)
class Salvaged:
    """What became of a landing file that was salvaged.

    ``again`` are the source's ranges that the sender is asked for anew; ``dropped`` the sequences that are claimed no
    more until they come again; ``saved`` those that are claimed in the file of copies now. ``lacking`` says of which
    tables a peer may not get what it is required, since the sender may have let it go, and of how many frames at
    most.
    """

    file: FileId
    source: FileId | None
    again: Ranges
    dropped: Mapping[StreamId, Ranges]
    saved: Mapping[StreamId, Ranges]
    lacking: Mapping[str, Mapping[UUID, int]]


@dataclass(frozen=True, slots=True)
class Readable:
    """What of a file can be read: its whole frames, as they lie there, and where its frames ``end``.

    ``last`` is the last sequence of each stream by its end record; None when that cannot be read.
    """

    end: int
    frames: tuple[Claim, ...] = ()
    last: Mapping[StreamId, int] | None = None


@dataclass(frozen=True, slots=True)
class OwnLoss:
    """What salvaging a file that was written here means.

    ``wanted`` can be read, and a table here or a peer still needs it. ``lost`` cannot be read, and no table here has
    applied it; ``at_peers`` is what of that each peer has. ``lacking`` says of which tables a peer will not get what it
    is required, and of how many frames at most. Of ``unreadable_bytes`` nobody can tell what ``untold_bytes``
    held.
    ``doubtful`` are tables without key of which it cannot be told whether they have applied some of what is lost.
    """

    row: FileRow
    wanted: tuple[Claim, ...]
    lost: Mapping[StreamId, Ranges]
    at_peers: Mapping[str, Mapping[StreamId, Ranges]]
    lacking: Mapping[str, Mapping[UUID, int]]
    unreadable_bytes: int
    untold_bytes: int
    doubtful: frozenset[UUID]


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

    def at_risk(self, file: FileId, *, keeps_tables: bool = True) -> AtRisk:
        """What salvaging a landing file would lose, and where it may be found.

        Args:
            file: a CLOSED landing file.
            keeps_tables: whether this cluster has an own replay, so that somebody here waits for frames.

        Raises:
            MissingFileError: no such file.
            RequestError: it is no landing file, or still OPEN.
        """

    def salvage_landing(
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
