"""Finds bootstraps that have arrived whole in landing files, by the frames' headers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from peer.frames.decode import FrameRef
from peer.frames.hosts import HostReader
from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES, FrameKind, check_payload
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.routes.bootstrap import Coverage
from replication.errors import ReplicationError, RequestError
from replication.ledger.base import Pending

_HELD_MAX = 1 << 21  # frames, and WALs and intervals of their coverage: of 200 to 500 bytes each


@dataclass(frozen=True, slots=True)
class ReceivedBootstrap:
    """A whole bootstrap: its frames of rows, the coverage of each stream, and the file ranges that it takes."""

    table: UUID
    rows: tuple[FrameRef, ...]
    coverages: tuple[tuple[FrameRef, Coverage], ...]
    ranges: Mapping[FileId, tuple[int, int]]


@dataclass(slots=True)
class _Stream:
    rows: dict[int, FrameRef] = field(default_factory=dict)
    parts: dict[int, tuple[FrameRef, Coverage]] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        last = max(self.parts, default=-1)
        return last >= 0 and not self.parts[last][1].continues and len(self.rows) + len(self.parts) == last + 1

    @property
    def coverage(self) -> tuple[FrameRef, Coverage]:
        """The stream's last frame, and the joined coverage of its coverage frames."""
        of_frames = [self.parts[at] for at in sorted(self.parts)]
        return of_frames[-1][0], Coverage.joined([part for _, part in of_frames])


@dataclass(slots=True)
class _Seen:
    """What a file has up to an offset, and how much of ``_HELD_MAX`` that is."""

    upto: int = FILE_HEADER_BYTES
    frames: list[tuple[FrameRef, Coverage | None]] = field(default_factory=list)
    size: int = 0


