"""What the next replay round takes: registered bytes, read by header only, as frames per table.

Level tables share one pass over the files; a table that is held back (refused, or in conflict) is left out of it and
gets a pass of its own over what the others have passed already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from peer.frames.decode import FrameRef
from peer.frames.hosts import HostReader
from replication.core.frame import FILE_HEADER_BYTES, FrameKind
from replication.core.ids import FileId
from replication.errors import GapError, ReplicationError
from replication.ledger.base import FileKind, Pending

Span = tuple[int, int]


@dataclass(slots=True)
class ReplaySelection:
    """Frames to apply, by table, and the range of each file in which these are all that tables wait for.

    ``broken`` says of files that cannot be read why; they hold nothing else up.
    """

    frames: dict[UUID, list[FrameRef]] = field(default_factory=dict)
    ranges: dict[FileId, Span] = field(default_factory=dict)
    broken: dict[FileId, ReplicationError] = field(default_factory=dict)
    more: bool = False

    @property
    def payload_bytes(self) -> int:
        """Bytes of all selected frames."""
        return sum(frame.end - frame.begin for frames in self.frames.values() for frame in frames)


def _never(file: FileId, begin: int) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Selector:
    """What passes choose from, and how much of it.

    Attributes:
        reader: reads files wherever they lie.
        pending: what the ledger says is registered and not applied.
        limit_bytes: a pass stops after about so many bytes of frames.
        passed: how far earlier shared passes of this process came, per file.
        skip: whether a frame (file, begin) is quarantined.
    """

    reader: HostReader
    pending: Sequence[Pending]
    limit_bytes: int
    passed: Mapping[FileId, int] = field(default_factory=dict)
    skip: Callable[[FileId, int], bool] = _never

    def shared(self, held: frozenset[UUID] = frozenset()) -> ReplaySelection:
        """The shared pass: frames of all tables but ``held`` ones, from where the last pass ended."""
        made = ReplaySelection()
        for part in self.pending:
            begin = max(part.begin, self.passed.get(part.row.file, 0))
            self._gather(made, part, begin, part.end, lambda table: table not in held)
        return made

    def own(self, table: UUID) -> ReplaySelection:
        """One held table's own pass: its frames in what the shared passes have left behind."""
        made = ReplaySelection()
        for part in self.pending:
            begin, end = part.behind.get(table, part.begin), min(part.end, self.passed.get(part.row.file, 0))
            self._gather(made, part, begin, end, lambda found: found == table)
        return made

    def readable(self, table: UUID, failed: ReplaySelection) -> ReplaySelection:
        """``own`` less the files with frames in ``failed`` that cannot be read; nothing when all of them can."""
        unread: set[FileId] = set()
        for frame in failed.frames[table]:
            if frame.file not in unread:
                try:
                    list(self.reader.read(frame.path, [(frame.begin, frame.end)]))
                except ReplicationError:
                    unread.add(frame.file)
        if not unread:
            return ReplaySelection()
        return replace(self, pending=[part for part in self.pending if part.row.file not in unread]).own(table)

    def _gather(
        self, made: ReplaySelection, part: Pending, begin: int, end: int, wanted: Callable[[UUID], bool]
    ) -> None:
        if begin >= end:
            return
        if made.payload_bytes >= self.limit_bytes:
            made.more = True
            return
        made.ranges[part.row.file] = (begin, begin)
        try:
            self._scan(made, part, begin, end, wanted)
        except ReplicationError as error:
            made.broken[part.row.file] = error

    def _scan(self, made: ReplaySelection, part: Pending, begin: int, end: int, wanted: Callable[[UUID], bool]) -> None:
        file, place = part.row.file, self.reader.hosts.place(part.row)
        size = made.payload_bytes
        reached = begin
        for frame in self.reader.frames(place, max(begin, FILE_HEADER_BYTES), end):
            if size >= self.limit_bytes:
                made.more = True
                break
            reached = frame.end
            made.ranges[file] = (begin, reached)
            table = frame.header.table
            if (
                frame.header.kind is not FrameKind.DATA
                or not wanted(table)
                or frame.begin < part.behind.get(table, 0)
                or part.duplicates.contains(frame.begin)
                or self.skip(file, frame.begin)
            ):
                continue
            made.frames.setdefault(table, []).append(FrameRef.of(place, file, frame))
            size += frame.end - frame.begin
        else:
            if reached < end and max(begin, FILE_HEADER_BYTES) < end:
                raise GapError(
                    f"{place} has no whole frame at offset {reached}, but is registered up to {end}",
                    "It was damaged or cut after it was registered. Restore it, or save what is whole: "
                    "walship wal salvage",
                )
            reached = max(reached, end)
        made.ranges[file] = (begin, reached)


def split_by_kind(pending: Sequence[Pending]) -> tuple[list[Pending], list[Pending]]:
    """Ordinary files, and received bootstraps."""
    bootstraps = [part for part in pending if part.row.kind is FileKind.BOOTSTRAP]
    return [part for part in pending if part.row.kind is not FileKind.BOOTSTRAP], bootstraps
