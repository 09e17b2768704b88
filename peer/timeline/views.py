"""Views of the files of a timeline's datasets: listed once a partition, and kept by instants from then on.

A partition is listed when it is first asked for. Instants are applied to all partitions, so that a listing is only
merged with what is known of its own. Listings run beside other questions; several for one partition run once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from peer.timeline.listing import Listings
from peer.timeline.stores.base import ViewStore
from replication.core.timeline.instants import Event, FileVersion, Instant, TimelineState
from replication.core.timeline.view import Effects, FileSlice, effects, merged, slices, unseen
from replication.errors import RequestError
from replication.timeline.base import Timeline

_EVENTS_MAX = 10_000
_FILES_MAX = 20_000  # of remembered events together, about 10 MB
_RECENT = 1000
_MISSING_MAX = 10_000
_NAMES = "\0"  # stands in a store for the listing of a dataset's partitions


@dataclass(frozen=True, slots=True)
class Known:
    """What a client knows of the timeline: the time of its last completed instant, and its hash."""

    instant: int
    hash: str


class Views:
    """Views over a timeline. Safe for threads.

    Args:
        timeline: where instants come from.
        store: where views are kept; closed by ``close``.
        listings: lists what was there before the timeline.
        incremental: False lists every partition again after each instant that touches it.
    """

    def __init__(self, timeline: Timeline, store: ViewStore, listings: Listings, *, incremental: bool = True) -> None:
        self._timeline = timeline
        self._store = store
        self._listings = listings
        self._incremental = incremental
        self._lock = threading.RLock()
        self._listing: dict[tuple[str, str], threading.Lock] = {}
        self._missing: dict[tuple[str, str], None] = {}  # partitions that were listed and had nothing
        self._events: deque[Event] = deque()  # the newest, to answer clients that know older ones
        self._files = 0  # of these events
        self._remembered = False
        self.listed = 0

    def sync(self) -> TimelineState:
        """Apply the instants that are new in the timeline; return the state."""
        with self._lock:
            for event in self._timeline.following(self._store.state().number):
                self._apply(event)
            return self._store.state()

    def sync_for(self, known: Known | None) -> TimelineState | None:
        """Catch up if the client knows other instants than this view, or none; return the state.

        None means that the client knows instants of a timeline that this one does not lead to.
        """
        with self._lock:
            state = self._store.state()
            if known is None:
                return self.sync()
            if known.hash == state.hash or self._has(known):
                return state
            state = self.sync()
            if known.hash == state.hash or self._has(known):
                return state
        return state if known.instant <= state.instant else None  # older than what is remembered: it will catch up

    def news(self, known: Known) -> list[Instant] | None:
        """Return the instants that are new to a client; None if it must read the timeline from its beginning."""
        with self._lock:
            if known.hash == self._store.state().hash:
                return []
            if not self._has(known):
                self._remember()
            for at, event in enumerate(self._events):
                if event.hash == known.hash:
                    return [later.instant for later in islice(self._events, at + 1, None)]
            return None

    def recent(self) -> list[Instant]:
        """Return the instants of the newest events, oldest first."""
        with self._lock:
            self._remember()
            return [event.instant for event in self._events]

    def latest(self, dataset: str, partition: str, file: str | None = None) -> list[FileSlice]:
        """Return the newest slice of each file of a partition, sorted; or of one file."""
        with self._partition(dataset, partition):
            return slices(self._versions(dataset, partition, file))

    def as_of(self, dataset: str, partition: str, time: int, file: str | None = None) -> list[FileSlice]:
        """Return the slices that a reader as of an instant sees.

        Raises:
            RequestError: some of the files of that time are gone.
        """
        with self._partition(dataset, partition) as state:
            state.check_readable(dataset, time)
            return slices(self._versions(dataset, partition, file), as_of=time)

    def all(self, dataset: str, partition: str, file: str | None = None) -> list[FileSlice]:
        """Return every slice that exists, each file's oldest first; those of pending folds, too."""
        with self._partition(dataset, partition) as state:
            folds = [instant for instant in state.pending.values() if instant.dataset == dataset]
            return slices(self._versions(dataset, partition, file), folds, every=True)

    def versions(self, dataset: str, partition: str) -> list[FileVersion]:
        """Return every version of a partition that exists."""
        with self._partition(dataset, partition):
            return list(self._store.versions(dataset, partition))

    def partitions(self, dataset: str) -> list[str]:
        """Return the partitions that have files, or had since the timeline began; lists their names once."""
        with self._lock:
            root = self._root(dataset)
            if self._store.is_listed(dataset, _NAMES):
                return self._partitions(dataset)
        names = self._listings.partitions(dataset, root)
        with self._lock:
            known = set(self._store.partitions(dataset))
            for name in names:
                if name not in known:
                    self._store.put(dataset, name, (), listed=False)
            self._store.put(dataset, _NAMES, (), listed=True)
            return self._partitions(dataset)

    def datasets(self) -> list[str]:
        """Return the datasets that the timeline names."""
        with self._lock:
            return sorted(self._store.state().roots)

    def pending(self, dataset: str | None = None) -> list[Instant]:
        """Return what is requested or inflight, of one dataset or all, oldest first."""
        with self._lock:
            found = sorted(self._store.state().pending.values(), key=lambda instant: instant.time)
            return [instant for instant in found if dataset in (None, instant.dataset)]

    def refresh(self, dataset: str, partition: str | None = None) -> None:
        """List a partition, or all of a dataset, again when it is next asked for: something else changed its files."""
        with self._lock:
            self._root(dataset)
            self._unlist(dataset, _NAMES)
            for name in self._partitions(dataset) if partition is None else [partition]:
                self._unlist(dataset, name)
            self._missing.clear()

    def close(self) -> None:
        """Close the store."""
        with self._lock:
            self._store.close()

    def _partitions(self, dataset: str) -> list[str]:
        return [name for name in self._store.partitions(dataset) if name != _NAMES]

    def _remember(self) -> None:
        """Read the events again that were applied before this process started."""
        if self._remembered:
            return
        first = self._events[0].number if self._events else self._store.state().number + 1
        for event in self._timeline.newest_first():
            if event.number >= first:
                continue
            files = _files(event)
            if self._files + files > _FILES_MAX or len(self._events) >= _RECENT:
                break
            self._events.appendleft(event)
            self._files += files
        self._remembered = True

    def _has(self, known: Known) -> bool:
        return any(event.hash == known.hash for event in reversed(self._events))

    def _apply(self, event: Event) -> None:
        instant, state = event.instant, self._store.state().after(event)
        dataset = instant.dataset
        change = Effects({}, frozenset())
        if instant.is_effective:
            store = self._store
            change = effects(instant, lambda key: store.find(dataset, key), lambda name: store.is_listed(dataset, name))
        self._store.apply(state, dataset, change)
        for partition in instant.changes.partitions():
            self._missing.pop((dataset, partition), None)
            if not self._incremental:
                self._unlist(dataset, partition)
        self._events.append(event)
        self._files += _files(event)
        while len(self._events) > _EVENTS_MAX or (self._files > _FILES_MAX and len(self._events) > 1):
            self._files -= _files(self._events.popleft())

    def _unlist(self, dataset: str, partition: str) -> None:
        if self._store.is_listed(dataset, partition):
            self._store.put(dataset, partition, list(self._store.versions(dataset, partition)), listed=False)

    def _root(self, dataset: str) -> str:
        root = self._store.state().roots.get(dataset)
        if root is None and (root := self.sync().roots.get(dataset)) is None:
            raise RequestError(f"The timeline has no dataset {dataset}", "See walship timeline list")
        return root

    def _versions(self, dataset: str, partition: str, file: str | None) -> list[FileVersion]:
        found = self._store.versions(dataset, partition)
        if file is None:
            return list(found)
        return [version for version in found if version.file == file]

    @contextmanager
    def _partition(self, dataset: str, partition: str) -> Iterator[TimelineState]:
        """Hold the lock while a partition is listed and complete."""
        while True:
            with self._lock:
                if self._is_listed(dataset, partition):
                    yield self._store.state()
                    return
                mine = self._listing.setdefault((dataset, partition), threading.Lock())
            try:
                with mine:
                    if not self._is_listed(dataset, partition):
                        self._list(dataset, partition)
            finally:
                with self._lock:
                    self._listing.pop((dataset, partition), None)

    def _is_listed(self, dataset: str, partition: str) -> bool:
        with self._lock:
            return (dataset, partition) in self._missing or self._store.is_listed(dataset, partition)

    def _list(self, dataset: str, partition: str) -> None:
        with self._lock:
            before = self.sync()
            root = self._root(dataset)
        files = self._listings.files(dataset, root, partition)
        with self._lock:
            since = self._timeline.since(before.number)
            self.sync()
            pending = [instant for instant in before.pending.values() if instant.dataset == dataset]
            hidden = unseen(pending, [e.instant for e in since if e.instant.dataset == dataset])
            known = self._store.versions(dataset, partition)
            versions = merged(known, files, before.instant, hidden)
            self.listed += 1
            if versions or known:
                self._store.put(dataset, partition, versions.values(), listed=True)
            else:
                self._missing[dataset, partition] = None
                if len(self._missing) > _MISSING_MAX:
                    del self._missing[next(iter(self._missing))]


def _files(event: Event) -> int:
    """How many files an event names."""
    changes = event.instant.changes
    return len(changes.adds) + len(changes.replaces) + len(changes.removes) + len(changes.restores)
