"""One run of a two-way sync: list both sides, settle each path, copy both ways, note what they agree on.

A run that is killed loses nothing: paths that it had copied look changed on both sides to the next run, which finds
the same content. Both listings are in memory.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration, Existing
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import ROOT, STAGING, RelativePath
from replication.core.copying.two_way import Agreed, SideState, SyncAction, conflict_path, sync_action
from replication.datasets.copying.copier import digest_of
from replication.datasets.copying.file_sets import FileSet
from replication.datasets.copying.staging import job_id
from replication.datasets.finders.recursive import OneDataset
from replication.datasets.job import CopyJob, locked
from replication.datasets.listing.sink import ListingSink
from replication.datasets.listing.walk import walk
from replication.datasets.stores.base import EntryKind, Store
from replication.datasets.stores.local import LocalStore
from replication.datasets.two_way.state import SyncState
from replication.errors import RequestError
from replication.log import get

_log = get(__name__)
_Files = dict[RelativePath, FileAttributes]


@dataclass
class SyncResult:
    """What a run did, or would do.

    Attributes:
        actions: how many paths were settled how.
        conflicts: the names under which older versions of conflicts are kept.
        failures: why a path failed.
    """

    actions: Counter[str] = field(default_factory=Counter)
    conflicts: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


class TwoWaySync:
    """A sync of two stores.

    Args:
        first: one side.
        second: the other; the state is kept with it if it is on this host.
        configuration: of the copies; its filters say which files are meant, ``delete_max`` holds for each side.
    """

    def __init__(self, first: Store, second: Store, configuration: CopyConfiguration) -> None:
        self._first, self._second = first, second
        self._configuration = replace(configuration, existing=Existing.OVERWRITE, delete=True)

    @property
    def _state_dir(self) -> Path:
        name = f"sync-{job_id(self._first.url, self._second.url)}"
        if isinstance(self._second, LocalStore):
            return Path(self._second.root) / STAGING / name
        home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        return Path(home) / "walship" / "copies" / name

    def run(self, *, dry_run: bool = False) -> SyncResult:
        """Sync; what was copied is durable on return.

        Args:
            dry_run: only tell what would be done; paths that changed on both sides are not compared.

        Raises:
            LockedFileError: the same sync runs already.
            RequestError: one side has none of the files that it had, or too many would be removed.
        """
        self._state_dir.mkdir(parents=True, exist_ok=True)
        with locked(self._state_dir / "lock", self._second.url), closing(SyncState(self._state_dir / "state.db")) as db:
            agreed = db.all()
            first, others = listed(self._first, self._configuration)
            second, more = listed(self._second, self._configuration)
            for store, files in ((self._first, first), (self._second, second)):
                if agreed and not files:
                    raise RequestError(
                        f"{store.url} has none of the files that it had", "Check that it is mounted, or remove the rest"
                    )
            run = _SyncRun(self._first, self._second, self._configuration, db)
            run.settle(first, second, agreed, others | more)
            if not dry_run:
                run.compare(first, second)
                run.copy(first, second)
        _log.info("sync_ended", first=self._first.url, second=self._second.url, conflicts=len(run.result.conflicts))
        return run.result


class _SyncRun:
    def __init__(self, first: Store, second: Store, configuration: CopyConfiguration, state: SyncState) -> None:
        self._stores, self._configuration, self._state = (first, second), configuration, state
        self.result = SyncResult()
        self._by_action: dict[SyncAction, list[RelativePath]] = {action: [] for action in SyncAction}

    def settle(self, first: _Files, second: _Files, agreed: dict[str, Agreed], left_out: set[RelativePath]) -> None:
        """Decide on each path; what is no file on a side is left as it is, and all below it."""
        for path in sorted({*first, *second, *map(RelativePath, agreed)}):
            if not left_out.isdisjoint(path.with_folders()):
                continue
            a, b = (SideState.of(files[path]) if path in files else None for files in (first, second))
            action = sync_action(a, b, agreed.get(path))
            self._by_action[action].append(path)
            self.result.actions[action.value] += 1
        self._state.change({}, [path for path in agreed if path not in first and path not in second])

    def compare(self, first: _Files, second: _Files) -> None:
        """Note paths with the same content; of the others the newer keeps its name, and the older gets another."""
        same: dict[str, Agreed] = {}
        for path in self._by_action[SyncAction.COMPARE]:
            a, b = first[path], second[path]
            if a.size == b.size and self._digest(0, a) == self._digest(1, b):
                same[path] = Agreed(SideState.of(a), SideState.of(b))
                continue
            first_wins = (a.timestamp_ns or 0) >= (b.timestamp_ns or 0)
            loser, side, files = (b, 1, second) if first_wins else (a, 0, first)
            names = (conflict_path(loser, ("first", "second")[side], number) for number in count())
            kept = next(name for name in names if name not in first and name not in second)
            self._stores[side].move(path, kept)
            self._stores[side].sync([path.parent])
            files[kept] = replace(files.pop(path), path=kept)
            ways = (SyncAction.TO_SECOND, SyncAction.TO_FIRST)
            self._by_action[ways[not first_wins]].append(path)
            self._by_action[ways[side]].append(kept)
            self.result.conflicts.append(kept)
        self._state.change(same, [])

    def _digest(self, side: int, file: FileAttributes) -> str:
        return digest_of(self._stores[side], file.path, file.size, self._configuration.range_bytes)

    def copy(self, first: _Files, second: _Files) -> None:
        """Copy and remove, one way after the other."""
        actions = self._by_action
        self._one_way(0, first, second, actions[SyncAction.TO_SECOND], actions[SyncAction.REMOVE_SECOND])
        self._one_way(1, second, first, actions[SyncAction.TO_FIRST], actions[SyncAction.REMOVE_FIRST])

    def _one_way(
        self, side: int, files: _Files, others: _Files, copied: list[RelativePath], removed: list[RelativePath]
    ) -> None:
        if not copied and not removed:
            return
        source, target = self._stores[side], self._stores[1 - side]
        chosen = _Chosen(source, [files[path] for path in copied], [others[path] for path in removed])
        done: list[FileAttributes] = []

        def published(file_set: FileSet) -> None:
            done.extend(each.file.origin for each in file_set.staged)

        job = CopyJob(source, target, OneDataset(chosen), self._configuration, published=published)
        self.result.failures.update(job.run().failures)
        agreed: dict[str, Agreed] = {}
        for file in done:
            there = target.status(file.path)
            if there is not None and there.attributes is not None and there.attributes.size == file.size:
                states = (SideState.of(file), SideState.of(there.attributes))
                agreed[file.path] = Agreed(*states) if side == 0 else Agreed(*reversed(states))
        self._state.change(agreed, [path for path in removed if target.status(path) is None])


class _Chosen:
    """A dataset of files that are copied, and of others that are removed from the target."""

    root = ROOT

    def __init__(self, source: Store, files: Iterable[FileAttributes], extras: Iterable[FileAttributes]) -> None:
        self._source, self._files, self._extras = source, files, extras

    def copyable_files(self, target: Store, configuration: CopyConfiguration) -> Iterator[CopyableFile]:
        """All that are copied."""
        for file in self._files:
            yield CopyableFile.build(self._source.url, file, configuration)

    def list_into(self, target: Store, configuration: CopyConfiguration, sink: ListingSink) -> None:
        """Both."""
        names: dict[str, None] = {}
        for file in self.copyable_files(target, configuration):
            names[file.file_set] = None
            sink.copy([file])
        for name in names:
            sink.ended(name)
        for extra in self._extras:
            sink.extra(extra)


def listed(store: Store, configuration: CopyConfiguration) -> tuple[_Files, set[RelativePath]]:
    """The files of a store that are meant, and the paths of other files, links and special files.

    Raises:
        OSError: a folder cannot be listed; without it the sync would take its files for removed.
    """
    files: _Files = {}
    others: set[RelativePath] = set()
    lock = threading.Lock()

    def visit(folder: RelativePath) -> list[RelativePath]:
        below = []
        for entry in store.scan(folder):
            if entry.refused or entry.attributes is None:
                with lock:
                    others.add(entry.path)
            elif entry.kind is EntryKind.FOLDER:
                path = entry.attributes.path
                if path.name != STAGING and configuration.recursive and configuration.filters.enters(path):
                    below.append(path)
            else:
                with lock:
                    if configuration.filters.takes(entry.attributes):
                        files[entry.attributes.path] = entry.attributes
                    else:
                        others.add(entry.attributes.path)
        return below

    if store.status(ROOT) is not None or not store.traits.is_local:
        walk(ROOT, visit, 2 if store.traits.is_local else 4)
    return files, others
