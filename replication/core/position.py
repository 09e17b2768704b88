"""Where an append ended up: enough to wait for it on any cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from replication.core.ids import ClusterId, FileId, StreamId
from replication.errors import FormatError


@dataclass(frozen=True, slots=True)
class Position:
    """What one or more appends made durable.

    ``ends`` are end offsets per WAL, for waiting at home. ``sequences`` are the last sequence per stream, for waiting
    anywhere. ``commit`` is the latest commit time, in microseconds since 1970. An append of nothing has neither.
    """

    cluster: ClusterId
    ends: Mapping[FileId, int] = field(default_factory=dict)
    sequences: Mapping[StreamId, int] = field(default_factory=dict)
    commit: int = 0

    def join(self, other: Position) -> Position:
        """The position of both; waiting for it waits for either's appends."""
        assert self.cluster == other.cluster, "positions of two clusters do not join"
        ends = dict(self.ends)
        for file, end in other.ends.items():
            ends[file] = max(end, ends.get(file, 0))
        sequences = dict(self.sequences)
        for stream, sequence in other.sequences.items():
            sequences[stream] = max(sequence, sequences.get(stream, -1))
        return Position(self.cluster, ends, sequences, max(self.commit, other.commit))

    def to_json(self) -> str:
        """One line of JSON, to wait for in another process; ``from_json`` reads it back."""
        return json.dumps(
            {
                "cluster": str(self.cluster),
                "ends": {str(file): end for file, end in self.ends.items()},
                "sequences": {str(stream): sequence for stream, sequence in self.sequences.items()},
                "commit": self.commit,
            },
            separators=(",", ":"),
        )

    @staticmethod
    def from_json(text: str) -> Position:
        """Read what ``to_json`` wrote; FormatError when it is something else."""
        try:
            raw = json.loads(text)
            return Position(
                ClusterId.parse(raw["cluster"]),
                {FileId.parse(file): int(end) for file, end in raw["ends"].items()},
                {StreamId.parse(stream): int(sequence) for stream, sequence in raw["sequences"].items()},
                int(raw["commit"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise FormatError(f"{text[:80]!r} is no position", "Give what Position.to_json returned") from None
