"""What views remember besides their store, within a bound of memory: the newest events, and what was found empty.

The bytes of an object are counted as CPython takes them, so that the bound holds whatever names are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from sys import getsizeof

from peer.timeline.stores.memory import version_bytes
from replication.core.timeline.instants import Event, FileKey

BYTES_MAX = 16 << 20
_EVENTS_MAX = 10_000
_RECENT = 1000
_EVENT_BYTES = 700  # with its instant, hash and place
_KEY_BYTES = 72  # a tuple of two names and its place
_MISSING_BYTES = 200  # likewise, in a dictionary


class Remembered:
    """The newest events, to answer clients that know older ones, and partitions that were listed and had nothing.

    Args:
        bytes_max: that both take together. An event that is larger by itself is not remembered, nor any before it.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._max, self.bytes = bytes_max, 0
        self._events: deque[Event] = deque()
        self._before = ""  # the hash of the event before these
        self._missing: dict[FileKey, None] = {}

    def add(self, event: Event) -> None:
        """Remember the newest event, and forget old ones to have room."""
        self._events.append(event)
        self.bytes += event_bytes(event)
        while self._missing and self.bytes > self._max:
            self.found(next(iter(self._missing)))
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        while len(self._events) > _EVENTS_MAX or (self._events and self.bytes > self._max):
            dropped = self._events.popleft()
            self._before = dropped.hash
            self.bytes -= event_bytes(dropped)

    def add_older(self, event: Event) -> bool:
        """Remember the event before the others if there is room."""
        size = event_bytes(event)
        if self.bytes + size > self._max or len(self._events) >= _RECENT:
            self._before = event.hash
            return False
        self._events.appendleft(event)
        self.bytes += size
        return True

    @property
    def first(self) -> int | None:
        """The number of the oldest event; None if there is none."""
        return self._events[0].number if self._events else None

    def events(self) -> Iterator[Event]:
        """All, oldest first."""
        return iter(self._events)

    def has(self, known: str) -> bool:
        """Whether all events after that with a hash are remembered."""
        return self.after(known) is not None

    def after(self, known: str) -> list[Event] | None:
        """The events after that with a hash; None if they are not all remembered."""
        for back, event in enumerate(reversed(self._events)):
            if event.hash == known:
                return list(islice(self._events, len(self._events) - back, None))
        return list(self._events) if known and known == self._before else None

    def missing(self, key: FileKey) -> None:
        """A partition of a dataset has nothing. To have room other ones are forgotten, then old events; never this."""
        if key in self._missing:
            return
        self._missing[key] = None
        self.bytes += _missing_bytes(key)
        while len(self._missing) > 1 and self.bytes > self._max:
            self.found(next(iter(self._missing)))
        self._forget_oldest()

    def found(self, key: FileKey) -> None:
        """A partition may have something."""
        if key in self._missing:
            del self._missing[key]
            self.bytes -= _missing_bytes(key)

    def is_missing(self, key: FileKey) -> bool:
        """Whether a partition is known to have nothing."""
        return key in self._missing

    def all_found(self) -> None:
        """Any partition may have something."""
        for key in list(self._missing):
            self.found(key)


def event_bytes(event: Event) -> int:
    """The memory of an event, at most."""
    changes = event.instant.changes
    keys = (*changes.replaces, *changes.removes, *changes.restores)
    names = sum(_KEY_BYTES + getsizeof(partition) + getsizeof(path) for partition, path in keys)
    return _EVENT_BYTES + names + sum(version_bytes(version) for version in changes.adds)


def _missing_bytes(key: FileKey) -> int:
    return _MISSING_BYTES + getsizeof(key[0]) + getsizeof(key[1])
