"""A dataset in memory, with a timeline and a store that tests change as publishers do, whole or up to a crash."""

from __future__ import annotations

from dataclasses import dataclass, field

from replication.core.timeline.instants import Action, Changes, FileKey, FileVersion, Instant, partition_of
from replication.timeline.recorded import RecordedTimeline
from tests.fakes.timeline import MemoryRecords

OUT = "memory://out"


def versions(*paths: str, size: int = 1) -> tuple[FileVersion, ...]:
    """Versions of files whose names end in ``@`` and a count that tells versions of one file apart."""
    return tuple(FileVersion(partition_of(path), path, size, path.partition("@")[0]) for path in paths)


def keys(*paths: str) -> tuple[FileKey, ...]:
    return tuple((partition_of(path), path) for path in paths)


@dataclass
class Dataset:
    """Files of a dataset by path, and the timeline that knows about them. It lists itself."""

    files: dict[str, int] = field(default_factory=dict)
    records: MemoryRecords = field(default_factory=MemoryRecords)
    calls: list[str] = field(default_factory=list)
    fails: bool = False

    def __post_init__(self) -> None:
        self.clock = 0
        self.timeline = RecordedTimeline(self.records, clock=self.tick)

    def tick(self) -> int:
        self.clock += 10
        return self.clock

    def partitions(self, dataset: str, root: str) -> list[str]:
        self.calls.append("partitions")
        return sorted({partition_of(path) for path in self.files})

    def files_of(self, partition: str) -> list[str]:
        return sorted(path for path in self.files if partition_of(path) == partition)

    def listings(self) -> Listing:
        return Listing(self)

    def publish(self, *paths: str, replaces: tuple[str, ...] = (), action: Action = Action.COPY) -> Instant:
        instant, changes = self.begin(*paths, replaces=replaces, action=action)
        return self.timeline.complete(instant, changes)

    def begin(
        self, *paths: str, replaces: tuple[str, ...] = (), action: Action = Action.COPY, written: int | None = None
    ) -> tuple[Instant, Changes]:
        """Publish up to the last step, or until ``written`` files are there."""
        changes = Changes(versions(*paths), keys(*replaces))
        instant = self.timeline.start(self.timeline.request(action, OUT), changes)
        self.files |= dict.fromkeys(paths[:written], 1)
        return instant, changes

    def undo(self, *times: int, action: Action = Action.ROLLBACK, finish: bool = True) -> Instant:
        undo = self.timeline.undo(OUT, times, action=action)
        for _, path in undo.changes.removes[: None if finish else 1]:
            self.files.pop(path, None)
        return self.timeline.complete(undo, undo.changes) if finish else undo

    def clean(self, *paths: str, retained: int, finish: bool = True) -> Instant:
        changes = Changes(removes=keys(*paths), retained=retained)
        instant = self.timeline.start(self.timeline.request(Action.CLEAN, OUT), changes)
        for path in paths[: None if finish else 1]:
            self.files.pop(path, None)
        return self.timeline.complete(instant, changes) if finish else instant


class Listing:
    """Lists a dataset in memory; counts the calls."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def partitions(self, dataset: str, root: str) -> list[str]:
        return self._dataset.partitions(dataset, root)

    def files(self, dataset: str, root: str, partition: str) -> list[FileVersion]:
        self._dataset.calls.append(partition)
        return list(versions(*self._dataset.files_of(partition)))
