"""A timeline's records in memory, for tests: they can fail before or after they take effect."""

from __future__ import annotations

import threading
from collections.abc import Callable

from replication.errors import StorageError


class MemoryRecords:
    """Records in memory.

    ``before`` and ``after`` are called with a record's number around its creation, and may raise. ``lost`` makes every
    call fail. ``reads`` counts the records that were asked for.
    """

    def __init__(self) -> None:
        self.contents: dict[int, bytes] = {}
        self.before: Callable[[int], None] = lambda number: None
        self.after: Callable[[int], None] = lambda number: None
        self.lost = False
        self.state = ""
        self.reads = 0
        self._lock = threading.Lock()

    def create(self, number: int, content: bytes) -> bool:
        self._check()
        self.before(number)
        with self._lock:
            if number in self.contents:
                return False
            self.contents[number] = content
        self.after(number)
        return True

    def archived(self) -> str:
        self._check()
        return self.state

    def archive(self, through: int, state: str) -> None:
        """See Records. The objects stay as they are."""
        self._check()
        self.state = state

    def read(self, number: int) -> bytes | None:
        self._check()
        self.reads += 1
        return self.contents.get(number)

    def _check(self) -> None:
        if self.lost:
            raise StorageError("the timeline's store does not answer", "Check it")
