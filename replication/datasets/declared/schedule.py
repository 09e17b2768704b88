"""Which datasets are to run next: by priority, and those that follow another dataset only when that has changed."""

from __future__ import annotations

from collections.abc import Iterable

from replication.datasets.declared.definitions import DatasetDefinition
from replication.timeline.recorded import RecordedTimeline
from replication.timeline.stored import open_records


def by_priority(definitions: Iterable[DatasetDefinition]) -> list[DatasetDefinition]:
    """The order in which datasets run."""
    return sorted(definitions, key=lambda each: (-each.priority, each.name))


class DatasetSchedule:
    """What a process that runs datasets again and again remembers of earlier passes.

    A dataset that follows another one runs in the first pass, and then when the timeline has a new instant of that.
    """

    def __init__(self) -> None:
        self._timelines: dict[str, RecordedTimeline] = {}
        self._seen: dict[str, int] = {}

    def is_due(self, definition: DatasetDefinition) -> bool:
        """Whether a dataset runs in this pass; call it once a pass. StorageError if its timeline cannot be read."""
        if not definition.after:
            return True
        url = definition.timeline
        timeline = self._timelines.setdefault(url, RecordedTimeline(open_records(url)))
        before = self._seen.get(definition.name)
        now = timeline.state().number
        self._seen[definition.name] = now
        if before is None:
            return True
        changes = (event.instant for event in timeline.following(before) if event.number <= now)
        return any(each.dataset == definition.after and not each.is_pending for each in changes)

    def retry(self, definition: DatasetDefinition) -> None:
        """A run failed: it is due in the next pass whatever the timeline says."""
        self._seen.pop(definition.name, None)
