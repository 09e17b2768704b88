"""Views of the files of a timeline's datasets: listed once a partition, and kept by instants from then on.

A partition is listed when it is first asked for. Instants are applied to all partitions, so that a listing is only
merged with what is known of its own. Listings run beside other questions; several for one partition run once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from peer.timeline.listing import Listings
from peer.timeline.remembered import BYTES_MAX, Remembered
from peer.timeline.stores.base import ViewStore
from replication.core.timeline.instants import Event, FileVersion, Instant, TimelineState
from replication.core.timeline.view import Effects, FileSlice, effects, merged, slices, unseen
from replication.errors import FormatError, RequestError, StorageError
from replication.timeline.recorded import RecordedTimeline

_NAMES = "\0"  # stands in a store for the listing of a dataset's partitions


@dataclass(frozen=True, slots=True)
class Known:
    """What a client knows of the timeline: the time of its last completed instant, and its hash."""

    instant: int
    hash: str


class Views:
    """Views over a timeline. Safe for threads.

    ``close`` closes the store. Without ``incremental`` every partition is listed again after each instant that touches
    it. ``remembered_bytes_max`` is what is kept in memory besides the store, and the instant that is being applied.
    """

    def __init__(
        self,
        timeline: RecordedTimeline,
        store: ViewStore,
        listings: Listings,
        *,
        incremental: bool = True,
        remembered_bytes_max: int = BYTES_MAX,
    ) -> None:
        self._timeline = timeline
        self._store = store
        self._listings = listings
        self._incremental = incremental
        self._lock = threading.RLock()
        self._listing: dict[tuple[str, str], threading.Lock] = {}
        self._known = Remembered(remembered_bytes_max)
        self._remembered = False
        self._is_checked = False  # whether the timeline leads to what the store has
        self._refreshes = 0  # a listing that began before the last one may lack what that was asked for
        self._is_whole = False  # until then the store may have a part of the next instant, of a process that died
        self.listed = 0

    def sync(self) -> TimelineState:
        """Apply the instants that are new in the timeline; return the state.

        Raises:
            FormatError: the store has instants of a timeline that this one does not lead to.
        """
        with self._lock:
            state = self._store.state()
            for event in self._timeline.following(state.number, state.hash):
                self._apply(event)
            if not self._is_checked and self._store.state() is state:  # nothing followed, which would have shown it
                self._check_history(state)
            self._is_whole = self._is_checked = True
            return self._store.state()

    def _check_history(self, state: TimelineState) -> None:
        if not state.number:
            return
        last = next(iter(self._timeline.following(state.number - 1)), None)
        if last is None or last.hash != state.hash:
            raise FormatError(
                f"the timeline has no event {state.number} as it is known here",
                "Its store was restored or changed by hand: delete timeline-views in the data directory",
            )

    def state(self) -> TimelineState:
        """Return the state up to which instants are applied."""
        with self._lock:
            return self._store.state()

    def sync_for(self, known: Known | None) -> TimelineState | None:
        """Catch up if the client knows other instants than this view, or none; return the state.

        None means that the client knows instants of a timeline that this one does not lead to.
        """
        with self._lock:
            state = self._store.state()
            if known is None or not self._is_whole:
                state = self.sync()
            if known is None:
                return state
            if known.hash == state.hash or self._known.has(known.hash):
                return state
            state = self.sync()
            if known.hash == state.hash or self._known.has(known.hash):
                return state
        return state if known.instant <= state.instant else None  # older than what is remembered: it will catch up

    def news(self, known: str) -> list[Instant] | None:
        """Return the instants after the hash that a client knows; None if it must read all from the beginning."""
        with self._lock:
            if known == self._store.state().hash:
                return []
            if not self._known.has(known):
                self._remember()
            later = self._known.after(known)
            return None if later is None else [event.instant for event in later]

    def recent(self) -> list[Instant]:
        """Return the instants of the newest events, oldest first."""
        with self._lock:
            self._remember()
            return [event.instant for event in self._known.events()]

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
            refreshes = self._refreshes
        names = self._listings.partitions(dataset, root)
        with self._lock:
            known = set(self._store.partitions(dataset))
            for name in names:
                if name not in known:
                    self._store.put(dataset, name, (), listed=False)
            self._store.put(dataset, _NAMES, (), listed=self._refreshes == refreshes)
            return self._partitions(dataset)

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
            self._known.all_found()
            self._refreshes += 1

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
        first = self._known.first or self._store.state().number + 1
        for event in self._timeline.newest_first():
            if event.number < first and not self._known.add_older(event):
                break
        self._remembered = True

    def _apply(self, event: Event) -> None:
        instant, state = event.instant, self._store.state().after(event)
        dataset, self._is_whole = instant.dataset, False
        change = Effects({}, frozenset())
        if instant.is_effective:
            store = self._store
            change = effects(instant, lambda key: store.find(dataset, key), lambda name: store.is_listed(dataset, name))
        self._store.apply(state, dataset, change)
        for partition in instant.changes.partitions():
            self._known.found((dataset, partition))
            if not self._incremental:
                self._unlist(dataset, partition)
        self._known.add(event)
        self._is_whole = True

    def _unlist(self, dataset: str, partition: str) -> None:
        if self._store.is_listed(dataset, partition):
            self._store.put(dataset, partition, list(self._store.versions(dataset, partition)), listed=False)

    def _root(self, dataset: str) -> str:
        root = self._store.state().roots.get(dataset)
        if root is None and (root := self.sync().roots.get(dataset)) is None:
            raise RequestError(f"the timeline has no dataset {dataset}", "See walship timeline list")
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
            return self._known.is_missing((dataset, partition)) or self._store.is_listed(dataset, partition)

    def _list(self, dataset: str, partition: str) -> None:
        with self._lock:
            before, refreshes = self.sync(), self._refreshes
            root = self._root(dataset)
        files = self._listings.files(dataset, root, partition)
        if not files:
            self._check_there(dataset, root, partition)
        with self._lock:
            after = self.sync()
            since = [e for e in self._timeline.following(before.number) if e.number <= after.number]
            pending = [instant for instant in before.pending.values() if instant.dataset == dataset]
            hidden = unseen(pending, [e.instant for e in since if e.instant.dataset == dataset])
            known = self._store.versions(dataset, partition)
            versions = merged(known, files, before.instant, hidden)
            self.listed += 1
            is_current = self._refreshes == refreshes  # else it is listed again
            if versions or known:
                self._store.put(dataset, partition, versions.values(), listed=is_current)
            elif is_current:
                self._known.missing((dataset, partition))

    def _check_there(self, dataset: str, root: str, partition: str) -> None:
        """StorageError if nothing is at the root, although instants have added files: that would be remembered."""
        with self._lock:
            is_known = any(version.added for version in self._store.versions(dataset, partition))
        if is_known and not self._listings.partitions(dataset, root):
            raise StorageError(
                f"there is nothing at {root}, where the files of {dataset} were", "Check that it is mounted"
            )
