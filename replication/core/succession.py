"""Successions: the right to originate passes from one cluster to another; what of the first one's frames counts. Pure.

A succession ends the role epochs of its origin below its own. Frames of those epochs count up to the cut, by any route.
Frames beyond the cut are lost writes: they are kept, but not applied to tables. In a planned succession, a switchover,
the successor has everything, so every frame counts.

A cut has two parts: per table a time, up to which the successor has everything, and the sequences of the streams that
may have later frames. So it does not grow with all that the origin ever wrote.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from uuid import UUID

from replication.core.coverage import Ranges
from replication.core.frame import SealedHeader
from replication.core.ids import COUNT_END, MALFORMED, ClusterId, FileId, StreamId, check_group, check_name
from replication.core.roles import Role, RoleState
from replication.errors import FormatError, SuccessionError

#: As JSON; about 500,000 streams.
JSON_BYTES_MAX = 64 << 20
_JSON_ITEMS_MAX = 4 << 20
#: How often a lost cluster may have changed its role since it was last heard; a failover ends those epochs, too.
UNHEARD_MAX = 1000
#: An epoch grows by one with each change of a role, and by ``UNHEARD_MAX`` more with a failover.
EPOCH_AHEAD_MAX = 1 << 20
#: The most that a stream reports: the newest ones.
REPORTED_MAX = 64

Cut = Mapping[StreamId, Ranges]


@dataclass(frozen=True)
class Succession:
    """One change of the cluster that originates.

    Attributes:
        origin: the cluster that was ACTIVE.
        successor: the cluster that is ACTIVE from then on.
        epoch: the successor's role epoch. Under lower ones the origin originates nothing more.
        at: when it was decided, in microseconds since 1970.
        is_planned: whether the successor has everything, so that every frame counts.
        cut: if not planned, the sequences of the origin's own streams that count.
        complete_upto: if not planned, per table, the commit time up to which every frame counts, in ``cut`` or not.
    """

    origin: ClusterId
    successor: ClusterId
    epoch: int
    at: int
    is_planned: bool
    cut: Cut = field(default_factory=dict)
    complete_upto: Mapping[UUID, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """``east -> west, epoch 2``."""
        return f"{self.origin.name} -> {self.successor.name}, epoch {self.epoch}"

    @property
    def size(self) -> int:
        """The number of streams, ranges and tables in the cut. Each takes some 200 bytes of memory."""
        return sum(1 + len(ranges.spans) for ranges in self.cut.values()) + len(self.complete_upto)

    def leaves_out(self, header: SealedHeader) -> bool:
        """Whether a frame is a lost write: of an ended epoch of the origin, and beyond the cut."""
        if self.is_planned or header.wal.cluster != self.origin or header.role_epoch >= self.epoch:
            return False
        return not self.counts(header.stream, header.sequence, header.commit_hi)

    def counts(self, stream: StreamId, sequence: int, commit: int) -> bool:
        """Whether a frame of an ended epoch of the origin is within the cut; ``commit`` is its newest commit time."""
        if self.is_planned or 0 < commit <= self.complete_upto.get(stream.table, 0):
            return True
        counting = self.cut.get(stream)
        return counting is not None and counting.contains(sequence)

    def joined(self, other: Succession) -> Succession:
        """The same succession with the cuts of both: a cut only grows, when lost writes are merged.

        Raises:
            SuccessionError: the two name different successors of the origin for one epoch.
        """
        if replace(self, cut={}, at=0) != replace(other, cut={}, at=0):
            raise SuccessionError(
                f"two clusters have taken over from {self.origin.name}: {self}, and {other}",
                "Make one of them read-only: walship readonly on",
            )
        cut = dict(self.cut)
        for stream, ranges in other.cut.items():
            cut[stream] = ranges.union(cut.get(stream, Ranges()))
        return replace(self, at=min(self.at, other.at), cut=cut)

    def encode(self) -> bytes:
        """The compressed JSON form. The cut is grouped by WAL and table.

        Raises:
            FormatError: it is larger than ``decode`` takes.
        """
        by_wal: dict[str, dict[str, dict[str, list[list[int]]]]] = {}
        for stream, ranges in sorted(self.cut.items()):
            by_table = by_wal.setdefault(stream.wal.local, {})
            by_table.setdefault(stream.table.hex, {})[stream.group] = [list(span) for span in ranges]
        fields = {
            "origin": str(self.origin),
            "successor": str(self.successor),
            "epoch": self.epoch,
            "at": self.at,
            "planned": self.is_planned,
            "cut": by_wal,
            "complete_upto": {table.hex: at for table, at in self.complete_upto.items()},
        }
        text = json.dumps(fields, separators=(",", ":")).encode()
        if _is_large(text):
            raise FormatError(f"the cut of {self} has more streams than a succession may")
        return zlib.compress(text, 1)

    @staticmethod
    def decode(content: bytes) -> Succession:
        """Read the compressed JSON form, which may come from another cluster.

        Raises:
            FormatError: it is none, or larger than ``JSON_BYTES_MAX`` or 2^22 brackets and commas.
        """
        try:
            unpacking = zlib.decompressobj()
            text = unpacking.decompress(content, JSON_BYTES_MAX)
            if not unpacking.eof or _is_large(text):
                raise FormatError(f"a succession is cut short, or larger than {JSON_BYTES_MAX >> 20} MiB")
            return _decoded(json.loads(text))
        except (*MALFORMED, zlib.error) as error:
            raise FormatError(f"a succession cannot be read: {error}") from None


def _is_large(text: bytes) -> bool:
    """Whether JSON would take too much memory: of nested brackets, each takes 30 times its bytes."""
    return len(text) > JSON_BYTES_MAX or sum(map(text.count, (b"[", b"{", b","))) > _JSON_ITEMS_MAX


def _decoded(fields: Mapping[str, object]) -> Succession:
    origin, successor = ClusterId.parse(str(fields["origin"])), ClusterId.parse(str(fields["successor"]))
    epoch, at = _count(fields["epoch"]), _count(fields["at"])
    planned, by_wal, complete = fields["planned"], fields["cut"], fields["complete_upto"]
    if not (isinstance(planned, bool) and isinstance(by_wal, dict) and isinstance(complete, dict)):
        raise FormatError("a succession has no such cut")
    if planned and (by_wal or complete):
        raise FormatError("a planned succession has no cut")
    if origin.name == successor.name or epoch < 2:
        raise FormatError(f"{origin.name} -> {successor.name}, epoch {epoch}, is not a succession")
    cut: dict[StreamId, Ranges] = {}
    for local, by_table in by_wal.items():
        slot, _, number = str(local).partition("/")
        wal = FileId(origin, check_name(slot, "host slot"), _count(int(number)))
        for text, by_group in by_table.items():
            table = UUID(text)
            for group, spans in by_group.items():
                counted = Ranges.union_of((_count(begin), _count(end)) for begin, end in spans)
                cut[StreamId(wal, table, check_group(group))] = counted
    complete_upto = {UUID(text): _count(time) for text, time in complete.items()}
    return Succession(origin, successor, epoch, at, planned, cut, complete_upto)


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < COUNT_END:
        raise FormatError(f"{value!r} is not a count")
    return value


@dataclass(frozen=True)
class Successions:
    """Every succession that a cluster knows."""

    all: tuple[Succession, ...] = ()

    @cached_property
    def _unplanned(self) -> Mapping[ClusterId, tuple[Succession, ...]]:
        made: dict[ClusterId, tuple[Succession, ...]] = {}
        for each in self.all:
            if not each.is_planned:
                made[each.origin] = (*made.get(each.origin, ()), each)
        return made

    def leaving_out(self, header: SealedHeader) -> Succession | None:
        """The succession by which a frame is a lost write; None when the frame counts."""
        if not self._unplanned:
            return None
        return next((each for each in self._unplanned.get(header.wal.cluster, ()) if each.leaves_out(header)), None)

    def of(self, origin: ClusterId) -> Succession | None:
        """The newest succession of a cluster; None when it was never succeeded."""
        return max((each for each in self.all if each.origin == origin), key=lambda each: each.epoch, default=None)

    def last_of(self, origin: ClusterId) -> Succession | None:
        """The newest succession of a cluster, or of its successor, and so on: its successor is the ACTIVE cluster."""
        last = self.of(origin)
        while last is not None and (later := self.of(last.successor)) is not None and later.epoch > last.epoch:
            last = later
        return last

    @property
    def reported(self) -> tuple[Succession, ...]:
        """Those that a stream reports, oldest first."""
        return tuple(sorted(self.all, key=lambda each: (each.epoch, each.origin))[-REPORTED_MAX:])


def common(one: Cut, two: Cut) -> dict[StreamId, Ranges]:
    """The sequences that both have; streams without any are left out."""
    shared = {stream: ranges.intersect(two[stream]) for stream, ranges in one.items() if stream in two}
    return {stream: ranges for stream, ranges in shared.items() if ranges}


def beyond(covered: Cut, cut: Cut) -> dict[StreamId, Ranges]:
    """What of ``covered`` a cut leaves out; streams of which it leaves out nothing are left out."""
    left = {stream: ranges.subtract(cut.get(stream, Ranges())) for stream, ranges in covered.items()}
    return {stream: ranges for stream, ranges in left.items() if ranges}


def cut_of(frames: Iterable[tuple[StreamId, int]]) -> dict[StreamId, Ranges]:
    """A cut of these frames only."""
    return Ranges.by_key((stream, (sequence, sequence + 1)) for stream, sequence in frames)


def without(cut: Cut, frames: Iterable[tuple[StreamId, int]]) -> dict[StreamId, Ranges]:
    """A cut without some frames; streams without any sequence left are left out."""
    return beyond(cut, cut_of(frames))


def contested(
    own: ClusterId, state: RoleState, known: Sequence[Succession], former: Sequence[ClusterId] = ()
) -> tuple[Succession, ...]:
    """The successions by which another cluster takes writes in place of an ACTIVE one; none when all is well.

    Either another one took over from it, or from a ``former`` incarnation, and it has not taken over again since. Or it
    took over from an origin that has changed its role with others since.
    """
    if state.role is not Role.ACTIVE:
        return ()
    ids = {own, *former}
    mine = max((each for each in known if each.successor in ids), key=lambda each: each.epoch, default=None)
    since = 0 if mine is None else mine.epoch

    def contests(other: Succession) -> bool:
        from_origin = mine is not None and other != mine and mine.origin in (other.origin, other.successor)
        return other.epoch >= since and (other.origin in ids or from_origin)

    return tuple(filter(contests, known))


def check_epoch(epoch: int, highest: int) -> None:
    """Raise SuccessionError when no changes of roles can have led from ``highest``, the newest known, to ``epoch``."""
    if epoch > highest + EPOCH_AHEAD_MAX:
        raise SuccessionError(
            f"role epoch {epoch} is too far above {highest}, the newest that is known here",
            "Find out which cluster made it: a change of a role raises it by one, a failover by 1,001",
        )


def next_epoch(*known: int) -> int:
    """The epoch of a successor: above every epoch that is known, so that epochs order successions."""
    return max(known, default=0) + 1


def after(state: RoleState, succession: Succession) -> RoleState:
    """The state of the origin once it knows of its succession: STANDBY with the successor's epoch, unless it is newer.

    Raises:
        SuccessionError: it is ACTIVE under an epoch that the succession did not end.
    """
    if state.epoch < succession.epoch:
        return RoleState(Role.STANDBY, succession.epoch)
    if state.role is Role.ACTIVE and state.epoch == succession.epoch:
        raise SuccessionError(
            f"{succession.origin.name} and {succession.successor.name} are both ACTIVE with role epoch {state.epoch}",
            "Make one of them read-only: walship readonly on",
        )
    return state