class ReceivedBootstraps:
    """Scans received bootstraps. A process reads each byte of a file once.

    What a sender's bootstraps hold is bounded: past that the later ones wait until the earlier ones are gone.
    """

    def __init__(self) -> None:
        self._seen: dict[FileId, _Seen] = {}

    def whole(
        self, reader: HostReader, pending: Sequence[Pending]
    ) -> tuple[list[ReceivedBootstrap], dict[FileId, str]]:
        """The bootstraps of which every frame has arrived, in one file or several; and the errors of unreadable files.

        ``pending`` are the ranges of received bootstrap files that are not applied.
        """
        bootstraps, broken = self._by_bootstrap(reader, pending)
        found = [self._of(reader, parts) for parts in bootstraps]
        return [received for received in found if received is not None], broken

    def ended(
        self, reader: HostReader, pending: Sequence[Pending], routes: Container[tuple[ClusterId, UUID]]
    ) -> dict[UUID, dict[FileId, tuple[int, int]]]:
        """By table, the ranges of bootstraps that will never be whole.

        That is so when no open route brings the table from there, or a whole bootstrap replaces this one. It is also so
        when a whole one covers everything that has arrived of it. In the last case the rest counts as landed and is not
        sent. ``pending`` is as for ``whole``.
        """
        made: dict[UUID, dict[FileId, tuple[int, int]]] = {}
        bootstraps = self._by_bootstrap(reader, pending)[0]
        frames = [[frame for part in parts for frame, _ in self._frames(reader, part)] for parts in bootstraps]
        first = [of_bootstrap[0] for of_bootstrap in frames]
        whole = [self._of(reader, parts) for parts in bootstraps]
        for at, parts in enumerate(bootstraps):
            if whole[at]:
                continue
            table = first[at].table
            gone: list[Pending] = []
            if any(
                _replaces(first[of], first[at], of > at) or _covers(each, frames[at])
                for of, each in enumerate(whole)
                if each is not None and each.table == table  # of very many tables that wait at once
            ):
                gone = parts
            elif not any(part.row.source is None or (part.row.source.cluster, table) in routes for part in parts):
                gone = [part for part in parts if part.row.closed]
            if gone:
                made[table] = made.get(table, {}) | {part.row.file: (part.begin, part.end) for part in gone}
        return made

    def _by_bootstrap(
        self, reader: HostReader, pending: Sequence[Pending]
    ) -> tuple[list[list[Pending]], dict[FileId, str]]:
        """The pending ranges by the bootstrap file that they were sent from; and the errors of unreadable files."""
        self._seen = {part.row.file: self._seen.get(part.row.file, _Seen()) for part in pending}
        made: dict[FileId, list[Pending]] = {}
        broken: dict[FileId, str] = {}
        first = {part.row.source: at for at, part in reversed(list(enumerate(pending)))}
        held = Counter[str]()  # by sender
        for part in sorted(pending, key=lambda part: first[part.row.source]):  # one after another, so that one is whole
            sender = part.row.source.cluster.name if part.row.source is not None else ""
            try:
                frames = self._frames(reader, part, _HELD_MAX - held[sender])
            except ReplicationError as error:
                broken[part.row.file] = error.what
                continue
            finally:
                held[sender] += self._seen[part.row.file].size
            if frames:
                made.setdefault(frames[0][0].wal, []).append(part)
        return list(made.values()), broken

    def _of(self, reader: HostReader, parts: Iterable[Pending]) -> ReceivedBootstrap | None:
        streams: dict[StreamId, _Stream] = {}
        ranges: dict[FileId, tuple[int, int]] = {}
        for part in parts:
            ranges[part.row.file] = (part.begin, part.end)
            for frame, coverage in self._frames(reader, part):
                if frame.begin < part.begin or part.duplicates.contains(frame.begin):
                    continue
                stream = streams.setdefault(StreamId(frame.wal, frame.table, frame.group), _Stream())
                if coverage is None:
                    stream.rows[frame.sequence] = frame
                else:
                    stream.parts[frame.sequence] = (frame, coverage)
        if not streams or not all(stream.is_whole for stream in streams.values()):
            return None
        rows = tuple(stream.rows[at] for stream in streams.values() for at in sorted(stream.rows))
        coverages = tuple(stream.coverage for stream in streams.values())
        return ReceivedBootstrap(next(iter(streams)).table, rows, coverages, ranges)

    def _frames(
        self, reader: HostReader, part: Pending, room: int = _HELD_MAX
    ) -> list[tuple[FrameRef, Coverage | None]]:
        row, place, seen = part.row, reader.hosts.place(part.row), self._seen[part.row.file]
        if room <= 0:
            self._seen[row.file] = _Seen()  # read again once there is room
            raise _too_many(part)
        if seen.upto < part.end:
            for frame in reader.frames(place, seen.upto, part.end):
                if seen.size >= room:
                    raise _too_many(part)
                coverage = None
                if frame.header.kind is FrameKind.COVERAGE:
                    (payload,) = reader.read(place, [(frame.payload_begin, frame.end)])
                    check_payload(frame, payload)
                    coverage = Coverage.decode(payload, frame.header.table, frame.header.group)
                    seen.size += sum(1 + len(of_wal) for of_wal in coverage.intervals)
                seen.frames.append((FrameRef.of(place, row.file, frame), coverage))
                seen.size += 1
                seen.upto = frame.end
            seen.upto = part.end
        return seen.frames


def _too_many(part: Pending) -> RequestError:
    sender = "here" if part.row.source is None else part.row.source.cluster.name
    return RequestError(
        f"bootstraps from {sender} have more than {_HELD_MAX:,} frames, WALs and spans of sequences",
        "It waits until earlier ones are applied",
    )


def _replaces(one: FrameRef, other: FrameRef, came_later: bool) -> bool:
    """Whether the bootstrap of ``one`` replaces that of ``other``; each is given by a frame.

    A cluster writes one bootstrap at a time of a table for a peer, and they go through the same clusters.
    """
    if (one.wal.cluster, one.table, one.through) != (other.wal.cluster, other.table, other.through):
        return False
    return one.wal.number > other.wal.number if one.wal.slot == other.wal.slot else came_later


def _covers(one: ReceivedBootstrap, frames: Iterable[FrameRef]) -> bool:
    """Whether a bootstrap covers all of these frames, because its source had applied them."""
    covered = {stream: spans for _, coverage in one.coverages for stream, spans in coverage.sequences().items()}
    none = Ranges()
    return all(
        covered.get(StreamId(frame.wal, frame.table, frame.group), none).contains(frame.sequence, frame.sequence + 1)
        for frame in frames
    )
