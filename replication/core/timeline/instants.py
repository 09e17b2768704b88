"""Instants: the actions on a cluster's datasets, each requested, then inflight, then completed.

A timeline is a sequence of events, each of which puts one instant into a state. Events have dense numbers from 1, and
each names the hash of the one before, so the hash of the newest event stands for the whole timeline. Times are
microseconds since 1970; all times of one timeline differ and grow with the numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from replication.core.ids import MALFORMED
from replication.errors import FormatError, RequestError, VersionError

FORMAT = 1
FileKey: TypeAlias = tuple[str, str]  # partition, and path below the dataset's root


class Action(StrEnum):
    """What an instant does to a dataset."""

    REPLAY = "replay"
    FOLD = "fold"
    COPY = "copy"
    CLEAN = "clean"
    ROLLBACK = "rollback"
    RESTORE = "restore"
    BOOTSTRAP = "bootstrap"
    DRILL = "drill"


class InstantState(StrEnum):
    """How far an instant is. Its files count from COMPLETED on, and before that none may be seen."""

    REQUESTED = "requested"
    INFLIGHT = "inflight"
    COMPLETED = "completed"


UNDOING = frozenset({Action.ROLLBACK, Action.RESTORE})
DELETING = UNDOING | {Action.CLEAN}


@dataclass(frozen=True, slots=True)
class FileVersion:
    """One version of a file of a dataset.

    Versions with the same ``file`` replace each other. A ``delta`` (deletes, or changes) applies to the version before
    it. The last three are times of instants, set by views: it can be seen from ``added`` on and until ``removed``
    (0: until further notice); ``requested`` is when its instant was requested. ``added`` is 0 for a file that was
    there before the timeline.
    """

    partition: str
    path: str  # below the dataset's root; unique there
    size: int  # bytes
    file: str = ""
    delta: bool = False
    digest: str = ""
    added: int = 0
    requested: int = 0
    removed: int = 0

    def __post_init__(self) -> None:
        """A file that replaces no other is named by its path."""
        if not self.file:
            object.__setattr__(self, "file", self.path)

    @property
    def key(self) -> FileKey:
        """Where it lies."""
        return self.partition, self.path

    def seen_at(self, time: int) -> bool:
        """Whether a reader as of an instant sees it."""
        return self.added <= time and (not self.removed or self.removed > time)


@dataclass(frozen=True, slots=True)
class Changes:
    """What an instant does to the files of its dataset.

    Args:
        adds: files that can be seen from then on. While the instant is inflight: those it is about to write.
        replaces: files that cannot be seen any more, but still exist for readers of earlier instants.
        removes: files that no longer exist. A path that is also in ``adds`` was written over.
        restores: of a rollback: files that can be seen again.
        undone: of a rollback or restore: the times of the instants that it undoes.
        retained: of a clean: the oldest instant as of which every file still exists.
    """

    adds: tuple[FileVersion, ...] = ()
    replaces: tuple[FileKey, ...] = ()
    removes: tuple[FileKey, ...] = ()
    restores: tuple[FileKey, ...] = ()
    undone: tuple[int, ...] = ()
    retained: int = 0

    def partitions(self) -> set[str]:
        """The partitions that it touches."""
        keys = (*self.replaces, *self.removes, *self.restores)
        return {version.partition for version in self.adds} | {partition for partition, _ in keys}


@dataclass(frozen=True, slots=True)
class Instant:
    """One action on one dataset.

    Args:
        time: when it was requested; its name.
        action: what it does.
        state: how far it is.
        dataset: whose files it changes; a name, or the address of its root.
        root: the address of the folder below which the paths are; "" if ``dataset`` is that address, or for tables.
        key: the caller's name for it, unique among pending instants; "" when it has none.
        completed: when it was completed, or 0.
        changes: its files.
    """

    time: int
    action: Action
    state: InstantState
    dataset: str
    root: str = ""
    key: str = ""
    completed: int = 0
    changes: Changes = Changes()

    @property
    def is_pending(self) -> bool:
        """Whether it is not completed."""
        return self.state is not InstantState.COMPLETED

    @property
    def is_effective(self) -> bool:
        """Whether views show it. What deletes files has effect from the moment that it is inflight."""
        return not self.is_pending or (self.state is InstantState.INFLIGHT and self.action in DELETING)


@dataclass(frozen=True, slots=True)
class Event:
    """An instant in a state, as the timeline's entry ``number``; ``hash`` stands for all entries up to it."""

    number: int
    hash: str
    instant: Instant


