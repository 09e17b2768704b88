"""The timeline over numbered records: the next number is created only if it is free, so every process agrees.

A process that loses a number reads what came before it, and takes the next one. So no lock is needed, and catching up
reads new events and lists nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from replication.core.timeline.instants import (
    Action,
    Changes,
    Event,
    FileKey,
    Instant,
    InstantState,
    TimelineState,
    decode,
    encode,
    hash_of,
    state_from_json,
    state_to_json,
)
from replication.errors import CoordinationError, FormatError, LockedFileError, RequestError
from replication.timeline.base import ARCHIVED_TOGETHER, Records
from replication.wall_clock import now_us

_TRIES = 1000


class RecordedTimeline:
    """The timeline of one cluster. Safe for threads, and for any number of processes.

    An action that can be seen while it runs is requested, started and completed. ``record`` writes one event for an
    action that is whole or nothing by itself. A call that raised StorageError may have taken effect. Repeating
    ``request`` with a key, ``start`` or ``complete`` is safe. Each event is read once for the state.
    """

    def __init__(self, records: Records, clock: Callable[[], int] = now_us) -> None:
        self._records = records
        self._clock = clock
        self._lock = threading.Lock()
        self._known: TimelineState | None = None

    def request(self, action: Action, dataset: str, *, root: str = "", key: str = "") -> Instant:
        """Record that an action will be done, durably; with the key of a pending one, return that.

        ``root`` is the address of the folder below which the dataset's files are, if ``dataset`` is only its name.
        """
        same: list[Instant] = []

        def ask(state: TimelineState, now: int) -> Instant | None:
            same[:] = [i for i in state.pending.values() if key and (i.key, i.dataset) == (key, dataset)]
            return None if same else Instant(now, action, InstantState.REQUESTED, dataset, root, key)

        return self._write(ask) or same[0]

    def start(self, instant: Instant, changes: Changes) -> Instant:
        """Record, durably, what a requested action is about to change. Call it before the first file is there.

        Raises:
            RequestError: the instant is unknown, or was undone.
            LockedFileError: a clean, rollback or restore is deleting one of its files.
        """

        def ask(state: TimelineState, now: int) -> Instant:
            _check_not_deleted(state, instant, changes)
            return self._advance(state, instant, InstantState.INFLIGHT, changes, 0)

        made = self._write(ask)
        assert made is not None
        return made

    def complete(self, instant: Instant, changes: Changes) -> Instant:
        """Record, durably, that an action is done; readers see its files from then on. Idempotent.

        Raises:
            RequestError: the instant is unknown, or was undone.
        """

        def ask(state: TimelineState, now: int) -> Instant | None:
            if instant.time not in state.pending and self._completed(instant.time) is not None:
                return None
            return self._advance(state, instant, InstantState.COMPLETED, changes, now)

        made = self._write(ask) or self._completed(instant.time)
        assert made is not None
        return made

    def record(self, action: Action, dataset: str, changes: Changes, *, root: str = "") -> Instant:
        """Record, durably, an action that is done."""
        done = Instant(0, action, InstantState.COMPLETED, dataset, root, changes=changes)
        made = self._write(lambda state, now: replace(done, time=now, completed=now))
        assert made is not None
        return made

    def undo(self, dataset: str, times: Sequence[int], *, action: Action = Action.ROLLBACK) -> Instant:
        """Plan to undo instants, durably; delete the files in its ``removes``, then ``complete`` it.

        ``times`` are when they were completed; for pending ones, when they were requested.

        Raises:
            RequestError: an instant is unknown, or a file that it had replaced was cleaned or written over; or it is
                pending, and may have written over or removed one.
        """
        state, key = self.state(), f"undo {sorted(times)}"
        if all(instant.key != key for instant in state.pending.values()):
            self._undoing(dataset, times)  # what cannot be undone leaves no event
        asked = self.request(action, dataset, root=state.roots.get(dataset, dataset), key=key)
        if asked.state is InstantState.INFLIGHT:
            return asked

        def plan(state: TimelineState, now: int) -> Instant:  # anew for each event that others write meanwhile
            return self._advance(state, asked, InstantState.INFLIGHT, self._undoing(dataset, times), 0)

        try:
            made = self._write(plan)
        except RequestError:
            self.complete(asked, Changes())
            raise
        assert made is not None
        return made

    def following(self, number: int, hash: str = "") -> Iterator[Event]:
        """Yield the events after one, oldest first; each is read when it is asked for.

        Raises:
            FormatError: they do not follow one with that hash.
        """
        return self._events(number, hash or None)

    def archive(self, keep: int) -> int:
        """Pack events together, all but at least the newest ``keep``; return how many are packed by now.

        They can still be read. A process that starts later reads only the state after them, and the events since.
        """
        through = max(0, self.state().number - keep) // ARCHIVED_TOGETHER * ARCHIVED_TOGETHER
        state = self._archived()
        for event in self._events(state.number, state.hash):
            if event.number > through:
                break
            state = state.after(event)
        if state.number == through:
            self._records.archive(through, state_to_json(state))
        return state.number

    def newest_first(self) -> Iterator[Event]:
        """Yield all events, the newest first."""
        self.state()
        return self._backwards()

    def was_undone(self, instant: int) -> bool:
        """Whether an instant, by when it was requested, is neither pending nor completed."""
        return instant not in self.state().pending and self._completed(instant) is None

    def removed_with(self, instant: int) -> list[FileKey]:
        """The files that were removed when an instant, by when it was requested, was undone, and not added since."""
        added = set[tuple[str, FileKey]]()
        for event in self._backwards():
            each = event.instant
            if each.is_effective and instant in each.changes.undone:
                return [key for key in each.changes.removes if (each.dataset, key) not in added]
            if max(each.time, each.completed) < instant:
                break
            added.update((each.dataset, version.key) for version in each.changes.adds)
        return []

    def state(self) -> TimelineState:
        """Return the state after the newest event."""
        with self._lock:
            return self._caught_up()

    def _advance(
        self, state: TimelineState, instant: Instant, to: InstantState, changes: Changes, completed: int
    ) -> Instant:
        pending = state.pending.get(instant.time)
        if pending is None:
            raise RequestError(
                f"instant {instant.time} of {instant.dataset} is not pending: it is unknown, done or undone",
                "Request the action again",
            )
        return replace(pending, state=to, changes=changes, completed=completed)

    def _undoing(self, dataset: str, times: Sequence[int]) -> Changes:
        """What undoing instants does to the files, by the events since them."""
        left = set(times)
        gone: set[FileKey] = set()  # what later instants have removed
        kept: set[FileKey] = set()  # what later instants have added
        undone: set[int] = set()
        removes: dict[FileKey, None] = {}
        restores: dict[FileKey, None] = {}
        for event in self._backwards():
            instant, changes = event.instant, event.instant.changes
            time = instant.completed or instant.time
            if instant.dataset != dataset or time in undone:
                continue
            undone.update(changes.undone if instant.completed else ())
            if instant.completed:
                gone.update(changes.removes)
            if time not in left:
                kept.update(version.key for version in changes.adds)
                continue
            left.discard(time)
            _check_whole(instant, gone)
            for version in changes.adds:
                if version.key not in kept:
                    removes[version.key] = None
                restores.pop(version.key, None)
            restores |= dict.fromkeys(changes.replaces)
            if not left:
                break
        if left:
            named = ", ".join(map(str, sorted(left)))
            raise RequestError(f"{dataset} has no instant{'s' * (len(left) > 1)} {named}", "See walship timeline list")
        return Changes(
            removes=tuple(removes),
            restores=tuple(key for key in restores if key not in removes),
            undone=tuple(sorted(times)),
        )

    def _completed(self, time: int) -> Instant | None:
        """The instant that was requested at a time as it was completed; None if it was not."""
        for event in self._backwards():
            if event.instant.time == time:
                return None if event.instant.is_pending else event.instant
            if not event.instant.is_pending and time in event.instant.changes.undone:
                return None
            if max(event.instant.time, event.instant.completed) < time:
                return None
        return None

    def _write(self, ask: Callable[[TimelineState, int], Instant | None]) -> Instant | None:
        """Write the event that ``ask`` makes of the newest state and the next time; None if it makes none."""
        with self._lock:
            for _ in range(_TRIES):
                state = self._caught_up()
                instant = ask(state, max(self._clock(), state.time + 1))
                if instant is None:
                    return None
                content = encode(instant, state.hash)
                event = Event(state.number + 1, hash_of(content), instant)
                made = self._records.create(event.number, content)
                if made or self._records.read(event.number) == content:  # S3's driver tries again: its own is there
                    self._known = state.after(event)
                    return instant
        raise CoordinationError(
            f"the timeline's next event was written by others {_TRIES} times", "Try again, and check its store"
        )

    def _archived(self) -> TimelineState:
        text = self._records.archived()
        return state_from_json(text) if text else TimelineState()

    @property
    def _state(self) -> TimelineState:
        if self._known is None:
            self._known = self._archived()
        return self._known

    def _caught_up(self) -> TimelineState:
        for event in self._events(self._state.number, self._state.hash):
            self._known = self._state.after(event)
        return self._state

    def _events(self, number: int, before: str | None = None) -> Iterator[Event]:
        while (content := self._records.read(number + 1)) is not None:
            number += 1
            event, named = decode(number, content)
            if before is not None and named != before:
                raise FormatError(
                    f"event {number} of the timeline does not follow event {number - 1} as it was read before",
                    "The timeline's store was restored or changed by hand: restart what reads it, with timeline-views"
                    " in its data directory deleted",
                )
            before = event.hash
            yield event

    def _backwards(self) -> Iterator[Event]:
        number = self._state.number
        while number > 0 and (content := self._records.read(number)) is not None:
            yield decode(number, content)[0]
            number -= 1


def _check_not_deleted(state: TimelineState, starting: Instant, changes: Changes) -> None:
    """LockedFileError if an instant would add a file that a clean, rollback or restore is deleting."""
    added = {version.key for version in changes.adds}
    for other in state.pending.values():
        if not other.is_effective or other.dataset != starting.dataset or other.time == starting.time:
            continue
        if taken := added.intersection(other.changes.removes):
            raise LockedFileError(
                f"{min(taken)[1]} of {other.dataset} is being deleted by {other.action.value} {other.time}",
                f"Wait until it is done; if its process has died: walship timeline clean {other.dataset}",
            )


def _check_whole(instant: Instant, gone: set[FileKey]) -> None:
    """RequestError if what an instant has replaced is gone, or may be: of a pending one nobody knows how far it is."""
    if instant.is_pending and instant.changes.removes:
        raise RequestError(
            f"instant {instant.time} of {instant.dataset} is pending and cannot be undone: it may have written over or"
            f" removed {instant.changes.removes[0][1]}",
            "Run the same copy again: it finishes what it has begun",
        )
    lost = [*instant.changes.removes, *(key for key in instant.changes.replaces if key in gone)]
    if lost:
        raise RequestError(
            f"instant {instant.completed} of {instant.dataset} cannot be undone: {lost[0][1]}, which it replaced, is"
            " gone",
            "Copy or write the files again instead",
        )
