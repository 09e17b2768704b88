"""One run of a two-way sync: list both sides, decide on each path, copy both ways, note what they agree on.

A run that is killed loses nothing: paths that it had copied look changed on both sides to the next run, which finds
the same content.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import count, groupby
from operator import attrgetter
from pathlib import Path

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration, Existing
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import ROOT, STAGING, RelativePath
from replication.core.copying.two_way import Agreed, SideState, SyncAction, conflict_path, sync_action
from replication.datasets.copying.faults import telling_faults
from replication.datasets.copying.file_sets import FileSet
from replication.datasets.copying.progress import CopyProgress, ProgressView
from replication.datasets.copying.staging import job_id, locked, make_state_dir, state_dir
from replication.datasets.copying.transfer import digest_of
from replication.datasets.finders.recursive import OneDataset
from replication.datasets.job import CopyJob
from replication.datasets.listing.compare import SET_FILES
from replication.datasets.listing.sink import ListingSink
from replication.datasets.listing.walk import walk
from replication.datasets.publication.moves import Listed, changed
from replication.datasets.removals import removals_refusal
from replication.datasets.request import is_missing
from replication.datasets.stores.base import Entry, EntryKind, Store, is_temporary
from replication.datasets.stores.same_names import name_key
from replication.datasets.two_way.state import SyncState
from replication.error_text import one_line
from replication.errors import RequestError
from replication.log import get, redact

_log = get(__name__)
_WAYS = (SyncAction.TO_SECOND, SyncAction.TO_FIRST)
_REMOVALS = (SyncAction.REMOVE_SECOND, SyncAction.REMOVE_FIRST)
_NAMES = ("first", "second")
_NOTED = 1000
_SAME_NAME = "one side ignores case, and takes its name and another's for one: give it one name on both sides"
_CLASH = "its path is a file on one side and a folder on the other: rename one"


@dataclass
class SyncResult:
    """What a run did, or would do.

    Attributes:
        actions: how many paths got which action.
        conflicts: the names under which older versions of conflicts are kept.
        failures: why a path failed.
        skipped: how many links and special files of both sides were left out, by kind.
    """

    actions: Counter[str] = field(default_factory=Counter)
    conflicts: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)


class TwoWaySync:
    """A sync of two stores.

    The state is kept with the second if that is on this host. Filters say which files are meant, and ``delete_max``
    holds for each side.
    """

    def __init__(
        self, first: Store, second: Store, configuration: CopyConfiguration, *, retry_suspended: bool = False
    ) -> None:
        self._retry_suspended = retry_suspended
        self._stores = first, second
        self._configuration = replace(configuration, existing=Existing.OVERWRITE, delete=True)
        self._stage, self._progress = "", CopyProgress()

    def view(self) -> tuple[str, ProgressView]:
        """What the sync does now, and how far it is with that; for other threads."""
        return self._stage, self._progress.view()

    def _begin(self, stage: str) -> CopyProgress:
        self._progress = CopyProgress()
        self._stage = stage
        return self._progress

    @property
    def _state_dir(self) -> Path:
        first, second = self._stores
        return state_dir(second, f"sync-{job_id(first.url, second.url)}")

    def run(
        self, *, dry_run: bool = False, planned: Callable[[SyncAction, RelativePath], None] | None = None
    ) -> SyncResult:
        """Sync; what was copied is durable on return.

        Args:
            dry_run: only tell what would be done; paths that changed on both sides are not compared.
            planned: told of each path of a dry run that is not the same, action by action.

        Raises:
            LockedFileError: the same sync runs already.
            NoSpaceError: a side is full.
            StorageError: a side cannot be used, or not be listed whole.
            RequestError: nothing is at either address, they were synced in the other order before, one side has none of
                the files that it had, or too many would be removed.
        """
        first, second = self._stores
        if is_missing(first) and is_missing(second):
            raise RequestError(f"there is nothing at {first.url}, and nothing at {second.url}", "Check both addresses")
        with telling_faults(f"{first.url} or {second.url}"), ExitStack() as stack:
            path: Path | str = self._state_dir / "state.db"
            other = state_dir(first, f"sync-{job_id(second.url, first.url)}") / "state.db"
            if other.exists() and not os.path.exists(path):  # what one notes the other does not know
                what = f"{second.url} and {first.url} were synced before, in that order"
                raise RequestError(what, f"Name them in that order, too; or remove {other.parent}")
            if not dry_run:
                make_state_dir(self._state_dir)
                stack.enter_context(locked(self._state_dir / "lock", second.url))
            elif not os.path.exists(path):
                path = ":memory:"
            state = SyncState(path)
            stack.callback(state.close)
            result = self._run(state, dry_run=dry_run)
            if dry_run and planned is not None:
                _tell(state, planned)
        _log.info("sync_ended", first=first.url, second=second.url, conflicts=len(result.conflicts))
        return result

    def _run(self, state: SyncState, *, dry_run: bool) -> SyncResult:
        earlier, result = CopyProgress(), SyncResult()
        if not dry_run:
            for side in (0, 1):  # what they change is listed, then
                self._job(side, state, earlier).finish_earlier()
        result.failures |= earlier.counts.failures
        for side, store in enumerate(self._stores):
            progress = self._begin(f"listing {store.url}")
            list_side(store, self._configuration, side, state, progress)
            if state.is_lost(side, self._is_meant):
                raise RequestError(
                    f"{store.url} has none of the files that it had", "Check that it is mounted, or remove the rest"
                )
            result.failures |= progress.counts.failures
            result.skipped.update(progress.counts.skipped)
        result.actions = state.decide(sync_action, self._is_meant)
        if not dry_run:
            for store in self._stores:
                self._leave_same_names(store, state, result)
        clashes, left = state.leave_clashes()
        result.actions -= left
        result.failures |= dict.fromkeys(clashes, _CLASH)
        if not dry_run:
            most = max(state.total(action)[0] for action in _REMOVALS)
            if refusal := removals_refusal(most, self._configuration):  # before the first side is changed
                raise refusal
            state.forget_gone()
            self._compare(state, result)
            for side in (0, 1):
                self._one_way(side, state, result)
        return result

    def _leave_same_names(self, store: Store, state: SyncState, result: SyncResult) -> None:
        """Leave alone what a store that ignores case takes for one file: one would replace the other."""
        if not store.traits.moves_folders:
            return
        store.make_folder(RelativePath(STAGING))
        if (key := name_key(store)) is not str:
            same, left = state.leave_same_names(key)
            result.actions -= left
            result.failures |= dict.fromkeys(same, _SAME_NAME)
        store.remove_folder_if_empty(RelativePath(STAGING))

    def _is_meant(self, path: RelativePath) -> bool:
        """Whether the filters mean a path of an agreed file, which is listed then if it is there."""
        filters = self._configuration.filters
        if path.parent and not (self._configuration.recursive and all(map(filters.enters, path.parent.with_folders()))):
            return False
        return filters.names(path)

    def _compare(self, state: SyncState, result: SyncResult) -> None:
        """Note paths with the same content; of the others the newer keeps its name, and the older gets another."""
        progress = self._begin("comparing what changed on both sides")
        progress.listed(*state.total(SyncAction.COMPARE))
        progress.listing_ended()
        for a, b in state.files(SyncAction.COMPARE):
            assert a is not None and b is not None
            try:
                is_same = a.size == b.size and self._digest(0, a) == self._digest(1, b)
            except Exception as error:  # each driver has its own errors
                if is_temporary(error):
                    raise
                result.failures[a.path] = redact(one_line(error))
                continue
            if is_same:
                state.change({a.path: Agreed(SideState.of(a), SideState.of(b))}, ())
                result.actions += Counter({SyncAction.NOTHING.value: 1})
                result.actions -= Counter({SyncAction.COMPARE.value: 1})  # drops it at zero
            else:
                result.conflicts.append(self._keep_both(state, a, b))
            progress.moved(max(a.size, b.size))
            progress.published(1)

    def _keep_both(self, state: SyncState, a: FileAttributes, b: FileAttributes) -> RelativePath:
        first_wins = (a.timestamp_ns or 0) >= (b.timestamp_ns or 0)
        loser, side = (b, 1) if first_wins else (a, 0)
        names = (conflict_path(loser, _NAMES[side], number) for number in count())
        kept = next(
            name for name in names if state.is_free(name) and all(each.status(name) is None for each in self._stores)
        )
        self._stores[side].move(loser.path, kept)
        self._stores[side].sync([loser.path.parent])
        state.act(_WAYS[side], side, replace(loser, path=kept))
        state.act(_WAYS[1 - side], 1 - side, a if first_wins else b)
        return kept

    def _digest(self, side: int, file: FileAttributes) -> str:
        return digest_of(self._stores[side], file.path, file.size, self._configuration.range_bytes)

    def _job(self, side: int, state: SyncState, progress: CopyProgress) -> CopyJob:
        """The copy from one side to the other."""
        source, target = self._stores[side], self._stores[1 - side]
        job = CopyJob(source, target, OneDataset(_Chosen(source, side, state)), self._configuration, progress)
        job.expected = lambda path: Listed.of(state.file(1 - side, path))
        job.retry_suspended = self._retry_suspended
        return job

    def _one_way(self, side: int, state: SyncState, result: SyncResult) -> None:
        """Copy from one side, and remove from the other, also what a run that was killed has left staged there."""
        removed, _ = state.total(_REMOVALS[side])
        target, job = self._stores[1 - side], self._job(side, state, CopyProgress())
        if not removed and not state.total(_WAYS[side])[0] and not job.state_dir.exists():
            return
        job.progress = self._begin(f"copying to {target.url}")

        def published(file_set: FileSet) -> None:
            agreed: dict[str, Agreed] = {}
            for each in file_set.staged:
                file, there = each.file.origin, target.status(each.file.destination)
                if there is not None and there.attributes is not None and self._is_copy(target, there.attributes, file):
                    states = (SideState.of(file), SideState.of(there.attributes))
                    agreed[file.path] = Agreed(*states) if side == 0 else Agreed(*reversed(states))
            state.change(agreed, ())

        self._clear_way(side, state)
        job.published = published
        counts = job.run()
        result.failures.update(counts.failures)
        for pair in state.files(_REMOVALS[side]):
            if (gone := pair[1 - side]) is None:
                continue
            there = target.status(gone.path)
            if there is None or there.kind is EntryKind.FOLDER:
                state.change({}, [gone.path])
            elif not counts.failed:
                result.failures[gone.path] = one_line(changed(gone.path))

    def _is_copy(self, target: Store, there: FileAttributes, file: FileAttributes) -> bool:
        """Whether a published file is not known to have been edited since."""
        if there.size != file.size:
            return False
        if not target.traits.keeps_times or there.timestamp_ns is None or file.timestamp_ns is None:
            return True
        precision_ns = max(store.traits.precision_ns for store in self._stores)
        return abs(there.timestamp_ns - file.timestamp_ns) < precision_ns

    def _clear_way(self, side: int, state: SyncState) -> None:
        """Remove files first where a folder will be, and those of a folder where a file will be."""
        files = state.in_the_way(_WAYS[side], _REMOVALS[side], 1 - side)
        if files:
            job = self._job(side, state, CopyProgress())
            job.finder = OneDataset(_Removed(files))
            job.run()


def _tell(state: SyncState, planned: Callable[[SyncAction, RelativePath], None]) -> None:
    for action in SyncAction:
        if action is not SyncAction.NOTHING:
            for first, second in state.files(action):
                if (file := first or second) is not None:
                    planned(action, file.path)


class _Removed:
    """A dataset of files that are only removed from the target."""

    root = ROOT

    def __init__(self, files: list[FileAttributes]) -> None:
        self._files = files

    def list_into(self, target: Store, configuration: CopyConfiguration, sink: ListingSink) -> None:
        """List them."""
        for file in self._files:
            sink.extra(file)


class _Chosen:
    """A dataset of files that are copied, and of others that are removed from the target."""

    root = ROOT

    def __init__(self, source: Store, side: int, state: SyncState) -> None:
        self._source, self._side, self._state = source, side, state

    def list_into(self, target: Store, configuration: CopyConfiguration, sink: ListingSink) -> None:
        """List the files to copy, file set by file set, then those to remove."""
        found = (pair[self._side] for pair in self._state.files(_WAYS[self._side]))
        files = (CopyableFile.build(self._source.url, file, configuration) for file in found if file is not None)
        for file_set, some in groupby(files, key=attrgetter("file_set")):
            name = file_set
            for number, file in enumerate(some, 1):
                sink.copy([replace(file, file_set=name)])
                if number % SET_FILES == 0:
                    sink.ended(name)
                    name = f"{file_set}//{number}"  # no folder has that name
            sink.ended(name)
        for pair in self._state.files(_REMOVALS[self._side]):
            if (extra := pair[1 - self._side]) is not None:
                sink.extra(extra)


def list_side(
    store: Store, configuration: CopyConfiguration, side: int, state: SyncState, progress: CopyProgress
) -> None:
    """Note the files of a store that are meant, and the paths of other files, links and special files.

    Raises:
        OSError: a folder cannot be listed, or another error of the store's driver; without it the sync would take its
            files for removed.
    """

    def visit(folder: RelativePath) -> list[RelativePath]:
        below: list[RelativePath] = []
        files: list[FileAttributes] = []
        others: list[RelativePath] = []
        for entry in found(folder):
            if entry.refused or entry.attributes is None:
                others.append(entry.path)
                if not entry.refused:
                    progress.skipped(entry.kind.value)
                elif configuration.filters.names(entry.path):
                    progress.failed(entry.path, entry.refused)
            elif entry.kind is EntryKind.FOLDER:
                path = entry.attributes.path
                if path.name != STAGING and configuration.recursive and configuration.filters.enters(path):
                    below.append(path)
            elif configuration.filters.takes(entry.attributes):
                files.append(entry.attributes)
            else:
                others.append(entry.attributes.path)
            if len(files) + len(others) >= _NOTED:
                note(files, others)
        note(files, others)
        return below

    def found(folder: RelativePath) -> Iterator[Entry]:
        try:
            yield from store.scan(folder)
        except FileNotFoundError:
            if folder:
                raise  # a side need not exist yet, but what was listed does

    def note(files: list[FileAttributes], others: list[RelativePath]) -> None:
        state.listed(side, files, others)
        progress.listed(len(files), sum(file.size for file in files))
        files.clear()
        others.clear()

    walk([ROOT], visit, 2 if store.traits.is_local else 4)
