"""The protocols of a timeline: what actions record, and where its events are stored.

``Timeline`` is what roles use; ``recorded.py`` has it over ``Records``, which are objects in a store (``stored.py``) or
in memory with faults (``memory.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from replication.core.timeline.instants import Action, Changes, Event, Instant, TimelineState

#: So many events are packed into one object.
ARCHIVED_TOGETHER = 100


class Records(Protocol):
    """Numbered objects. Safe for threads. Failures raise StorageError."""

    def create(self, number: int, content: bytes) -> bool:
        """Write an object, durably and whole; False, and nothing changed, if the number is taken.

        Raises:
            StorageError: it is unknown whether it was written.
        """

    def read(self, number: int) -> bytes | None:
        """Return an object's content; None if it does not exist."""

    def archived(self) -> str:
        """Return the state that ``archive`` was given last; "" for none."""

    def archive(self, through: int, state: str) -> None:
        """Pack objects up to ``through`` together; they can still be read.

        Args:
            through: a multiple of ``ARCHIVED_TOGETHER``.
            state: of the timeline after that object, as text.
        """


class Timeline(Protocol):
    """The timeline of one cluster. Safe for threads, and for any number of processes.

    An action that can be seen while it runs is requested, started and completed. ``record`` writes one event for an
    action that is whole or nothing by itself. A call that raised StorageError may have taken effect. Repeating
    ``request`` with a key, ``start`` or ``complete`` is safe.
    """

    def request(self, action: Action, dataset: str, *, root: str = "", key: str = "") -> Instant:
        """Record that an action will be done, durably; with the key of a pending one, return that.

        ``root`` is the address of the folder below which the dataset's files are, if ``dataset`` is only its name.
        """

    def start(self, instant: Instant, changes: Changes) -> Instant:
        """Record, durably, what a requested action is about to change. Call it before the first file is there.

        Raises:
            RequestError: the instant is unknown, or was undone.
            LockedFileError: a clean, rollback or restore is deleting one of its files.
        """

    def complete(self, instant: Instant, changes: Changes) -> Instant:
        """Record, durably, that an action is done; readers see its files from then on. Idempotent.

        Raises:
            RequestError: the instant is unknown, or was undone.
        """

    def record(self, action: Action, dataset: str, changes: Changes, *, root: str = "") -> Instant:
        """Record, durably, an action that is done."""

    def undo(self, dataset: str, times: Sequence[int], *, action: Action = Action.ROLLBACK) -> Instant:
        """Plan to undo instants, durably; delete the files in its ``removes``, then ``complete`` it.

        Args:
            dataset: whose instants.
            times: when they were completed; for pending ones, when they were requested.
            action: ROLLBACK, or RESTORE for all instants after one.

        Raises:
            RequestError: an instant is unknown, or a file that it had replaced was cleaned or written over.
        """

    def since(self, number: int) -> Sequence[Event]:
        """Return the events after one, oldest first."""

    def following(self, number: int, hash: str = "") -> Iterator[Event]:
        """Yield the events after one, oldest first; each is read when it is asked for.

        Raises:
            FormatError: they do not follow one with that hash.
        """

    def archive(self, keep: int) -> int:
        """Pack events together, all but at least the newest ``keep``; return how many are packed by now.

        They can still be read. A process that starts later reads only the state after them, and the events since.
        """

    def newest_first(self) -> Iterator[Event]:
        """Yield all events, the newest first."""

    def state(self) -> TimelineState:
        """Return the state after the newest event."""
