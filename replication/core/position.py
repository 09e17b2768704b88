"""The position of an append, to wait for it on any cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from replication.core.ids import MALFORMED, ClusterId, FileId, StreamId
from replication.errors import FormatError


@dataclass(frozen=True, slots=True)
class Position:
    """The position of one or more appends.

    ``ends`` has the end offset per WAL, to wait on the own cluster. ``sequences`` has the last sequence per stream, to
    wait on any cluster. Both are empty for an append without rows. ``commit`` is the latest commit time, in
    microseconds since 1970.
    """

    cluster: ClusterId
    ends: Mapping[FileId, int] = field(default_factory=dict)
    sequences: Mapping[StreamId, int] = field(default_factory=dict)
    commit: int = 0

    def join(self, other: Position) -> Position:
        """Return the position of both, to wait for the appends of both."""
        assert self.cluster == other.cluster, "positions of two clusters cannot be joined"
        ends = dict(self.ends)
        for file, end in other.ends.items():
            ends[file] = max(end, ends.get(file, 0))
        sequences = dict(self.sequences)
        for stream, sequence in other.sequences.items():
            sequences[stream] = max(sequence, sequences.get(stream, -1))
        return Position(self.cluster, ends, sequences, max(self.commit, other.commit))

    def to_json(self) -> str:
        """Return one line of JSON, to wait in another process; ``from_json`` reads it."""
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
        """Read the JSON of ``to_json``. Raises FormatError for other text."""
        try:
            raw = json.loads(text)
            return Position(
                ClusterId.parse(raw["cluster"]),
                {FileId.parse(file): int(end) for file, end in raw["ends"].items()},
                {StreamId.parse(stream): int(sequence) for stream, sequence in raw["sequences"].items()},
                int(raw["commit"]),
            )
        except MALFORMED:
            raise FormatError(
                f"{text[:80]!r} is not a position", "Give the position that walship write --json prints"
            ) from None
