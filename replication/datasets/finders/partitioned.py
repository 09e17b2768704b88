"""A finder of streams with folders by date: each stream is a dataset, each date a file set."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime

from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.names import RelativePath
from replication.datasets.finders.base import ListsIntoSink
from replication.datasets.finders.globbed import checked, folders_of, in_each
from replication.datasets.finders.recursive import RecursiveDataset
from replication.datasets.listing.sink import ListingSink
from replication.datasets.stores.base import Store
from replication.errors import RequestError

_DATE = re.compile(r"(?:^|/)(?:[a-z_]+=)?(\d{4})(?:[-/]|/month=)(\d{2})(?:[-/]|/day=)(\d{2})$")
_DAYS = re.compile(r"\d{1,9}")
_DEPTH_MAX = 4


class StreamFinder:
    """Each folder of ``below`` is a stream.

    The property ``days`` leaves out dates that are older. Both properties may be missing.

    Raises:
        RequestError: ``days`` is not a number, or a property is unknown.
    """

    def __init__(self, store: Store, properties: Mapping[str, str]) -> None:
        self._store = store
        given = checked(properties, optional="below days")
        self.common_root = RelativePath(given.get("below", "").strip("/"))
        if not _DAYS.fullmatch(given.get("days", "1")):
            raise RequestError(f"days is {given['days']!r}", "Give a number of days")
        self._days = int(given["days"]) if "days" in given else None

    def find_datasets(self) -> Iterator[StreamDataset]:
        """All streams."""
        for folder in folders_of(self._store, self.common_root):
            yield StreamDataset(self._store, folder, self._days)


class StreamDataset:
    """The dates of one stream: ``…/2024/01/31``, ``…/2024-01-31`` or ``…/date=2024-01-31``, at most four levels down.

    Dates before the last ``days`` are left out without being listed; None takes all.
    """

    def __init__(self, store: Store, root: RelativePath, days: int | None = None) -> None:
        self._store, self.root = store, root
        today = datetime.now(UTC).toordinal()
        self._since = date.fromordinal(max(today - days, 1)) if days is not None else date.min

    def partitions(self) -> Iterator[ListsIntoSink]:
        """The folders of dates that are meant, oldest first, and those above that cannot be listed."""
        yield from self._below(self.root, 0)

    def _below(self, folder: RelativePath, depth: int) -> Iterator[ListsIntoSink]:
        if (day := date_of(folder)) is not None:
            if day >= self._since:
                yield RecursiveDataset(self._store, folder, folder, {"stream": self.root, "date": str(day)})
        elif depth < _DEPTH_MAX:
            yield from in_each(self._store, folder, lambda below: self._below(below, depth + 1))

    def list_into(self, target: Store, configuration: CopyConfiguration, sink: ListingSink) -> None:
        """Compare each date's folder with the target's."""
        for partition in self.partitions():
            partition.list_into(target, configuration, sink)


def date_of(folder: RelativePath) -> date | None:
    """The date that a folder's path ends with; None if it ends with none."""
    found = _DATE.search(folder)
    try:
        return date(*(int(part) for part in found.groups())) if found else None
    except ValueError:
        return None
