"""The commit steps of a copy: publish a file set, remove files, make it all durable, record it on a timeline."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from replication.commit.step import CommitStep, step_type
from replication.core.copying.names import RelativePath
from replication.core.timeline.instants import Changes, FileKey, FileVersion, InstantState
from replication.datasets.publication.events import EventSink
from replication.datasets.publication.moves import (
    Listed,
    Move,
    MovedFolder,
    are_given,
    are_made,
    check_sent,
    check_unedited,
    give,
    keep,
    make_all,
)
from replication.datasets.registration.base import FileRegistrar, RegisteredFile
from replication.datasets.registration.plugins import registrar_of
from replication.datasets.stores.base import EntryKind, Store, make_durable
from replication.error_text import counted, one_line
from replication.errors import ChangedFileError, CopyError, MissingFileError, ReplicationError, StepFailedError
from replication.timeline.recorded import RecordedTimeline
from replication.timeline.stored import open_records

_WAITED_S = 5.0  # a receiver that refuses events says so sooner


@dataclass(slots=True)
class CopySite:
    """What the steps of a copy work on.

    Attributes:
        target: the store.
        redoes: the steps are of an earlier run, so verifying them reads what is there.
        source: the store that an earlier run has read, which may have changed since; None does not look.
        events: where events go; None sends none.
        synced: the sequences whose effects are durable.
        notified: the sequences whose events were sent.
        given: the step that has last given new folders their mode bits; some stores keep other ones, and say nothing.
        timelines: those that are open, by the address of their records.
        registrars: those that are open, by what the user called them.
        silent: why events were not taken once the receiver was waited for; empty if it was not in vain.
    """

    target: Store
    redoes: bool = False
    source: Store | None = None
    events: EventSink | None = None
    synced: set[str] = field(default_factory=set)
    notified: set[str] = field(default_factory=set)
    given: PublishFileSet | None = None
    timelines: dict[str, RecordedTimeline] = field(default_factory=dict)
    registrars: dict[str, FileRegistrar] = field(default_factory=dict)
    silent: str = ""

    def timeline(self, url: str) -> RecordedTimeline:
        """The timeline whose records are at an address. ConfigError when that store cannot keep one."""
        if url not in self.timelines:
            self.timelines[url] = RecordedTimeline(open_records(url))
        return self.timelines[url]

    def registrar(self, text: str) -> FileRegistrar:
        """The registrar of ``KIND:NAME``; RequestError if there is none."""
        if text not in self.registrars:
            self.registrars[text] = registrar_of(text)
        return self.registrars[text]

    def send(self, events: Sequence[str]) -> None:
        """Send events, if anybody wants any; OSError if the receiver did not take them.

        A receiver that is away is waited for once: each of a thousand file sets would take as long.
        """
        if self.events is None:
            return
        if self.silent:
            raise OSError(self.silent)
        begun_s = time.monotonic()
        try:
            self.events.send(events)
        except OSError as error:
            if time.monotonic() - begun_s >= _WAITED_S:
                self.silent = one_line(error)
            raise


@step_type("copy.publish")
@dataclass(frozen=True)
class PublishFileSet(CommitStep[CopySite]):
    """Move the files of a file set into place; first ``folders`` are made, which nothing moves as a whole."""

    file_set: str
    moves: tuple[Move, ...]
    range_bytes: int
    backup: str = ""
    folders: tuple[MovedFolder, ...] = ()

    def verify(self, context: CopySite) -> bool:
        """Whether all files are in place, with their length; of an earlier run also with their digest."""
        if not are_made(context.target, self.moves, read=context.redoes, range_bytes=self.range_bytes):
            return False
        return context.given is self or are_given(context.target, self.moves, self.folders)

    def execute(self, context: CopySite) -> None:
        """Make the moves; :class:`SyncTarget`, which follows, makes them durable."""
        backup = RelativePath(self.backup) if self.backup else None
        if context.source is not None:
            check_unedited(context.source, self.moves)
        check_sent(context.target, self.moves)
        for folder in self.folders:
            context.target.make_folder(RelativePath(folder.name))
            give(context.target, RelativePath(folder.name), folder)
        make_all(context.target, self.moves, backup)
        context.given = self

    def describe(self) -> str:
        files = sum(len(move.files) for move in self.moves)
        return f"publish {counted(files, 'file')} of {self.file_set or '/'} in {counted(len(self.moves), 'move')}"


@step_type("copy.remove")
@dataclass(frozen=True)
class RemoveExtras(CommitStep[CopySite]):
    """Remove files that the source does not have, or move them to the backup folder; and folders that this empties.

    With ``listed``, what each path must still have, a file that has changed since stays.
    """

    paths: tuple[str, ...]
    backup: str = ""
    folders: tuple[str, ...] = ()
    listed: tuple[Listed, ...] = ()

    def verify(self, context: CopySite) -> bool:
        return next(self._left(context.target), None) is None

    def _left(self, target: Store) -> Iterator[RelativePath]:
        """Those that are still to be removed."""
        for number, text in enumerate(self.paths):
            path = RelativePath(text)
            there = target.status(path)
            if there is None or there.kind is EntryKind.FOLDER:  # an object store may have one of that name, too
                continue
            if not (self.listed and self.listed[number].is_changed(there)):
                yield path

    def execute(self, context: CopySite) -> None:
        if not self.backup:
            context.target.remove_files(list(self._left(context.target)))
        else:
            for path in self._left(context.target):
                keep(context.target, path, RelativePath(self.backup))
                context.target.remove_files([path])  # else both names stay, if that was one of this file already
        for text in self.folders:
            context.target.remove_folder_if_empty(RelativePath(text))

    def describe(self) -> str:
        return f"remove {counted(len(self.paths), 'file')} that the source does not have"


@step_type("copy.sync")
@dataclass(frozen=True)
class SyncTarget(CommitStep[CopySite]):
    """Make what the steps before it did durable."""

    sequence: str
    folders: tuple[str, ...]

    def verify(self, context: CopySite) -> bool:
        """Whether this process has done it."""
        return self.sequence in context.synced

    def execute(self, context: CopySite) -> None:
        make_durable(context.target, [RelativePath(folder) for folder in self.folders], may_be_gone=True)
        context.synced.add(self.sequence)

    def describe(self) -> str:
        return f"make {counted(len(self.folders), 'folder')} durable"


@step_type("copy.register")
@dataclass(frozen=True)
class RegisterFiles(CommitStep[CopySite]):
    """Tell a registrar of files that are in place, unless it was told of them with the key of a ``common`` step."""

    registrar: str
    key: str
    files: tuple[RegisteredFile, ...]
    common: str = ""

    def verify(self, context: CopySite) -> bool:
        registrar = context.registrar(self.registrar)
        return any(registrar.has(key, self.files) for key in (self.key, self.common) if key)

    def execute(self, context: CopySite) -> None:
        context.registrar(self.registrar).register(context.target.url, self.key, self.files)

    def describe(self) -> str:
        return f"register {counted(len(self.files), 'file')} with {self.registrar}"


@step_type("copy.notify")
@dataclass(frozen=True)
class NotifyPublished(CommitStep[CopySite]):
    """Send the events of file sets that are in place."""

    sequence: str
    events: tuple[str, ...]

    def verify(self, context: CopySite) -> bool:
        """Whether this process has sent them, or nobody wants any."""
        return context.events is None or self.sequence in context.notified

    def execute(self, context: CopySite) -> None:
        context.send(self.events)
        context.notified.add(self.sequence)

    def describe(self) -> str:
        return f"send {counted(len(self.events), 'event')}"


@step_type("copy.start")
@dataclass(frozen=True)
class StartInstant(CommitStep[CopySite]):
    """Record, before the first file is moved, which files a requested instant adds and writes over or removes."""

    timeline: str
    time: int
    adds: tuple[FileVersion, ...]
    removes: tuple[FileKey, ...]
    replaces: tuple[FileKey, ...] = ()

    def verify(self, context: CopySite) -> bool:
        """Whether it is inflight, or over. MissingFileError if it was rolled back, which took its files away."""
        timeline = context.timeline(self.timeline)
        if timeline.was_undone(self.time):
            raise undone(self.time)
        return self.is_started(timeline)

    def execute(self, context: CopySite) -> None:
        self.start(context.timeline(self.timeline))

    def describe(self) -> str:
        return f"record that instant {self.time} begins"

    def is_started(self, timeline: RecordedTimeline) -> bool:
        """Whether it is inflight, or over."""
        found = timeline.state().pending.get(self.time)
        return found is None or found.state is InstantState.INFLIGHT

    def start(self, timeline: RecordedTimeline) -> None:
        """Record it."""
        timeline.start(timeline.state().pending[self.time], Changes(self.adds, self.replaces, self.removes))


@step_type("copy.complete")
@dataclass(frozen=True)
class CompleteInstant(CommitStep[CopySite]):
    """Record that an instant is completed: readers see its files from then on."""

    timeline: str
    time: int

    def verify(self, context: CopySite) -> bool:
        """Whether it is completed. Raises as :meth:`StartInstant.verify`."""
        timeline = context.timeline(self.timeline)
        if timeline.was_undone(self.time):
            raise undone(self.time)
        return self.time not in timeline.state().pending

    def execute(self, context: CopySite) -> None:
        timeline = context.timeline(self.timeline)
        if (instant := timeline.state().pending.get(self.time)) is not None:
            timeline.complete(instant, instant.changes)

    def describe(self) -> str:
        return f"record that instant {self.time} is completed"


def undone(time: int) -> MissingFileError:
    """The error for an instant that was rolled back, which took its files away."""
    return MissingFileError(f"instant {time} was rolled back", "The next run copies its files anew")


def is_lost(error: ReplicationError, steps: Sequence[CommitStep[CopySite]]) -> bool:
    """Whether a sequence failed since what it publishes is gone or undone, or what it replaces is not what was listed.

    Or since its place is on another file system, which may be excluded by now. Redoing it never helps, copying anew
    does: but files of it that are in place would not be registered then.
    """
    if not isinstance(error, StepFailedError):
        return False
    is_elsewhere = isinstance(error.cause, CopyError) and getattr(error.cause.__cause__, "errno", 0) == errno.EXDEV
    if not (is_elsewhere or isinstance(error.cause, MissingFileError | ChangedFileError)):
        return False
    step = steps[error.number]
    if isinstance(step, StartInstant | CompleteInstant):
        return True
    registers = any(isinstance(each, RegisterFiles) for each in steps)
    return isinstance(step, PublishFileSet) and (not registers or any(move.sent for move in step.moves))


def registered_files(steps: Iterable[PublishFileSet]) -> tuple[RegisteredFile, ...]:
    """The files of some publications, as registrars have them."""
    return tuple(
        RegisteredFile(RelativePath(file.name).below(RelativePath(move.destination)), file.size, file.digest)
        for step in steps
        for move in step.moves
        for file in move.files
    )
