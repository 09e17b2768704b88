"""Records on a timeline what a copy publishes, so that the timeline knows every file of the dataset.

An instant is requested before the steps of a publication are stored, inflight before the first move, and completed when
all is durable. The last two are steps, so a run that goes on with the publication writes neither twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from replication.core.copying.copyable import REPLACES
from replication.core.copying.names import RelativePath
from replication.core.copying.versions import version_name
from replication.core.timeline.instants import (
    Action,
    Changes,
    FileKey,
    FileVersion,
    Instant,
    InstantState,
    partition_of,
)
from replication.datasets.copying.file_sets import FileSet
from replication.datasets.copying.transfer import digest_of
from replication.datasets.publication.moves import Move
from replication.datasets.publication.steps import CompleteInstant, StartInstant, undone
from replication.datasets.stores.base import EntryKind, Store, make_durable
from replication.errors import MissingFileError
from replication.log import get
from replication.timeline.base import ARCHIVED_TOGETHER
from replication.timeline.recorded import RecordedTimeline
from replication.wall_clock import now_us

_ASKED_ONE_BY_ONE = 16
_MAY_RUN_US = 86_400_000_000
_log = get(__name__)


@dataclass(frozen=True, slots=True)
class RecordedDataset:
    """Where a copy is recorded: the address of a timeline's records, and the dataset's name there.

    Without a name it is named by its address.
    """

    timeline: str
    name: str = ""


class InstantRecorder:
    """Makes the instants of one job, as run by the process that has the journal of that number.

    Other hosts may run the same job meanwhile.
    """

    def __init__(
        self,
        timeline: RecordedTimeline,
        recorded: RecordedDataset,
        target: Store,
        job: tuple[str, int],
        range_bytes: int,
    ) -> None:
        self._range_bytes = range_bytes
        self._timeline, self._url, self._target = timeline, recorded.timeline, target
        self._job, self._own = f"{job[0]}/", f"{job[0]}/{job[1]:x}/"
        self.dataset = recorded.name or target.url
        self._root = target.url if recorded.name else ""

    def request(
        self,
        urn: str,
        adds: tuple[FileVersion, ...] = (),
        removes: tuple[FileKey, ...] = (),
        replaces: tuple[FileKey, ...] = (),
    ) -> tuple[StartInstant, CompleteInstant]:
        """Request an instant, durably; the steps that make it inflight and completed."""
        key = f"{self._own}{urn}"
        time = self._timeline.request(Action.COPY, self.dataset, root=self._root, key=key).time
        return StartInstant(self._url, time, adds, removes, replaces), CompleteInstant(self._url, time)

    def is_pending(self, step: StartInstant) -> bool:
        """Whether the instant of a step is neither completed nor undone."""
        return step.time in self._timeline.state().pending

    def end_undone(self, step: StartInstant) -> MissingFileError | None:
        """If the instant of a step was rolled back, take away what was moved since; the error for its files."""
        if not self._timeline.was_undone(step.time):
            return None
        paths = [RelativePath(path) for _, path in self._timeline.removed_with(step.time)]
        self._target.remove_files(paths)
        make_durable(self._target, {path.parent for path in paths}, may_be_gone=True)
        return undone(step.time)

    def replace(self, old: StartInstant, new: Iterable[StartInstant]) -> None:
        """Roll an instant back in favour of others that name its files, which become inflight first. Idempotent."""
        for step in new:
            if not step.is_started(self._timeline):
                step.start(self._timeline)
        if self.is_pending(old):
            self._undo(old.time)

    def end_earlier(self, stored: Collection[int]) -> None:
        """End the instants of earlier runs that no stored step will end.

        Of one that was only requested nothing was published: it is rolled back. One that is inflight although its steps
        are lost gets the files that are in place. One of another host is left for a day: it may run.

        Args:
            stored: the times of the instants that stored steps name.
        """
        old = now_us() - _MAY_RUN_US
        for instant in sorted(self._timeline.state().pending.values(), key=lambda each: each.time):
            is_own = instant.key.startswith(self._job if instant.time < old else self._own)
            if instant.dataset != self.dataset or not is_own or instant.time in stored:
                continue
            found = self._in_place(instant)
            if found.adds or found.removes:
                self._timeline.complete(instant, found)
            else:
                self._undo(instant.time)
            _log.warning("earlier_instant_ended", dataset=self.dataset, instant=instant.time, files=len(found.adds))

    def archive(self) -> None:
        """Pack old events of the timeline together: the next run reads each that is left with a request of its own."""
        self._timeline.archive(ARCHIVED_TOGETHER)

    def _in_place(self, instant: Instant) -> Changes:
        if instant.state is InstantState.REQUESTED:
            return Changes()
        adds = tuple(version for version in instant.changes.adds if self._is_there(version))
        keys = {version.key for version in adds}
        removes = tuple(
            key for key in instant.changes.removes if key in keys or self._target.status(RelativePath(key[1])) is None
        )
        return Changes(adds, instant.changes.replaces, removes)

    def _is_there(self, version: FileVersion) -> bool:
        path = RelativePath(version.path)
        entry = self._target.status(path)
        if entry is None or entry.attributes is None or entry.attributes.size != version.size:
            return False
        sizes = (max(version.size, 1), self._range_bytes)  # of one range, or of several
        return version.digest in {digest_of(self._target, path, version.size, size) for size in sizes}

    def _undo(self, time: int) -> None:
        self._timeline.record(Action.ROLLBACK, self.dataset, Changes(undone=(time,)), root=self._root)


def added_versions(file_set: FileSet, *, versions: bool) -> tuple[FileVersion, ...]:
    """The files of a file set as a timeline has them; with ``versions`` each is the version of a file."""
    found = []
    for each in file_set.staged:
        path = each.file.destination
        name = version_name(path) if versions else None
        file = "" if name is None else str(name.file)
        found.append(FileVersion(partition_of(path), str(path), each.size, file, digest=each.digest))
    return tuple(found)


def replaced(file_set: FileSet) -> tuple[FileKey, ...]:
    """The versions that those of a file set replace; they stay for readers of earlier instants."""
    return tuple(key_of(each.file.metadata[REPLACES]) for each in file_set.staged if REPLACES in each.file.metadata)


def key_of(path: str) -> FileKey:
    """The key of a file of a dataset that is a folder."""
    return partition_of(path), str(path)


def overwritten(target: Store, moves: Sequence[Move]) -> tuple[FileKey, ...]:
    """The files of the target that moves will write over; to be asked before the first one is made."""
    folders: dict[RelativePath, list[RelativePath]] = {}
    for move in moves:
        if not move.is_folder:
            path = RelativePath(move.destination)
            folders.setdefault(path.parent, []).append(path)
    return tuple(key_of(path) for folder, paths in folders.items() for path in existing(target, folder, paths))


def existing(target: Store, folder: RelativePath, paths: list[RelativePath]) -> list[RelativePath]:
    """Those of some paths in a folder that are files of the target; by one listing if they are many."""
    if target.traits.has_cheap_status or len(paths) <= _ASKED_ONE_BY_ONE:
        found = {path: target.status(path) for path in paths}
        return [path for path, entry in found.items() if entry is not None and entry.kind is EntryKind.FILE]
    try:
        there = {entry.attributes.path for entry in target.scan(folder) if entry.attributes is not None}
    except FileNotFoundError:
        return []
    return [path for path in paths if path in there]
