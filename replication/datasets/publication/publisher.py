"""The thread that publishes file sets, several at a time: sync, store the steps, move, sync, remove the steps.

Bounds: ``WAITING_MAX`` complete file sets wait for it; threads that copy wait while it is full.
"""

from __future__ import annotations

import hashlib
import queue
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from replication.commit.leases import Leases
from replication.commit.sequence import CommitSequence
from replication.commit.step import CommitStep, step_to_json
from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.names import ROOT, RelativePath
from replication.datasets.copying.file_sets import FileSet
from replication.datasets.copying.journal import CopyJournal
from replication.datasets.copying.progress import CopyProgress
from replication.datasets.copying.staging import Staging
from replication.datasets.publication.events import EventSink, failed_event, published_events
from replication.datasets.publication.moves import Move, MovedFolder, plan_moves
from replication.datasets.publication.steps import CopySite, NotifyPublished, PublishFileSet, RemoveExtras, SyncTarget
from replication.datasets.stores.base import Store
from replication.errors import ReplicationError, StepFailedError, one_line
from replication.ledger.commit_steps import CommitStepStore
from replication.log import get

WAITING_MAX = 256
_SYNCED_ONE_BY_ONE = 16
_GATHERED_S = 0.3  # file sets of that time are published together, by one sync
_FILES_PER_REMOVAL = 1000
_log = get(__name__)


