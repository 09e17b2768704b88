"""Composing a message of the frames that were read: those that go, and those withheld behind them. Pure."""

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
    """What goes of the frames up to ``end``, and the newest one's commit; ``withheld`` comes after it, by table."""

    end: int
    spans: tuple[Span, ...] = ()
    commit: int = 0
    schemas: tuple[tuple[UUID, str, bytes], ...] = ()
    withheld: Mapping[UUID, Ranges] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of the frames that go."""
        return sum(end - begin for begin, end in self.spans)

    def payload(self, content: bytes, at: int) -> bytes | memoryview:
        """The frames that go, out of ``content``, which was read at offset ``at``; copied only when parted."""
        view = memoryview(content)
        pieces = [view[begin - at : end - at] for begin, end in self.spans]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def compose(frames: Sequence[FrameView], selection: FrameFilter, size_max: int, duplicates: Ranges = _NONE) -> Message:
    """Take frames from the front until ``size_max`` bytes (one at least), or until a withheld one and all after it.

    Those inside ``duplicates`` are skipped: what is claimed elsewhere goes from there.
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
