"""One run of a copy: redo what an earlier run left, list, stage, publish, remove extras, sum up.

Threads: this one lists with up to three others and Spark's tasks, ``configuration.threads`` copy, one publishes. All
are joined at the end.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from replication.commit.file_store import FileCommitSteps
from replication.commit.leases import LEASE_S, Leases
from replication.commit.redo import Redo
from replication.commit.step import step_from_json
from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import ROOT, STAGING, RelativePath
from replication.datasets.copying.copier import SMALL_BYTES_MAX, FileCopier, ItemCopier
from replication.datasets.copying.faults import telling_faults
from replication.datasets.copying.file_sets import FileSet, FileSets
from replication.datasets.copying.journal import CopyJournal
from replication.datasets.copying.progress import CopyCounts, CopyProgress
from replication.datasets.copying.stager import Stager
from replication.datasets.copying.staging import LOCK, Staging, job_id, locked, make_state_dir, state_dir
from replication.datasets.copying.throttle import CopyThrottle, CurrentRate
from replication.datasets.copying.transfer import changed
from replication.datasets.copying.uploading import give_up_all
from replication.datasets.copying.window import CopyWindow
from replication.datasets.finders.base import Dataset, DatasetFinder, ListsIntoSink
from replication.datasets.listing.sink import ListingSink, Tasks
from replication.datasets.publication.events import EventSink
from replication.datasets.publication.moves import Expected
from replication.datasets.publication.publisher import PublishedJob, Publisher
from replication.datasets.publication.recording import InstantRecorder, RecordedDataset
from replication.datasets.publication.refusing import edited
from replication.datasets.publication.steps import CopySite, PublishFileSet, RemoveExtras, StartInstant, is_lost
from replication.datasets.removals import removals_refusal
from replication.datasets.stores.base import EntryKind, Store
from replication.datasets.stores.local import LocalStore
from replication.errors import RequestError, SequenceHeldError, StepFailedError, SuspendedSequenceError, VersionError
from replication.ledger.commit_steps import StoredSequence
from replication.log import get

SPLIT_BYTES = 16 << 20
EXTRAS_MAX = 1_000_000
NOT_REMOVED = "not removed"  # what becomes of files that only the target has, in a run in which a file fails
_THREADS = 8
_HELD = f"the process that began with it is not known to have ended: run it again in {LEASE_S:g} s"
_log = get(__name__)

#: Told of each outcome: its word, the path, the size in bytes, and why it failed.
Report = Callable[[str, str, int, str], None]


@dataclass
class CopyJob:
    """A copy from one store to another.

    Attributes:
        source: where the files are.
        target: where they go.
        finder: finds the datasets that are copied.
        configuration: how.
        progress: counts, which others may look at meanwhile.
        report: told of each file's outcome.
        published: told of each file set that is in place.
        events: where an event for each file and file set goes.
        recorded: the timeline that is told of every file; None for none.
        expected: what the target's files must still be when they are replaced or removed; None does not look.
        places: what else tells the two stores from others of the same addresses, such as an endpoint.
        retry_suspended: try publications and removals again that failed too often.
        retry_hint: what a person says to have that.
        stopped: ends the run early, when it is set; what is staged stays.
    """

    source: Store
    target: Store
    finder: DatasetFinder
    configuration: CopyConfiguration
    progress: CopyProgress = field(default_factory=CopyProgress)
    report: Report = lambda outcome, path, size, reason: None
    published: Callable[[FileSet], None] = lambda file_set: None
    events: EventSink | None = None
    recorded: RecordedDataset | None = None
    places: str = ""
    retry_suspended: bool = False
    expected: Expected | None = None
    retry_hint: str = "--retry-suspended"
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def id(self) -> str:
        """The same for the same two stores."""
        return job_id(self.source.url, self.target.url + self.places)

    @property
    def state_dir(self) -> Path:
        """Where the journal, the commit steps and the lock are: with what is staged if that is on this host."""
        return state_dir(self.target, self.id)

    def run(self) -> CopyCounts:
        """Run it; everything that is published is durable on return.

        Returns:
            What was done; files that failed are in it, and are tried again by the next run.

        Raises:
            LockedFileError: the same copy runs already.
            RequestError: more files would be removed than are allowed, or the source is empty.
            NoSpaceError: the target is full; the next run goes on.
        """
        with telling_faults(self.target.url):
            return self._run()

    def finish_earlier(self) -> None:
        """Finish publications that earlier runs left, and copy nothing. Raises as :meth:`run`."""
        with telling_faults(self.target.url):
            if (self.state_dir / "commits").exists():
                with locked(self.state_dir / LOCK, self.target.url):
                    steps = FileCommitSteps(str(self.state_dir / "commits"))
                    self._redo(steps, CopySite(self.target, redoes=True, source=self.source, events=self.events))

    def _run(self) -> CopyCounts:
        self.target.make_folder(ROOT)
        make_state_dir(self.state_dir)
        self.progress.told = lambda path, reason: self.report("failed", path, 0, reason)
        with locked(self.state_dir / LOCK, self.target.url) as check, ExitStack() as stack:
            steps = FileCommitSteps(str(self.state_dir / "commits"))
            if isinstance(self.target, LocalStore):
                self.target.measure_times(RelativePath(f"{STAGING}/{self.id}/{LOCK}"))
            if self.target.traits.moves_folders:
                self.target.make_folder(RelativePath(STAGING))  # the listing asks for it
            site = CopySite(self.target, redoes=True, source=self.source, events=self.events)
            blocked = self._redo(steps, site)
            journal = CopyJournal(self.state_dir / "journal.db", self.target.boot())
            stack.callback(journal.close)
            recorder = self._recorder(steps, site, journal)
            carry = stack.enter_context(self._copier())
            run = _Run(self, (steps, journal), carry, blocked, recorder)
            run.run()
            check()
            if recorder is not None:
                recorder.archive()
            counts = self.progress.counts
            is_left = bool(counts.failed) and not (journal.has_nothing() and not self._stored(steps))
            if not is_left and not self.stopped.is_set() and not blocked:
                if self.target.uploads is not None:
                    give_up_all(self.target.uploads, journal)
                journal.clear()
                journal.close()
                run.staging.remove()
                self.target.remove_folder_if_empty(RelativePath(STAGING))
        _log.info("copy_ended", target=self.target.url, published=counts.files_published, failed=counts.failed)
        return counts

    @contextmanager
    def _copier(self) -> Iterator[ItemCopier]:
        """What copies: threads of this process, or tasks of Spark."""
        configuration, moved = self.configuration, self.progress.moved
        stores = (self.source, self.target)
        is_local = all(store.traits.is_local for store in stores)
        most = min(os.cpu_count() or 1, _THREADS)  # more write large local files out of order, and are slower
        count = most if is_local else _THREADS
        throttle = CopyThrottle(CurrentRate(configuration.limit), self.stopped)
        if not configuration.spark:
            yield FileCopier(stores, configuration, throttle, moved, self.stopped, configuration.threads or count)
            return
        from replication.datasets.copying.spark import is_large, spark_copier  # deferred: most copies need no Spark

        local = FileCopier(stores, configuration, throttle, moved, self.stopped, count)
        with spark_copier(stores, configuration, moved, local, lambda: is_large(self.progress.counts)) as copier:
            yield copier

    def _redo(self, steps: FileCommitSteps, site: CopySite) -> frozenset[str]:
        """Finish publications and removals of earlier runs; the file sets whose publication still fails."""
        blocked: set[str] = set()
        stored = self._stored(steps)
        if not stored:
            return frozenset()
        with Leases(steps) as leases:
            redo: Redo[CopySite] = Redo(leases, site)
            for sequence in stored:
                if sequence.suspended and self.retry_suspended:
                    steps.retry(self.id, sequence.id.urn)
                if self._is_ended(steps, redo, sequence):
                    continue
                sequence = next(iter(steps.sequences(self.id, sequence.id.urn)), sequence)  # as it failed just now
                hint = f"; remove the cause, then say {self.retry_hint}" if sequence.suspended else ""
                reason = f"{sequence.error or _HELD}{hint}"
                for text in sequence.steps:
                    step = step_from_json(text)
                    if isinstance(step, PublishFileSet):
                        blocked.add(step.file_set)
                        self.progress.failed(step.file_set or "/", reason)
                    elif isinstance(step, RemoveExtras):
                        self.progress.failed(next(iter(step.paths), "/"), reason)
        return frozenset(blocked)

    def _is_ended(self, steps: FileCommitSteps, redo: Redo[CopySite], stored: StoredSequence) -> bool:
        """Finish one publication; whether its file sets may be copied again. One whose files are lost is given up."""
        try:
            return redo.run(self.id, stored.id.urn).allows_new_work
        except StepFailedError as error:
            is_given_up = is_lost(error, [step_from_json(text) for text in stored.steps])
            return is_given_up and steps.remove(self.id, stored.id.urn)
        except (SequenceHeldError, SuspendedSequenceError):
            return False
        except VersionError as error:
            raise VersionError(
                error.what, "Run the copy with the version of walship that began it, or a newer one"
            ) from None

    def _stored(self, steps: FileCommitSteps) -> list[StoredSequence]:
        return steps.sequences(self.id) if (self.state_dir / "commits").exists() else []

    def _recorder(self, steps: FileCommitSteps, site: CopySite, journal: CopyJournal) -> InstantRecorder | None:
        """What records this run on its timeline, with the instants of earlier runs ended."""
        if self.recorded is None:
            return None
        timeline, range_bytes = site.timeline(self.recorded.timeline), self.configuration.range_bytes
        recorder = InstantRecorder(timeline, self.recorded, self.target, (self.id, journal.number), range_bytes)
        left = (step_from_json(text) for sequence in self._stored(steps) for text in sequence.steps)
        recorder.end_earlier({step.time for step in left if isinstance(step, StartInstant)})
        return recorder


class _Run:
    """The parts of one run; a sink for the listing."""

    def __init__(
        self,
        job: CopyJob,
        stored: tuple[FileCommitSteps, CopyJournal],
        carry: ItemCopier,
        blocked: frozenset[str],
        recorder: InstantRecorder | None,
    ) -> None:
        (steps, journal), configuration = stored, job.configuration
        self.tasks = carry if isinstance(carry, Tasks) else None
        self._job, self._blocked = job, blocked
        self.staging = Staging(job.target, job.id, journal.number)
        site = CopySite(job.target, events=job.events)
        if configuration.register:
            site.registrar(configuration.register)  # fails now, not after the first file
        unpacks = any(each.unpacks for each in configuration.conversions)  # else each file would be of another archive
        self._window = CopyWindow(SMALL_BYTES_MAX, configuration.files_per_split, SPLIT_BYTES, as_listed=unpacks)
        self._publisher = Publisher(
            PublishedJob(job.id, job.target, self.staging, configuration, journal, steps, job.progress, job.expected),
            site,
            self._folder_like,
            self._published,
            recorder,
        )
        self._file_sets = FileSets(self._complete)
        self._stager = Stager(
            job.target, configuration, self.staging, journal, self._window, self._file_sets, job.progress, carry
        )
        self._extras: list[RelativePath] = []
        self._empty: list[RelativePath] = []
        self._lock = threading.Lock()

    def run(self) -> None:
        """List, stage and publish."""
        self._publisher.start()
        self._stager.start()
        try:
            self._list()
            self._stager.join()
            self._publisher.finish()
        except BaseException:
            self._job.stopped.set()
            self._stager.stop()
            self._publisher.finish()
            raise
        if not self._job.stopped.is_set():
            for path, reason in self._publisher.make_folders(self._empty).items():
                self.failed(path, reason)
            if self._job.configuration.delete:
                self._remove_extras()

    def _list(self) -> None:
        job = self._job
        for dataset in self._found():
            list_into(dataset, job.target, job.configuration, self)
        job.progress.listing_ended()
        self._window.end()

    def _found(self) -> Iterator[Dataset]:
        with telling_faults(self._job.source.url):  # else the target is named for what a finder cannot read
            yield from self._job.finder.find_datasets()

    def _complete(self, file_set: FileSet) -> None:
        """Publish a file set whose files were all tried; if one failed, the others wait for the next run."""
        for each in edited(file_set, self._job.source, self._job.target, self._job.configuration):
            file_set.failed[each.file.destination] = reason = changed(each.file).what
            file_set.staged.remove(each)
            self.failed(each.file.destination, reason)
        if file_set.failed:
            self._job.progress.waiting(len(file_set.staged))
            for each in file_set.staged:
                self._job.report("waiting", each.file.destination, each.file.origin.size, "")
        self._publisher.put(file_set)

    def _remove_extras(self) -> None:
        if self._job.progress.counts.failed:
            for path in self._extras:
                self._job.progress.skipped(NOT_REMOVED)
                self._job.report(NOT_REMOVED, path, 0, "nothing is removed in a run in which a file fails")
        else:
            source = self._job.source if self._job.expected is None else None
            if refusal := removals_refusal(len(self._extras), self._job.configuration, source):
                raise refusal
            for path in self._publisher.remove(self._extras, self._job.source):
                self._job.report("deleted", path, 0, "")

    def _published(self, file_set: FileSet) -> None:
        for each in file_set.staged:
            self._job.report("copied", each.file.destination, each.file.origin.size, "")
        self._job.published(file_set)

    def _folder_like(self, path: RelativePath) -> FileAttributes | None:
        found = self._job.source.status(path)
        return found.attributes if found is not None and found.kind is EntryKind.FOLDER else None

    @property
    def is_stopped(self) -> bool:
        return self._window.stopped or self._job.stopped.is_set() or self._publisher.error is not None

    def copy(self, files: Sequence[CopyableFile]) -> None:
        files = [file for file in files if file.file_set not in self._blocked]
        if files:
            self._job.progress.listed(len(files), sum(file.origin.size for file in files))
            self._file_sets.listed(files)
            self._window.put(files)

    def ended(self, file_set: str) -> None:
        self._file_sets.ended(file_set)

    def skipped(self, reason: str, path: RelativePath, size: int) -> None:
        self._job.progress.skipped(reason)
        self._job.report(reason, path, size, "")

    def failed(self, path: str, reason: str) -> None:
        self._job.progress.failed(path, reason)

    def unlisted(self, folder: str, reason: str, file_set: str) -> None:
        self.failed(folder, reason)
        self._file_sets.unlisted(file_set, folder, reason)

    def extra(self, file: FileAttributes) -> None:
        self._keep(self._extras, file.path, "files of the target are not in the source")

    def empty(self, folder: RelativePath) -> None:
        self._keep(self._empty, folder, "folders of the source are empty")

    def _keep(self, kept: list[RelativePath], path: RelativePath, what: str) -> None:
        with self._lock:
            if len(kept) >= EXTRAS_MAX:
                raise RequestError(f"more than {EXTRAS_MAX:,} {what}", "Check SRC, or copy its folders one by one")
            kept.append(path)


def list_into(dataset: Dataset, target: Store, configuration: CopyConfiguration, sink: ListingSink) -> None:
    """List any dataset into a sink; one that only has ``copyable_files`` ends its file sets at the end."""
    if isinstance(dataset, ListsIntoSink):
        dataset.list_into(target, configuration, sink)
        return
    names: dict[str, None] = {}
    for file in dataset.copyable_files(target, configuration):
        names[file.file_set] = None
        sink.copy([file])
    for name in names:
        sink.ended(name)
