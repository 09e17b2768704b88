"""The thread that publishes file sets, several at a time: sync, store the steps, move, sync, remove the steps.

Bounds: ``WAITING_MAX`` complete file sets wait for it; threads that copy wait while it is full. It remembers some
``KNOWN_FOLDERS_MAX`` folders of the target.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from replication.commit.leases import Leases
from replication.commit.sequence import CommitSequence
from replication.commit.step import CommitStep, step_to_json
from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.names import ROOT, RelativePath
from replication.core.timeline.instants import FileKey, FileVersion
from replication.datasets.copying.file_sets import FileSet
from replication.datasets.copying.journal import CopyJournal, JournalKey
from replication.datasets.copying.progress import CopyProgress
from replication.datasets.copying.staging import Staging
from replication.datasets.publication.events import failed_event, published_events
from replication.datasets.publication.folders import KNOWN_FOLDERS_MAX, LinkedFolders, NewFolders, emptied
from replication.datasets.publication.moves import Expected, Move, MovedFolder, changed, dated, guarded, plan_moves
from replication.datasets.publication.recording import InstantRecorder, added_versions, key_of, overwritten, replaced
from replication.datasets.publication.refusing import registration_refusal
from replication.datasets.publication.steps import (
    CopySite,
    NotifyPublished,
    PublishFileSet,
    RegisterFiles,
    RemoveExtras,
    StartInstant,
    SyncTarget,
    is_lost,
    registered_files,
)
from replication.datasets.stores.base import EntryKind, Store, make_durable
from replication.error_text import one_line
from replication.errors import CopyError, ReplicationError, StepFailedError, UnfinishedSequenceError
from replication.ledger.commit_steps import CommitStepStore
from replication.log import get

WAITING_MAX = 256
_GATHERED_S = 0.3  # file sets of that time are published together, by one sync
_FILES_PER_REMOVAL = 1000
_AGAIN = "an earlier run has begun with that: run it again"
_log = get(__name__)


@dataclass(frozen=True, slots=True)
class PublishedJob:
    """The job that a publisher works for.

    Attributes:
        id: its id, the name under which its steps are stored.
        target: the store.
        staging: where its files wait.
        configuration: of the copy.
        journal: forgets what is published.
        steps: where commit steps are stored.
        progress: told of what is published.
        expected: what the target's files must still be when they are replaced or removed; None does not look.
    """

    id: str
    target: Store
    staging: Staging
    configuration: CopyConfiguration
    journal: CopyJournal
    steps: CommitStepStore
    progress: CopyProgress
    expected: Expected | None = None


@dataclass(frozen=True, slots=True)
class _Planned:
    """A file set, the step that publishes it, and what a timeline is told of it."""

    file_set: FileSet
    step: PublishFileSet
    adds: tuple[FileVersion, ...] = ()
    removes: tuple[FileKey, ...] = ()
    replaces: tuple[FileKey, ...] = ()


class Publisher:
    """Publishes file sets of one job in a thread of its own."""

    def __init__(
        self,
        job: PublishedJob,
        site: CopySite,
        folder_like: Callable[[RelativePath], FileAttributes | None] = lambda path: None,
        published: Callable[[FileSet], None] = lambda file_set: None,
        recorder: InstantRecorder | None = None,
    ) -> None:
        self._target, self._staging, self._configuration = job.target, job.staging, job.configuration
        self._journal, self._steps, self._job, self._progress = job.journal, job.steps, job.id, job.progress
        self._published, self._recorder, self._expected = published, recorder, job.expected
        self._new = NewFolders(job.target, job.configuration, folder_like)
        self._links = LinkedFolders(job.target)
        self._site = site
        self._folders: dict[RelativePath, None] = {}
        self._waiting: queue.Queue[FileSet | None] = queue.Queue(WAITING_MAX)
        self._thread = threading.Thread(target=self._work, name="copy-publisher", daemon=True)
        self.error: BaseException | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, file_set: FileSet) -> None:
        """A file set that is complete; waits while many do. Raises what ended the thread early."""
        while self.error is None:
            try:
                return self._waiting.put(file_set, timeout=1.0)
            except queue.Full:
                continue
        raise self.error

    def finish(self) -> None:
        """Publish what waits, end and join the thread; raises what ended it early."""
        if self._thread.is_alive():
            self._waiting.put(None)
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _work(self) -> None:
        try:
            step_to_json(SyncTarget("", ()))  # loads pydantic while files are copied, which takes a tenth of a second
            with Leases(self._steps) as leases:
                while (batch := self._taken()) is not None:
                    ready = [file_set for file_set in batch if self._is_ready(file_set)]
                    if ready:
                        self._publish(ready, leases)
        except BaseException as error:
            self.error = error
            while self._waiting.full():
                self._waiting.get_nowait()

    def _taken(self) -> list[FileSet] | None:
        """The file sets that wait, at least one; None at the end."""
        first = self._waiting.get()
        if first is None:
            return None
        batch = [first]
        until_s = time.monotonic() + _GATHERED_S
        while len(batch) < WAITING_MAX:
            try:
                following = self._waiting.get(timeout=max(until_s - time.monotonic(), 0.001))
            except queue.Empty:
                break
            if following is None:
                self._waiting.put(None)
                break
            batch.append(following)
        return batch

    def _is_ready(self, file_set: FileSet) -> bool:
        if file_set.failed:
            _log.warning("file_set_not_published", file_set=file_set.name, failed=len(file_set.failed))
            self._report_failed(file_set.name, file_set.failed)
        return bool(file_set.staged) and not file_set.failed

    def _publish(self, batch: Sequence[FileSet], leases: Leases) -> None:
        self._make_durable(batch)
        if len(self._folders) > KNOWN_FOLDERS_MAX:
            self._folders.clear()
        planned = [each for file_set in batch if (each := self._allowed(file_set)) is not None]
        if not planned:
            return
        sequence = self._sequence(planned, self._recorder)
        self._site.synced.discard(sequence.id.urn)
        self._site.notified.discard(sequence.id.urn)
        try:
            sequence.run(self._site, leases)
        except StepFailedError as error:
            if len(planned) == 1 or self._undone(sequence):
                for each in planned:
                    self._not_published(each.file_set, error, sequence)
            else:
                self._publish_each(planned, sequence, leases)
            return
        self._done([each.file_set for each in planned])

    def _publish_each(self, planned: list[_Planned], common: CommitSequence[CopySite], leases: Leases) -> None:
        """One failed, so each gets a sequence of its own; they are stored before the common one is removed."""
        started = [step for step in common.steps if isinstance(step, StartInstant)]
        recorder = self._recorder if started and self._recorder and self._recorder.is_pending(started[0]) else None
        told = next((step.key for step in common.steps if isinstance(step, RegisterFiles)), "")
        singles = [self._sequence([each], recorder, told) for each in planned]
        leases.put([sequence.stored_form() for sequence in singles])
        if recorder is not None:
            begun = (step for each in singles for step in each.steps if isinstance(step, StartInstant))
            recorder.replace(started[0], begun)
        self._steps.remove(self._job, common.id.urn)
        for each, sequence in zip(planned, singles, strict=True):
            try:
                sequence.execute(self._site, leases)
                leases.finish([sequence.id])
            except ReplicationError as error:
                self._not_published(each.file_set, error, sequence)
            else:
                self._done([each.file_set])

    def _make_durable(self, batch: Sequence[FileSet]) -> None:
        """Make the staged files durable before the first step is stored."""
        staged = (each for file_set in batch for each in file_set.staged if each.sent is None)
        files = [self._staging.path_of(each.file) for each in staged]
        make_durable(self._target, [*files, *{path.parent for path in files}])

    def _allowed(self, file_set: FileSet) -> _Planned | None:
        """What publishes a file set; None if it may not be published, which is told."""
        if self._expected is not None and not self._leave_changed(file_set, self._expected):
            return None
        above = {each.file.destination.parent: each.file.destination for each in file_set.staged}.values()
        if link := next(filter(None, map(self._links.above, above)), None):
            what = f"{link} is a symbolic link of the target, and nothing is written through it"
            self._not_published(file_set, CopyError(what, "Remove it, or exclude what is below it"))
            return None
        planned = self._planned(file_set)
        if (refusal := registration_refusal(self._site, self._configuration.register, planned.step)) is None:
            return planned
        self._not_published(file_set, refusal)
        return None

    def _leave_changed(self, file_set: FileSet, expected: Expected) -> bool:
        """Take files out of a file set that have changed in the target, which is told; whether any are left."""
        left = []
        for each in file_set.staged:
            path = each.file.destination
            there = self._target.status(path)
            if expected(path).is_changed(there):
                is_folder = there is not None and there.kind is EntryKind.FOLDER
                reason = "the target has a folder of that name" if is_folder else one_line(changed(path))
                self._progress.failed(path, reason)
            else:
                left.append(each)
        file_set.staged = left
        return bool(left)

    def _planned(self, file_set: FileSet) -> _Planned:
        root = self._staging.folder_of(file_set.name)
        folders = self._target.traits.moves_folders and self._staging.is_clean(root)
        moves = plan_moves(file_set.staged, root, self._is_there, folders=folders)
        moves = [replace(move, folders=self._new_folders(move)) for move in moves]
        if self._target.traits.moves_by_copying and not self._configuration.register:
            moves = dated(moves, file_set.staged)
        if self._expected is not None:
            moves = [guarded(move, self._expected) for move in moves]
        backup = self._configuration.backup_dir or ""
        above = self._new_above(moves)
        step = PublishFileSet(file_set.name, tuple(moves), self._configuration.range_bytes, backup, above)
        if self._recorder is None:
            return _Planned(file_set, step)
        adds = added_versions(file_set, versions=self._configuration.versions)
        return _Planned(file_set, step, adds, overwritten(self._target, moves), replaced(file_set))

    def _is_there(self, folder: RelativePath) -> bool:
        if folder in self._folders:
            return True
        if self._target.status(folder) is None:
            return False
        self._folders[folder] = None
        return True

    def _new_folders(self, move: Move) -> tuple[MovedFolder, ...]:
        """The folders that a move makes, with what they get of the source's; they are noted as being there."""
        if not move.is_folder:
            return ()
        destination = RelativePath(move.destination)
        names = {ROOT}
        for file in move.files:
            folder = RelativePath(file.name).parent
            while folder and folder not in names:
                names.add(folder)
                folder = folder.parent
        found = []
        for name in sorted(names):
            path = name.below(destination)
            self._folders[path] = None
            if (given := self._new.given(name, path)) is not None:
                found.append(given)
        return tuple(found)

    def _new_above(self, moves: Sequence[Move]) -> tuple[MovedFolder, ...]:
        """The folders that are made for files which are moved one by one; they are noted as being there."""
        if not self._target.traits.moves_folders:
            return ()
        missing: set[RelativePath] = set()
        for move in moves:
            folder = ROOT if move.is_folder else RelativePath(move.destination).parent
            while folder and not self._is_there(folder):
                missing.add(folder)
                self._folders[folder] = None
                folder = folder.parent
        return tuple(self._new.given(path, path) or MovedFolder(path, None, "", "") for path in sorted(missing))

    def _sequence(
        self, planned: list[_Planned], recorder: InstantRecorder | None, told: str = ""
    ) -> CommitSequence[CopySite]:
        urn = f"publish-{hashlib.sha256(chr(0).join(each.file_set.name for each in planned).encode()).hexdigest()[:16]}"
        folders = {RelativePath(move.destination).parent for each in planned for move in each.step.moves}
        folders |= {RelativePath(folder.name).parent for each in planned for folder in each.step.folders}
        steps: list[CommitStep[CopySite]] = [each.step for each in planned]
        steps.append(SyncTarget(urn, tuple(sorted(folders))))
        if self._configuration.register:
            files = registered_files(each.step for each in planned)
            key = hashlib.sha256(repr(files).encode()).hexdigest()[:32]
            steps.append(RegisterFiles(self._configuration.register, key, files, told))
        if recorder is not None:
            start, complete = recorder.request(
                urn,
                tuple(version for each in planned for version in each.adds),
                tuple(key for each in planned for key in each.removes),
                tuple(key for each in planned for key in each.replaces),
            )
            steps = [start, *steps, complete]
        if self._site.events is not None:
            events = [event for each in planned for event in published_events(self._target.url, each.file_set)]
            steps.append(NotifyPublished(urn, tuple(events)))
        return CommitSequence(self._steps, self._job, urn, steps)

    def _done(self, file_sets: Sequence[FileSet]) -> None:
        for file_set in file_sets:
            self._staging.forget_set(file_set.name)
            self._progress.published(len(file_set.staged))
            self._published(file_set)
        files = [each for file_set in file_sets for each in file_set.staged]
        paths = [self._staging.path_of(each.file) for each in files]
        keys = (JournalKey.of(f.file, at, self._configuration) for f, at in zip(files, paths, strict=True) if f.sent)
        self._journal.forget(paths, keys)

    def _not_published(
        self, file_set: FileSet, error: ReplicationError, sequence: CommitSequence[CopySite] | None = None
    ) -> None:
        if sequence is not None:
            undone = self._undone(sequence)
            if undone or is_lost(error, sequence.steps):
                self._steps.remove(self._job, sequence.id.urn)
            error = undone or error
        reason = one_line(getattr(error, "cause", None) or error)  # the step's own error
        self._report_failed(file_set.name, {"": reason})
        for each in file_set.staged:
            self._progress.failed(each.file.destination, reason)

    def _undone(self, sequence: CommitSequence[CopySite]) -> ReplicationError | None:
        started = next((step for step in sequence.steps if isinstance(step, StartInstant)), None)
        return self._recorder.end_undone(started) if self._recorder and started else None

    def _report_failed(self, file_set: str, reasons: Mapping[str, str]) -> None:
        if self._site.events is not None:
            try:
                self._site.send([failed_event(self._target.url, file_set, reasons)])
            except OSError as error:  # the failure is in the summary, too
                _log.warning("event_not_sent", file_set=file_set, error=one_line(error))

    def make_folders(self, folders: Sequence[RelativePath]) -> Mapping[RelativePath, str]:
        """Make folders that have no files, durably; why some could not be made. It is called after :meth:`finish`."""
        return self._new.make(folders)

    def remove(self, paths: Sequence[RelativePath], source: Store) -> Iterator[RelativePath]:
        """Remove files of the target that the source does not have, and folders that this empties; yield the files.

        It is called after :meth:`finish`. One that cannot be removed is told; the next run goes on with it.
        """
        with Leases(self._steps) as leases:
            ordered = sorted(paths)
            for begin in range(0, len(ordered), _FILES_PER_REMOVAL):
                some, left, reason = ordered[begin : begin + _FILES_PER_REMOVAL], set[RelativePath](), ""
                try:
                    self._removal(some, emptied(source, some)).run(self._site, leases)
                except (StepFailedError, UnfinishedSequenceError) as error:
                    left = {path for path in some if self._target.status(path) is not None}
                    reason = _AGAIN if isinstance(error, UnfinishedSequenceError) else one_line(error.cause or error)
                for path in some:
                    if path in left:
                        self._progress.failed(path, f"it was not removed: {reason}")
                    else:
                        self._progress.deleted()
                        yield path

    def _removal(self, paths: Sequence[RelativePath], folders: Sequence[RelativePath]) -> CommitSequence[CopySite]:
        urn = f"remove-{hashlib.sha256(chr(0).join(paths).encode()).hexdigest()[:16]}"
        synced = {path.parent for path in (*paths, *folders)} | {ROOT}
        listed = tuple(self._expected(path) for path in paths) if self._expected is not None else ()
        removal = RemoveExtras(tuple(paths), self._configuration.backup_dir or "", tuple(folders), listed)
        steps: list[CommitStep[CopySite]] = [removal, SyncTarget(urn, tuple(sorted(synced)))]
        if self._recorder is not None:
            start, complete = self._recorder.request(urn, removes=tuple(key_of(path) for path in paths))
            steps = [start, *steps, complete]
        return CommitSequence(self._steps, self._job, urn, steps)
