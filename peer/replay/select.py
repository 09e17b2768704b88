"""What the next replay round takes: registered bytes, read by header only, as frames per table.

Level tables share one pass over the files; a table that is held back (refused, or in conflict) is left out of it and
gets a pass of its own over what the others have passed already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from peer.replay.decode import FrameRef
from peer.replay.hosts import HostReader
from replication.core.frame import FILE_HEADER_BYTES, Kind
from replication.core.ids import FileId
from replication.errors import GapError, ReplicationError
from replication.ledger.base import FileKind, Pending

Span = tuple[int, int]


@dataclass(slots=True)
class Selection:
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


def select_level(
    reader: HostReader,
    pending: Sequence[Pending],
    passed: Mapping[FileId, int],
    held: frozenset[UUID],
    skip: Callable[[FileId, int], bool],
    limit_bytes: int,
) -> Selection:
    """The shared pass: frames of all tables but ``held`` ones, from where the last pass ended.

    Args:
        reader: reads files wherever they lie.
        pending: what the ledger says is registered and not applied.
        passed: how far earlier shared passes of this process came, per file.
        held: tables that are left out.
        skip: whether a frame (file, begin) is quarantined.
        limit_bytes: stop after about so many bytes of frames.
    """
    made = Selection()
    for part in pending:
        begin = max(part.begin, passed.get(part.row.file, 0))
        _gather(made, reader, part, begin, part.end, lambda table: table not in held, skip, limit_bytes)
    return made


def select_own(
    reader: HostReader,
    pending: Sequence[Pending],
    passed: Mapping[FileId, int],
    table: UUID,
    skip: Callable[[FileId, int], bool],
    limit_bytes: int,
) -> Selection:
    """One held table's own pass: its frames in what the shared passes have left behind."""
    made = Selection()
    for part in pending:
        end = min(part.end, passed.get(part.row.file, 0))
        _gather(
            made, reader, part, part.behind.get(table, part.begin), end, lambda found: found == table, skip, limit_bytes
        )
    return made


def select_readable(
    reader: HostReader,
    pending: Sequence[Pending],
    passed: Mapping[FileId, int],
    table: UUID,
    skip: Callable[[FileId, int], bool],
    limit_bytes: int,
    failed: Selection,
) -> Selection:
    """``select_own`` less the files with frames in ``failed`` that cannot be read; nothing when all of them can."""
    unread: set[FileId] = set()
    for frame in failed.frames[table]:
        if frame.file not in unread:
            try:
                list(reader.read(frame.path, [(frame.begin, frame.end)]))
            except ReplicationError:
                unread.add(frame.file)
    others = [part for part in pending if part.row.file not in unread] if unread else []
    return select_own(reader, others, passed, table, skip, limit_bytes)


def apart(pending: Sequence[Pending]) -> tuple[list[Pending], list[Pending]]:
    """Ordinary files, and received bootstraps."""
    bootstraps = [part for part in pending if part.row.kind is FileKind.BOOTSTRAP]
    return [part for part in pending if part.row.kind is not FileKind.BOOTSTRAP], bootstraps


def _gather(
    made: Selection,
    reader: HostReader,
    part: Pending,
    begin: int,
    end: int,
    wanted: Callable[[UUID], bool],
    skip: Callable[[FileId, int], bool],
    limit_bytes: int,
) -> None:
    if begin >= end:
        return
    if made.payload_bytes >= limit_bytes:
        made.more = True
        return
    made.ranges[part.row.file] = (begin, begin)
    try:
        _scan(made, reader, part, begin, end, wanted, skip, limit_bytes)
    except ReplicationError as error:
        made.broken[part.row.file] = error


def _scan(
    made: Selection,
    reader: HostReader,
    part: Pending,
    begin: int,
    end: int,
    wanted: Callable[[UUID], bool],
    skip: Callable[[FileId, int], bool],
    limit_bytes: int,
) -> None:
    file, place = part.row.file, reader.hosts.place(part.row)
    size = made.payload_bytes
    reached = begin
    for frame in reader.frames(place, max(begin, FILE_HEADER_BYTES), end):
        if size >= limit_bytes:
            made.more = True
            break
        reached = frame.end
        made.ranges[file] = (begin, reached)
        table = frame.header.table
        if (
            frame.header.kind is not Kind.DATA
            or not wanted(table)
            or frame.begin < part.behind.get(table, 0)
            or part.duplicates.contains(frame.begin)
            or skip(file, frame.begin)
        ):
            continue
        made.frames.setdefault(table, []).append(FrameRef.of(place, file, frame))
        size += frame.end - frame.begin
    else:
        if reached < end and max(begin, FILE_HEADER_BYTES) < end:
            raise GapError(
                f"{place} has no whole frame at offset {reached}, but is registered up to {end}",
                "It was damaged or cut after it was registered. Restore it, or save what is whole: walship wal giveup",
            )
        reached = max(reached, end)
    made.ranges[file] = (begin, reached)
