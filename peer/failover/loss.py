"""What a failover loses: frames that the lost cluster announced and that are not here, and what a cut leaves out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from peer.failover.opening import Opening
from replication.core.coverage import Ranges
from replication.core.ids import NIL_UUID, ClusterId, StreamId
from replication.core.routes.freshness import ClosedNotice
from replication.ledger.base import Ledger
from replication.wall_clock import now_us

_NONE = Ranges()


@dataclass(frozen=True, slots=True)
class TableLoss:
    """What is known to be lost of a table.

    Attributes:
        table: its name.
        frames: frames that the lost cluster announced and that have not landed here; their rows are not known.
        rows: mutations that landed here and are left out.
        bytes: the size of their frames.
    """

    table: str
    frames: int
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Loss:
    """What a failover would lose.

    Attributes:
        tables: those with frames that are known to be missing, or with rows that are left out.
        announced: the time, in microseconds since 1970, up to which the origin announced what it acked; 0 if never.
        seconds: what it acked in the last so many seconds is lost or not known here; None if it never announced any, or
            if its clock is ahead of the one here, so that nobody can tell.
        upto: nothing that it acked up to this time is lost, and all that it acked later; 0 when that is not known.
        uncut: tables that keep what they have of later rows, and why.
    """

    tables: tuple[TableLoss, ...]
    announced: int
    seconds: float | None
    upto: int = 0
    uncut: tuple[str, ...] = ()

    @property
    def frames(self) -> int:
        """Frames that are known to be missing."""
        return sum(table.frames for table in self.tables)

    @property
    def rows(self) -> int:
        """Rows that landed and are left out."""
        return sum(table.rows for table in self.tables)

    def is_under(self, seconds: float) -> bool:
        """Whether no more than the last ``seconds`` are lost."""
        is_bounded = self.seconds is not None and self.seconds <= seconds
        return is_bounded and (self.upto > 0 or not self.frames)


def loss_of(ledger: Ledger, origin: ClusterId, opening: Opening) -> Loss:
    """What the origin is known to have acked that would not count here, and for how long nothing is known."""
    notice, now = ledger.time.announced(origin), now_us()
    names = {spec.uuid: spec.name for spec in ledger.tables.all()}
    there = ledger.time.reached({stream: last for stream, last in notice.streams if stream.table in names})
    missing = missing_frames(notice, {stream: reach.covered for stream, reach in there.items()}, names)
    rows, sizes = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for frame in opening.left_out:
        if (table := frame.header.table) in names:  # else it was dropped just now
            rows[table] += frame.header.row_count
            sizes[table] += frame.bytes
    tables = tuple(
        TableLoss(names[table], missing.get(table, 0), rows[table], sizes[table])
        for table in sorted(names, key=names.__getitem__)
        if table in missing or rows[table]
    )
    since = opening.upto or notice.t
    seconds = (time_at(ledger, origin) - since) / 1e6 if 0 < since <= now else None
    return Loss(tables, notice.t, seconds, opening.upto, opening.uncut)


def time_at(ledger: Ledger, origin: ClusterId) -> int:
    """The time now; by the origin's clock where that is known to be ahead. What it acked by now is earlier."""
    now = now_us()
    ahead = (clock for clock in ledger.time.ahead() if clock.origin == origin and clock.commit > now)
    return max(now + max((clock.commit - clock.at for clock in ahead), default=0), ledger.time.announced(origin).t)


def missing_frames(notice: ClosedNotice, covered: Mapping[StreamId, Ranges], tables: Iterable[UUID]) -> dict[UUID, int]:
    """How many frames of each table a notice lists that are not covered. Pure."""
    wanted, missing = set(tables) - {NIL_UUID}, dict[UUID, int]()
    for stream, last in notice.streams:
        frames = covered.get(stream, _NONE).missing(0, last + 1).total if stream.table in wanted else 0
        if frames:
            missing[stream.table] = missing.get(stream.table, 0) + frames
    return missing
