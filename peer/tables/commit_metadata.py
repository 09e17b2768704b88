"""Commit metadata: the part of a replay snapshot's summary that describes the replay commit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from replication.core.ids import FileId
from replication.tables.base import Snapshot

REPLAY_SUMMARY = "walship.replay"
BOOTSTRAP_SUMMARY = "walship.bootstrap"


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """Replay epoch and number of a commit, and the byte range that it applied of each file.

    A range begins at the first frame whose rows the commit has. Earlier commits have the frames before it. A commit
    ``is_bootstrap`` if its rows came with one.
    """

    epoch: int
    number: int
    applied: Mapping[FileId, tuple[int, int]]
    is_bootstrap: bool = False

    def to_summary(self) -> dict[str, str]:
        """Return it as properties of the snapshot's summary."""
        ranges = {str(file): span for file, span in self.applied.items()}
        made = {REPLAY_SUMMARY: json.dumps([self.epoch, self.number, ranges], separators=(",", ":"))}
        return made | ({BOOTSTRAP_SUMMARY: "true"} if self.is_bootstrap else {})

    @staticmethod
    def of(snapshot: Snapshot) -> CommitMetadata | None:
        """Read a snapshot's summary; None when replay did not make it."""
        text = snapshot.summary.get(REPLAY_SUMMARY)
        if text is None:
            return None
        epoch, number, ranges = json.loads(text)
        applied = {FileId.parse(file): (span[0], span[1]) for file, span in ranges.items()}
        return CommitMetadata(epoch, number, applied, BOOTSTRAP_SUMMARY in snapshot.summary)
