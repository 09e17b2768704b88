"""The window between listing and copying: a bounded priority queue of files, largest first or as they were listed.

Bounds: ``FILES_MAX`` files wait; the listing waits while it is full. So a copy of any number of files takes the same
memory, and a large file that is found late still begins before small ones that wait.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Sequence
from itertools import count
from typing import Protocol

from replication.core.copying.copyable import CopyableFile
from replication.core.copying.ranges import Range

FILES_MAX = 20_000


class RangedFile(Protocol):
    """A large file whose ranges several threads copy."""

    def next_range(self) -> Range | None:
        """The next range that nobody copies yet; None when there is none left. Called under the window's lock."""


class CopyWindow:
    """Files that wait to be copied.

    Files of more than ``large_bytes`` come alone, up to ``files_per_split`` small ones, of ``split_bytes`` at most,
    together. ``as_listed`` takes them in the order in which they were put, in place of the largest first.
    """

    def __init__(
        self,
        large_bytes: int,
        files_per_split: int,
        split_bytes: int,
        files_max: int = FILES_MAX,
        *,
        as_listed: bool = False,
    ) -> None:
        self._large_bytes, self._split_bytes, self._as_listed = large_bytes, split_bytes, as_listed
        self._files_per_split, self._files_max = files_per_split, files_max
        self._changed = threading.Condition()
        self._heap: list[tuple[int, int, CopyableFile]] = []
        self._numbers = count()
        self._ranged: list[RangedFile] = []
        self._alone = 0  # files that were taken alone and may be shared yet
        self._ended = False
        self.stopped = False

    def put(self, files: Sequence[CopyableFile]) -> None:
        """Add files; waits while the window is full. After :meth:`stop` it returns at once."""
        with self._changed:
            while len(self._heap) >= self._files_max and not self.stopped:
                self._changed.wait()
            if self.stopped:
                return
            for file in files:
                rank = 0 if self._as_listed else -file.origin.size
                heapq.heappush(self._heap, (rank, next(self._numbers), file))
            self._changed.notify_all()

    def share(self, file: RangedFile) -> None:
        """Let every thread copy ranges of a large file, before anything else."""
        with self._changed:
            self._ranged.append(file)
            self._changed.notify_all()

    def begun(self) -> None:
        """A file that was taken alone is shared, or never will be."""
        with self._changed:
            self._alone -= 1
            self._changed.notify_all()

    def take(self) -> list[CopyableFile] | tuple[RangedFile, Range] | None:
        """A range of a large file, a file alone, or small files together; None when nothing will come.

        Whoever gets a file alone calls :meth:`begun` afterwards. Until then others wait for its ranges.
        """
        with self._changed:
            while True:
                if self.stopped:
                    return None
                while self._ranged:
                    if (part := self._ranged[0].next_range()) is not None:
                        return self._ranged[0], part
                    self._ranged.pop(0)
                if self._heap:
                    taken = self._taken()
                    self._alone += len(taken) == 1
                    return taken
                if self._ended and not self._alone:
                    return None
                self._changed.wait()

    def _taken(self) -> list[CopyableFile]:
        taken = [heapq.heappop(self._heap)[2]]
        size = taken[0].origin.size
        while self._heap and size <= self._large_bytes and len(taken) < self._files_per_split:
            following = self._heap[0][2].origin.size
            size += following
            if size > self._split_bytes or following > self._large_bytes:
                break
            taken.append(heapq.heappop(self._heap)[2])
        self._changed.notify_all()
        return taken

    def end(self) -> None:
        """No more files will come."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Nobody copies any more."""
        with self._changed:
            self.stopped = True
            self._heap.clear()
            self._changed.notify_all()
