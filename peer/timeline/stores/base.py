"""The protocol of a store of views, which is its own checkpoint: what it has, and up to which event."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from replication.core.timeline.instants import FileKey, FileVersion, TimelineState
from replication.core.timeline.view import Effects


class ViewStore(Protocol):
    """Versions of files by dataset and partition. One thread at a time uses it."""

    def state(self) -> TimelineState:
        """The state of the timeline up to which instants were applied."""

    def find(self, dataset: str, key: FileKey) -> FileVersion | None:
        """Return one version; None if there is none."""

    def versions(self, dataset: str, partition: str) -> Collection[FileVersion]:
        """Return all versions of a partition."""

    def partitions(self, dataset: str) -> list[str]:
        """Return the partitions of a dataset that it has heard of, sorted."""

    def is_listed(self, dataset: str, partition: str) -> bool:
        """Whether a partition was listed, so that nothing of it is missing."""

    def apply(self, state: TimelineState, dataset: str, effects: Effects) -> None:
        """Apply what an instant does, and go on to the state after it."""

    def put(self, dataset: str, partition: str, versions: Iterable[FileVersion], *, listed: bool) -> None:
        """Replace all versions of a partition."""

    def close(self) -> None:
        """Write what is left to write, and release the files."""
