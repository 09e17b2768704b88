"""Commit metadata: what a replay snapshot's summary says about the commit that made it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from replication.core.ids import FileId
from replication.tables.base import Snapshot

REPLAY_SUMMARY = "walship.replay"


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """Commit metadata of a replay snapshot: epoch, number, and the range of each file with rows that it applied.

    A range begins at the first of these rows; what is before it in the file came with earlier commits.
    """

    epoch: int
    number: int
    applied: Mapping[FileId, tuple[int, int]]

    def to_summary(self) -> dict[str, str]:
        """As properties of the snapshot's summary."""
        ranges = {str(file): span for file, span in self.applied.items()}
        return {REPLAY_SUMMARY: json.dumps([self.epoch, self.number, ranges], separators=(",", ":"))}

    @staticmethod
    def of(snapshot: Snapshot) -> CommitMetadata | None:
        """Read a snapshot's summary; None when replay did not make it."""
        text = snapshot.summary.get(REPLAY_SUMMARY)
        if text is None:
            return None
        epoch, number, ranges = json.loads(text)
        return CommitMetadata(epoch, number, {FileId.parse(file): (span[0], span[1]) for file, span in ranges.items()})