class Publisher:
    """Publishes file sets of one job in a thread of its own.

    Args:
        target: the store.
        staging: of the job.
        configuration: of the copy.
        journal: of the job.
        steps: where the commit steps are stored.
        job: the job's id; the name under which they are.
        progress: told of what is published.
        folder_like: the attributes in the source of a folder of the target; None if it has none.
        events: where events go.
        published: told of each file set that is in place.
    """

    def __init__(
        self,
        target: Store,
        staging: Staging,
        configuration: CopyConfiguration,
        journal: CopyJournal,
        steps: CommitStepStore,
        job: str,
        progress: CopyProgress,
        folder_like: Callable[[RelativePath], FileAttributes | None] = lambda path: None,
        events: EventSink | None = None,
        published: Callable[[FileSet], None] = lambda file_set: None,
    ) -> None:
        self._target, self._staging, self._configuration = target, staging, configuration
        self._journal, self._steps, self._job, self._progress = journal, steps, job, progress
        self._published, self._folder_like = published, folder_like
        keeps = target.traits.keeps_permissions and target.traits.is_local
        self._preserve = configuration.preserve - {"times"} if keeps else frozenset()
        self._site = CopySite(target, events=events)
        self._folders: dict[RelativePath, None] = {}
        self._waiting: queue.Queue[FileSet | None] = queue.Queue(WAITING_MAX)
        self._thread = threading.Thread(target=self._work, name="copy-publisher", daemon=True)
        self.error: BaseException | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, file_set: FileSet) -> None:
        """A file set that is complete; waits while many do."""
        while self.error is None:
            try:
                return self._waiting.put(file_set, timeout=1.0)
            except queue.Full:
                continue

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
            self._tell_failed(file_set.name, file_set.failed)
        return bool(file_set.staged) and not file_set.failed

    def _publish(self, batch: Sequence[FileSet], leases: Leases) -> None:
        made = self._make_durable(batch)
        planned = [(file_set, self._step(file_set)) for file_set in made]
        if not planned:
            return
        try:
            self._commit(planned, leases)
        except StepFailedError as error:
            if len(planned) == 1:
                self._not_published(planned[0][0], error)
                return
            self._publish_each(planned, leases)

    def _publish_each(self, planned: list[tuple[FileSet, PublishFileSet]], leases: Leases) -> None:
        """One failed, so each gets a sequence of its own; they are stored before the common one is removed."""
        singles = [self._sequence([each]) for each in planned]
        leases.put([sequence.stored_form() for sequence in singles])
        self._steps.remove(self._job, self._sequence(planned).id.urn)
        for (file_set, _), sequence in zip(planned, singles, strict=True):
            try:
                sequence.execute(self._site, leases)
                leases.finish([sequence.id])
            except ReplicationError as error:
                self._not_published(file_set, error)
            else:
                self._done([file_set])

    def _make_durable(self, batch: Sequence[FileSet]) -> list[FileSet]:
        """Make the staged files durable before the first step is stored."""
        files = [self._staging.path_of(each.file) for file_set in batch for each in file_set.staged]
        if len(files) > _SYNCED_ONE_BY_ONE:
            self._target.sync_all()
            return list(batch)
        folders = {path.parent for path in files}
        self._target.sync([*files, *folders])
        return list(batch)

    def _step(self, file_set: FileSet) -> PublishFileSet:
        root = self._staging.folder_of(file_set.name)
        folders = self._target.traits.moves_folders and self._staging.is_clean(root)
        moves = plan_moves(file_set.staged, root, self._is_there, folders=folders)
        moves = [replace(move, folders=self._new_folders(move)) for move in moves]
        backup = self._configuration.backup_dir or ""
        return PublishFileSet(file_set.name, tuple(moves), self._configuration.range_bytes, backup)

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
            if self._preserve and (like := self._folder_like(path)) is not None:
                # its owner, who is this process, must be able to put more into it
                mode = None if like.permission is None else like.permission | stat.S_IRWXU
                found.append(
                    MovedFolder(
                        name,
                        mode if "permissions" in self._preserve else None,
                        like.user if "owner" in self._preserve else "",
                        like.group if "group" in self._preserve else "",
                    )
                )
        return tuple(found)

    def _sequence(self, planned: list[tuple[FileSet, PublishFileSet]]) -> CommitSequence[CopySite]:
        names = "\0".join(file_set.name for file_set, _ in planned)
        urn = f"publish-{hashlib.sha256(names.encode()).hexdigest()[:16]}"
        steps = [step for _, step in planned]
        folders = {RelativePath(move.destination).parent for step in steps for move in step.moves}
        after: list[CommitStep[CopySite]] = [SyncTarget(urn, tuple(sorted(folders)))]
        if self._site.events is not None:
            events = [event for file_set, _ in planned for event in published_events(self._target.url, file_set)]
            after.append(NotifyPublished(urn, tuple(events)))
        return CommitSequence(self._steps, self._job, urn, [*steps, *after])

    def _commit(self, planned: list[tuple[FileSet, PublishFileSet]], leases: Leases) -> None:
        sequence = self._sequence(planned)
        self._site.synced.discard(sequence.id.urn)
        self._site.notified.discard(sequence.id.urn)
        sequence.run(self._site, leases)
        self._done([file_set for file_set, _ in planned])

    def _done(self, file_sets: Sequence[FileSet]) -> None:
        for file_set in file_sets:
            self._staging.forget_set(file_set.name)
            self._progress.published(len(file_set.staged))
            self._published(file_set)
        self._journal.forget([each.file.guid for file_set in file_sets for each in file_set.staged])

    def _not_published(self, file_set: FileSet, error: ReplicationError) -> None:
        reason = one_line(error)
        self._tell_failed(file_set.name, {"": reason})
        for each in file_set.staged:
            self._progress.failed(each.file.destination, reason)

    def _tell_failed(self, file_set: str, reasons: Mapping[str, str]) -> None:
        if self._site.events is not None:
            try:
                self._site.events.send([failed_event(self._target.url, file_set, reasons)])
            except OSError as error:  # the failure is in the summary, too
                _log.warning("event_not_sent", file_set=file_set, error=one_line(error))

    def remove(self, paths: Sequence[RelativePath]) -> None:
        """Remove files of the target that the source does not have; after :meth:`finish`.

        Raises:
            StepFailedError: a file cannot be removed; the next run goes on.
        """
        backup = self._configuration.backup_dir or ""
        with Leases(self._steps) as leases:
            for begin in range(0, len(paths), _FILES_PER_REMOVAL):
                some = paths[begin : begin + _FILES_PER_REMOVAL]
                urn = f"remove-{hashlib.sha256(chr(0).join(some).encode()).hexdigest()[:16]}"
                folders = tuple(sorted({path.parent for path in some} | {ROOT}))
                steps = [RemoveExtras(tuple(some), backup), SyncTarget(urn, folders)]
                CommitSequence(self._steps, self._job, urn, steps).run(self._site, leases)
                for _ in some:
                    self._progress.deleted()
