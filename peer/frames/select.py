"""Select the frames of the next replay round, by table. Only headers of registered bytes are read.

Most tables share one pass over the files. A held table (refused, or in conflict) is left out of the shared pass. It
gets a pass of its own over the bytes that the shared pass has passed already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from peer.frames.decode import FrameRef
from peer.frames.hosts import HostReader
from replication.core.coverage import Span
from replication.core.frame import FILE_HEADER_BYTES, FrameKind
from replication.core.ids import FileId
from replication.core.succession import Succession, Successions
from replication.errors import GapError, ReplicationError
from replication.ledger.base import FileKind, Pending

_LOST_MAX = 100  # each is copied to a file of its own, so many would delay all tables


@dataclass(slots=True)
class ReplaySelection:
    """Frames to apply, by table, and the range of each file that they were selected from.

    ``payload_bytes`` is the size of ``frames``. ``lost`` has lost writes, with their successions; they are kept and not
    applied. ``kept`` has the tables with frames that are quarantined. ``broken`` has the error of each file that cannot
    be read; other files go on. ``more`` is True when the limit ended the pass.
    """

    frames: dict[UUID, list[FrameRef]] = field(default_factory=dict)
    ranges: dict[FileId, Span] = field(default_factory=dict)
    payload_bytes: int = 0
    lost: list[tuple[FrameRef, Succession]] = field(default_factory=list)
    kept: set[UUID] = field(default_factory=set)
    broken: dict[FileId, ReplicationError] = field(default_factory=dict)
    more: bool = False


@dataclass(frozen=True, slots=True)
class Selector:
    """Selects frames for one pass.

    Attributes:
        reader: reads files of any host.
        pending: what is registered in the ledger and not applied.
        limit_bytes: a pass ends after about this many bytes of frames, or a hundred lost writes.
        passed: the offset that shared passes of this process have reached, by file.
        skip: returns whether a frame (file, begin) is quarantined.
        successions: by which frames are lost writes; read after ``pending``, so that none that is beyond a cut counts.
    """

    reader: HostReader
    pending: Sequence[Pending]
    limit_bytes: int
    passed: Mapping[FileId, int] = field(default_factory=dict)
    skip: Callable[[FileId, int], bool] = lambda file, begin: False
    successions: Successions = Successions()

    def shared(self, held: frozenset[UUID] = frozenset()) -> ReplaySelection:
        """The shared pass: frames of all tables except ``held``, from where the last pass ended."""
        selection = ReplaySelection()
        for part in self.pending:
            begin = max(part.begin, self.passed.get(part.row.file, 0))
            self._gather(selection, part, begin, part.end, lambda table: table not in held)
        return selection

    def own(self, table: UUID) -> ReplaySelection:
        """The pass of one held table: its frames in the bytes that the shared passes have passed."""
        selection = ReplaySelection()
        for part in self.pending:
            begin, end = part.behind.get(table, part.begin), min(part.end, self.passed.get(part.row.file, 0))
            self._gather(selection, part, begin, end, lambda other: other == table)
        return selection

    def readable(self, table: UUID, failed: ReplaySelection) -> ReplaySelection:
        """``own`` without the files whose frames in ``failed`` cannot be read. Empty when all can be read."""
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

    def _is_full(self, selection: ReplaySelection) -> bool:
        return selection.payload_bytes >= self.limit_bytes or len(selection.lost) >= _LOST_MAX

    def _gather(
        self, selection: ReplaySelection, part: Pending, begin: int, end: int, wanted: Callable[[UUID], bool]
    ) -> None:
        if begin >= end:
            return
        if self._is_full(selection):
            selection.more = True
            return
        selection.ranges[part.row.file] = (begin, begin)
        try:
            self._scan(selection, part, begin, end, wanted)
        except ReplicationError as error:
            selection.broken[part.row.file] = error

    def _scan(
        self, selection: ReplaySelection, part: Pending, begin: int, end: int, wanted: Callable[[UUID], bool]
    ) -> None:
        file, place = part.row.file, self.reader.hosts.place(part.row)
        reached = begin
        for frame in self.reader.frames(place, max(begin, FILE_HEADER_BYTES), end):
            if self._is_full(selection):
                selection.more = True
                break
            reached = frame.end
            selection.ranges[file] = (begin, reached)
            table = frame.header.table
            if (
                frame.header.kind is not FrameKind.DATA
                or not wanted(table)
                or frame.begin < part.behind.get(table, 0)
                or part.duplicates.contains(frame.begin)
            ):
                continue
            if self.skip(file, frame.begin):
                selection.kept.add(table)
                continue
            if succession := self.successions.leaving_out(frame.header):
                selection.lost.append((FrameRef.of(place, file, frame), succession))
                continue
            selection.frames.setdefault(table, []).append(FrameRef.of(place, file, frame))
            selection.payload_bytes += frame.end - frame.begin
        else:
            if reached < end and max(begin, FILE_HEADER_BYTES) < end:
                raise GapError(
                    f"{place} has no whole frame at offset {reached}, but is registered up to {end}",
                    "It was damaged or cut after it was registered. Restore it, or salvage it: walship wal salvage",
                )
            reached = max(reached, end)
        selection.ranges[file] = (begin, reached)


def split_by_kind(pending: Sequence[Pending]) -> tuple[list[Pending], list[Pending]]:
    """Return ordinary files and received bootstraps, separately."""
    bootstraps = [part for part in pending if part.row.kind is FileKind.BOOTSTRAP]
    return [part for part in pending if part.row.kind is not FileKind.BOOTSTRAP], bootstraps
