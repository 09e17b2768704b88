"""What the files of a dataset are of, and whether they are still those; for tasks in other processes, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from replication.core.timeline.instants import FileKey, FileVersion
from replication.errors import ChangedFileError
from replication.timeline.recorded import RecordedTimeline
from replication.timeline.stored import open_records


@dataclass(frozen=True, slots=True)
class ReadInstant:
    """What the files of a dataset are of: enough to read and check them in another process.

    Attributes:
        timeline: the address of the timeline's records.
        dataset: whose files.
        root: the address of the folder that paths are below.
        instant: as of which.
        event: the number of the newest event that the files are of.
        options: of fsspec's driver for the root; they may hold a password.
    """

    timeline: str
    dataset: str
    root: str
    instant: int
    event: int
    options: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def address(self, version: FileVersion) -> str:
        """The address of a file."""
        return f"{self.root.rstrip('/')}/{version.path}"

    def check(self, keys: set[FileKey]) -> None:
        """ChangedFileError if one of the files was written over or deleted since, or is about to be.

        To be asked after the files were read: then what was read is what the instant has.
        """
        for event in RecordedTimeline(open_records(self.timeline)).following(self.event):
            instant, changes = event.instant, event.instant.changes
            if instant.dataset != self.dataset:
                continue
            touched = keys & {*changes.removes, *(version.key for version in changes.adds)}
            if touched:
                raise ChangedFileError(
                    f"{sorted(touched)[0][1]} of {self.dataset} was changed by a {instant.action.value} while it was"
                    f" read as of {self.instant}",
                    "Read the dataset again",
                )
