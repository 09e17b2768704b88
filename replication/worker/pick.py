"""Picking what goes of frames that were read, as one message, and what stays here behind it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from replication.core.coverage import Ranges, Span
from replication.core.frame import FrameView, Kind
from replication.worker.selection import Selection, Verdict

_NONE = Ranges()


@dataclass(frozen=True, slots=True)
class Picked:
    """What goes of the frames up to ``end``, and the newest one's commit; ``apart`` is withheld after it, by table."""

    end: int
    spans: tuple[Span, ...] = ()
    commit: int = 0
    schemas: tuple[tuple[UUID, str, bytes], ...] = ()
    apart: Mapping[UUID, Ranges] = field(default_factory=dict)


def pick(frames: Sequence[FrameView], selection: Selection, size_max: int, spare: Ranges = _NONE) -> Picked:
    """Take frames from the front until ``size_max`` bytes (one at least), or until a withheld one and all after it.

    Those inside ``spare`` are skipped: what is claimed elsewhere goes from there.
    """
    spans: list[Span] = []
    schemas: dict[bytes, tuple[UUID, str, bytes]] = {}
    size = commit = 0
    end = frames[0].begin
    apart: dict[UUID, Ranges] = {}
    for frame in frames:
        verdict = Verdict.SKIP if spare.contains(frame.begin, frame.end) else selection.judge(frame)
        if verdict is Verdict.WITHHOLD:
            apart[frame.header.table] = apart.get(frame.header.table, _NONE).add(frame.begin, frame.end)
            continue
        if apart:
            break
        if verdict is Verdict.SEND:
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
            if header.kind in (Kind.DATA, Kind.BOOTSTRAP):
                schemas[header.schema] = (header.table, header.group, header.schema)
        end = frame.end
    return Picked(end, tuple(spans), commit, tuple(schemas.values()), apart)
