"""Cleans, rolls back and restores datasets that are folders. Each is an instant; what died is finished next time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from peer.timeline.views import Views
from replication.core.clock import moment_text
from replication.core.copying.names import RelativePath
from replication.core.timeline.cleaning import KeepPolicy, touched_since, undone_by_restore
from replication.core.timeline.instants import DELETING, Action, Changes, FileVersion, Instant, InstantState
from replication.datasets.copying.faults import telling_faults
from replication.datasets.removals import is_empty
from replication.datasets.stores.base import Store
from replication.datasets.stores.open import open_store
from replication.error_text import counted
from replication.errors import LockedFileError, RequestError, StorageError
from replication.log import get
from replication.timeline.holds import Hold, TimelineHolds
from replication.timeline.recorded import RecordedTimeline

_EVERYBODY = 1 << 62
_PLANNING_S, _STARTING_S = 600.0, 60.0
_log = get(__name__)


class DatasetUpkeep:
    """Deletes files of one dataset."""

    def __init__(
        self,
        dataset: str,
        timeline: RecordedTimeline,
        views: Views,
        holds: TimelineHolds,
        open: Callable[[str], Store] = open_store,
    ) -> None:
        self._dataset, self._timeline, self._views = dataset, timeline, views
        self._holds, self._open = holds, open

    def clean(self, policy: KeepPolicy, *, every: bool = False) -> Instant | None:
        """Delete versions that were replaced and that neither the policy nor a reader keeps.

        Looks at the partitions that instants have touched since the last clean, and lists none that it knows. ``every``
        looks at every partition.

        Returns:
            The instant, completed; None if there was nothing to delete.

        Raises:
            LockedFileError: another process cleans, rolls back or restores the dataset.
            StorageError: nothing is where its files should be.
        """
        with self._alone() as mine:
            self._finish()
            versions = self._removable(policy, every=every)
            if not versions:
                return None
            self._check_there()
            with self._announced(max(version.removed for version in versions), mine) as holds:
                held = min((hold.instant for hold in holds), default=_EVERYBODY)
                versions = [version for version in versions if version.removed <= held]
                if not versions:
                    return None
                changes = Changes(
                    removes=tuple(version.key for version in versions),
                    retained=max(version.removed for version in versions),
                )
                asked = self._timeline.request(Action.CLEAN, self._dataset, root=self._root(), key=policy.key)
                started = self._timeline.start(asked, changes)
            return self._delete(started)

    def _removable(self, policy: KeepPolicy, *, every: bool) -> list[FileVersion]:
        self._views.sync()
        touched = None if every else touched_since(self._timeline.newest_first(), self._dataset, policy)
        partitions = self._views.partitions(self._dataset) if touched is None else sorted(touched)
        return [v for name in partitions for v in policy.removable(self._views.versions(self._dataset, name))]

    def rollback(self, times: Sequence[int]) -> Instant:
        """Undo instants: delete the files that they added, and let readers see again what they replaced.

        Args:
            times: when they were completed; for pending ones, when they were requested.

        Raises:
            RequestError: an instant is unknown, or a file that it had replaced is gone, or may be if it is pending.
            LockedFileError: readers hold the files, or another process changes the dataset.
        """
        done = self._undo(lambda: times, Action.ROLLBACK)
        assert done is not None, "it names instants"
        return done

    def restore(self, instant: int) -> Instant | None:
        """Undo all instants after one; None if there are none. Raises as ``rollback``."""
        self._root()
        self._timeline.state().check_readable(self._dataset, instant)

        def plan() -> list[int]:
            return undone_by_restore(self._timeline.following(0), self._dataset, instant)

        return self._undo(plan, Action.RESTORE) if plan() else None

    def _undo(self, plan: Callable[[], Sequence[int]], action: Action) -> Instant | None:
        """Undo what is planned once nobody else does, so that a restore also undoes what was completed meanwhile.

        None if another process has undone it.
        """
        with self._alone() as mine:
            finished = self._finish()
            undone = {time for each in finished for time in each.changes.undone}
            if undone.issuperset(plan()):
                return finished[-1] if finished else None
            self._check_there()
            with self._announced(_EVERYBODY, mine) as holds:
                times = [time for time in plan() if time not in undone]
                if held := [hold for hold in holds if hold.instant >= min(times)]:
                    readers = counted(len(held), "reader")
                    until = moment_text(int(max(hold.until_s for hold in held) * 1e6))
                    raise LockedFileError(
                        f"files of {self._dataset} as of {held[0].instant} or later are held by {readers}",
                        f"Wait until they are done; if they were killed, until {until}",
                    )
                started = self._timeline.undo(self._dataset, times, action=action)
            return self._delete(started)

    def _finish(self) -> list[Instant]:
        """Finish what processes that died have begun; what they did."""
        self._root()
        done: list[Instant] = []
        for instant in list(self._timeline.state().pending.values()):
            if instant.dataset != self._dataset or instant.action not in DELETING:
                continue
            if instant.state is InstantState.INFLIGHT:
                done.append(self._delete(instant))
            else:
                self._timeline.complete(instant, Changes())
        return done

    def _delete(self, started: Instant) -> Instant:
        paths = [RelativePath(path) for _, path in started.changes.removes]
        with telling_faults(root := self._root()), self._open(root) as store:
            store.remove_files(paths)
            folders = sorted({path.parent for path in paths})
            store.sync([folder for folder in folders if store.status(folder) is not None])
        done = self._timeline.complete(started, started.changes)
        self._views.sync()
        _log.info("dataset_files_deleted", dataset=self._dataset, action=done.action.value, files=len(paths))
        return done

    def _check_there(self) -> None:
        """StorageError if nothing is at the root: what is not deleted now would be seen again once it is mounted."""
        with telling_faults(root := self._root()), self._open(root) as store:
            if is_empty(store):
                raise StorageError(
                    f"there is nothing at {root}, so no file of {self._dataset} can be deleted",
                    "Nothing was changed. Check that it is mounted",
                )

    def _root(self) -> str:
        root = self._timeline.state().roots.get(self._dataset)
        if root is None:
            raise RequestError(f"the timeline has no dataset {self._dataset}", "See walship timeline list")
        return root

    @contextmanager
    def _alone(self) -> Iterator[Hold]:
        """Keep other processes from deleting files of the dataset. LockedFileError if one does."""
        mine = self._holds.announce(self._dataset, 0, _PLANNING_S)
        try:
            self._others(mine.id)
            yield mine
        finally:
            self._holds.release(mine)

    @contextmanager
    def _announced(self, retained: int, mine: Hold) -> Iterator[list[Hold]]:
        """Have new readers of older instants wait; the holds of those that there are."""
        announced = self._holds.announce(self._dataset, retained, _STARTING_S)
        try:
            yield self._others(mine.id, announced.id)
        finally:
            self._holds.release(announced)

    def _others(self, *mine: str) -> list[Hold]:
        holds = self._holds.of(self._dataset)
        if len([hold for hold in holds if hold.id in mine]) < len(mine):  # others may have deleted and restored since
            raise LockedFileError(
                f"it took longer than {_PLANNING_S:.0f} s to find out what to delete of {self._dataset}",
                "Run it again: it lists nothing twice",
            )
        others = [hold for hold in holds if hold.id not in mine]
        if any(hold.is_cleaner for hold in others):
            raise LockedFileError(
                f"another process deletes files of {self._dataset}",
                f"Wait until it is done; if it was killed, on another machine, {_PLANNING_S:.0f} s at most",
            )
        return others
