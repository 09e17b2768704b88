"""Composes a message from frames that were read: the frames to send, and the withheld ones after them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from replication.core.coverage import Ranges, Span
from replication.core.frame import FrameKind, FrameView
from replication.worker.ship.selection import FrameDecision, FrameFilter

_NONE = Ranges()


@dataclass(frozen=True, slots=True)
class Message:
    """The frames to send up to ``end``.

    ``commit`` is the newest commit time of these frames. ``withheld`` are ranges after ``end``, by table.
    """

    end: int
    spans: tuple[Span, ...] = ()
    commit: int = 0
    schemas: tuple[tuple[UUID, str, bytes], ...] = ()
    withheld: Mapping[UUID, Ranges] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of the frames to send."""
        return sum(end - begin for begin, end in self.spans)

    def payload(self, content: bytes, at: int) -> bytes | memoryview:
        """Return the frames to send. ``content`` was read at offset ``at``; it is copied only for several spans."""
        view = memoryview(content)
        pieces = [view[begin - at : end - at] for begin, end in self.spans]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def compose(frames: Sequence[FrameView], selection: FrameFilter, size_max: int, duplicates: Ranges = _NONE) -> Message:
    """Take frames from the front, at least one, up to ``size_max`` bytes or the first withheld frame.

    The withheld frames that follow directly are listed too. Frames inside ``duplicates`` are skipped: their claimed
    copies are sent from other files.
    """
    spans: list[Span] = []
    schemas: dict[bytes, tuple[UUID, str, bytes]] = {}
    size = commit = 0
    end = frames[0].begin
    withheld: dict[UUID, Ranges] = {}
    for frame in frames:
        decision = FrameDecision.SKIP if duplicates.contains(frame.begin, frame.end) else selection.judge(frame)
        if decision is FrameDecision.WITHHOLD:
            withheld[frame.header.table] = withheld.get(frame.header.table, _NONE).add(frame.begin, frame.end)
            continue
        if withheld:
            break
        if decision is FrameDecision.SEND:
            length = frame.end - frame.begin
            if size and size + length > size_max:
                break
            size += length
            if spans and spans[-1][1] == frame.begin:
                spans[-1] = (spans[-1][0], frame.end)
            else:
                spans.append((frame.begin, frame.end))
            header = frame.header
            commit = max(commit, header.commit_hi)
            if header.kind in (FrameKind.DATA, FrameKind.BOOTSTRAP):
                schemas[header.schema] = (header.table, header.group, header.schema)
        end = frame.end
    return Message(end, tuple(spans), commit, tuple(schemas.values()), withheld)