@dataclass(frozen=True, slots=True)
class TimelineState:
    """A timeline up to an event.

    ``time`` is the latest time used. ``instant`` is the latest completion. ``floors`` has, by dataset, the oldest
    instant as of which its files can still be read, and ``roots`` the address of its root.
    """

    number: int = 0
    hash: str = ""
    time: int = 0
    instant: int = 0
    pending: Mapping[int, Instant] = field(default_factory=dict)
    floors: Mapping[str, int] = field(default_factory=dict)
    roots: Mapping[str, str] = field(default_factory=dict)

    def after(self, event: Event) -> TimelineState:
        """The state after the next event. Raises FormatError if it is not the next."""
        instant, changes = event.instant, event.instant.changes
        if event.number != self.number + 1:
            raise FormatError(f"event {event.number} of the timeline comes after event {self.number}")
        pending = {time: other for time, other in self.pending.items() if time != instant.time}
        floors, roots = self.floors, self.roots
        if instant.is_pending:
            pending[instant.time] = instant
        if instant.is_effective:
            for time in changes.undone:
                pending.pop(time, None)
            if (floor := floor_after(instant)) > floors.get(instant.dataset, 0):
                floors = {**floors, instant.dataset: floor}
        root = instant.root or roots.get(instant.dataset, instant.dataset)
        if roots.get(instant.dataset) != root:
            roots = {**roots, instant.dataset: root}
        latest = max(self.time, instant.time, instant.completed)
        return TimelineState(
            event.number, event.hash, latest, instant.completed or self.instant, pending, floors, roots
        )

    def check_readable(self, dataset: str, time: int) -> None:
        """RequestError if files of ``dataset`` that were seen at ``time`` may be gone."""
        floor = self.floors.get(dataset, 0)
        if time < floor:
            raise RequestError(
                f"the files of {dataset} as of {time} are gone: some were cleaned or written over since",
                f"Name {floor}, or a later instant",
            )


def floor_after(instant: Instant) -> int:
    """The oldest instant as of which a dataset can be read once an instant has effect; 0 if that changes nothing."""
    if instant.action is Action.CLEAN:
        return instant.changes.retained
    if instant.action in UNDOING or not instant.changes.removes:
        return 0
    return instant.completed


def partition_of(path: str) -> str:
    """The partition of a file in a dataset that is a folder: the folder that the file is in, "" for the root."""
    return path.rpartition("/")[0]


def encode(instant: Instant, before: str) -> bytes:
    """The bytes of an event: JSON lines, first what the instant is, then its added files.

    ``before`` is the hash of the event before.
    """
    changes = instant.changes
    head = {
        "format": FORMAT,
        "before": before,
        "time": instant.time,
        "action": instant.action.value,
        "state": instant.state.value,
        "dataset": instant.dataset,
        "root": instant.root,
        "key": instant.key,
        "completed": instant.completed,
        "replaces": changes.replaces,
        "removes": changes.removes,
        "restores": changes.restores,
        "undone": changes.undone,
        "retained": changes.retained,
    }
    lines = [json.dumps(head, separators=(",", ":"))]
    lines += [json.dumps(pack(v)[:6], separators=(",", ":")) for v in changes.adds]
    return "\n".join(lines).encode()


def decode(number: int, content: bytes) -> tuple[Event, str]:
    """Read the bytes of an event; return it, and the hash of the event before.

    Raises:
        FormatError: these are not the bytes of an event.
        VersionError: a newer version of walship wrote them.
    """
    try:
        first, *lines = content.decode().split("\n")
        head: Mapping[str, Any] = json.loads(first)
        if head["format"] > FORMAT:
            raise VersionError(f"event {number} of the timeline has format {head['format']}", "Upgrade walship")
        changes = Changes(
            tuple(unpack([*json.loads(line), 0, 0, 0]) for line in lines),
            _keys(head["replaces"]),
            _keys(head["removes"]),
            _keys(head["restores"]),
            tuple(int(time) for time in head["undone"]),
            int(head["retained"]),
        )
        instant = Instant(
            int(head["time"]),
            Action(head["action"]),
            InstantState(head["state"]),
            str(head["dataset"]),
            str(head["root"]),
            str(head["key"]),
            int(head["completed"]),
            changes,
        )
        return Event(number, hash_of(content), instant), str(head["before"])
    except MALFORMED:
        raise FormatError(f"event {number} of the timeline cannot be read", "Restore it from a backup") from None


def state_to_json(state: TimelineState) -> str:
    """The state as one line of JSON; ``state_from_json`` reads it."""
    pending = [encode(instant, "").decode() for instant in state.pending.values()]
    return json.dumps(
        [state.number, state.hash, state.time, state.instant, pending, state.floors, state.roots],
        separators=(",", ":"),
        default=dict,
    )


def state_from_json(text: str) -> TimelineState:
    """Read the JSON of ``state_to_json``. Raises FormatError for other text."""
    try:
        number, hash_, time, instant, pending, floors, roots = json.loads(text)
        instants = (decode(0, content.encode())[0].instant for content in pending)
        return TimelineState(number, hash_, time, instant, {each.time: each for each in instants}, floors, roots)
    except MALFORMED:
        raise FormatError("the state of a timeline cannot be read", "Delete the file; it is made anew") from None


def hash_of(content: bytes) -> str:
    """The hash of an event by its bytes, which name the hash before."""
    return hashlib.sha256(content).hexdigest()[:32]


def pack(version: FileVersion) -> list[Any]:
    """A version as a JSON array; ``unpack`` reads it."""
    file = "" if version.file == version.path else version.file
    v = version
    return [v.partition, v.path, v.size, file, int(v.delta), v.digest, v.added, v.requested, v.removed]


def unpack(raw: list[Any]) -> FileVersion:
    """Read the array of ``pack``."""
    partition, path, size, file, delta, digest, added, requested, removed = raw
    return FileVersion(partition, path, size, file, bool(delta), digest, added, requested, removed)


def _keys(raw: Iterable[tuple[str, str]]) -> tuple[FileKey, ...]:
    return tuple((str(partition), str(path)) for partition, path in raw)
