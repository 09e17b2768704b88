"""Records as objects, of which old ones are packed together, with the state of the timeline after them.

A record that is archived must never be created again by a process that has not noticed. So whoever creates one looks
afterwards whether that number is archived, and takes it back. The pack and the state are there before the first record
is removed.
"""

from __future__ import annotations

import json
import threading
from typing import Protocol

from replication.errors import StorageError
from replication.timeline.base import ARCHIVED_TOGETHER

_STATE = "archive/state.json.gz"


class Objects(Protocol):
    """Named objects in a store. Safe for threads. Failures raise StorageError."""

    def create(self, name: str, content: bytes) -> bool:
        """Write an object, durably and whole; False if the name is taken."""

    def read(self, name: str) -> bytes | None:
        """Return an object's content; None if it does not exist."""

    def replace(self, name: str, content: bytes) -> None:
        """Write an object, durably and whole, in place of one that may be there."""

    def remove(self, name: str) -> None:
        """Remove an object, if it exists."""


class ArchivedRecords:
    """The records of a timeline over objects."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._lock = threading.Lock()
        self._through: int | None = None
        self._pack: tuple[int, list[str]] = (-1, [])

    def create(self, number: int, content: bytes) -> bool:
        if not self._objects.create(_name(number), content):
            return False
        if number <= self._archived_through():
            self._objects.remove(_name(number))
            return False
        return True

    def read(self, number: int) -> bytes | None:
        through = self._archived_through() if self._through is None else self._through
        if number > through:
            if (content := self._objects.read(_name(number))) is not None:
                return content
            if number > self._archived_through():
                return None
        return self._packed(number)

    def archived(self) -> str:
        content = self._objects.read(_STATE)
        return str(json.loads(content)["state"]) if content is not None else ""

    def archive(self, through: int, state: str) -> None:
        assert through % ARCHIVED_TOGETHER == 0
        begin = self._archived_through()
        for first in range(begin + 1, through + 1, ARCHIVED_TOGETHER):
            contents = [self.read(number) for number in range(first, first + ARCHIVED_TOGETHER)]
            lines = [content.decode() for content in contents if content is not None]
            assert len(lines) == ARCHIVED_TOGETHER, "only what exists is archived"
            self._objects.create(_pack_name(first), json.dumps(lines).encode())
        if through > begin:
            self._objects.replace(_STATE, json.dumps({"through": through, "state": state}).encode())
        for number in range(max(1, begin - ARCHIVED_TOGETHER + 1), through + 1):
            self._objects.remove(_name(number))  # also those that an archiver left that died

    def _archived_through(self) -> int:
        """Through which number records are archived. An archiver that was slow may have written an older state."""
        through = self._through  # another thread may notice the same pack meanwhile
        if through is None:
            content = self._objects.read(_STATE)
            through = int(json.loads(content)["through"]) if content is not None else 0
        while self._load(through + 1) is not None:
            through += ARCHIVED_TOGETHER
        self._through = through
        return through

    def _packed(self, number: int) -> bytes:
        first = (number - 1) // ARCHIVED_TOGETHER * ARCHIVED_TOGETHER + 1
        with self._lock:
            kept, found = self._pack  # another thread may load another one meanwhile
            lines = found if kept == first else self._load(first)
            if lines is None:
                raise StorageError(f"{_pack_name(first)} of the timeline is missing", "Restore it from a backup")
            return lines[number - first].encode()

    def _load(self, first: int) -> list[str] | None:
        content = self._objects.read(_pack_name(first))
        if content is None:
            return None
        lines: list[str] = json.loads(content)
        self._pack = (first, lines)
        return lines


def _name(number: int) -> str:
    return f"{number // 1000:09d}/{number:012d}.json.gz"


def _pack_name(first: int) -> str:
    return f"archive/{first:012d}.json.gz"
