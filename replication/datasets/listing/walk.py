"""Walks the folders of a store with several threads, and of a big tree by tasks elsewhere, too.

Bounds: ``threads`` threads, one more for each task that runs at once, and at most ``PENDING_MAX`` folders that wait;
past that a thread walks the folders that it finds itself, one after the other, so that the memory grows with the depth
of the tree and not with its size.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from replication.core.copying.names import RelativePath
from replication.datasets.listing.tasks import FolderTasks

PENDING_MAX = 10_000
FOLDERS_PER_TASK = 64
_FEW = 8  # folders that wait are left to the threads: a task costs more
_PAUSE_S = 0.5

#: Lists one folder and returns those below that are to be walked.
Visit = Callable[[RelativePath], Iterable[RelativePath]]


def walk(begins: Iterable[RelativePath], visit: Visit, threads: int, elsewhere: FolderTasks | None = None) -> None:
    """Visit folders and all below them; returns when every one was visited.

    ``visit`` is called by several threads, once a folder; it handles its own errors. ``elsewhere`` takes some of the
    folders that wait if they are many.

    Raises:
        BaseException: what ``visit`` raised first; the walk has ended then.
    """
    _Walk(visit, elsewhere).run(begins, threads)


class _Walk:
    def __init__(self, visit: Visit, elsewhere: FolderTasks | None) -> None:
        self._visit, self._elsewhere = visit, elsewhere
        lock = threading.Lock()
        self._changed, self._many = threading.Condition(lock), threading.Condition(lock)
        self._pending: deque[RelativePath] = deque()
        self._busy = 0
        self._error: BaseException | None = None

    def run(self, begins: Iterable[RelativePath], threads: int) -> None:
        self._pending.extend(begins)
        works = [self._work] * (threads - 1)
        if self._elsewhere is not None:
            works += [self._work_elsewhere] * self._elsewhere.parallel
        helpers = [threading.Thread(target=work, name=f"listing-{n}", daemon=True) for n, work in enumerate(works)]
        for helper in helpers:
            helper.start()
        self._work()
        for helper in helpers:
            helper.join()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while (folder := self._next()) is not None:
            with self._visiting():
                self._walk_one(folder)

    def _work_elsewhere(self) -> None:
        while folders := self._next_many():
            with self._visiting():
                self._walk_many(folders)

    @contextmanager
    def _visiting(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()
                if self._error is not None or not (self._busy or self._pending):
                    self._many.notify_all()

    def _next(self) -> RelativePath | None:
        with self._changed:
            while not self._pending and self._busy and self._error is None:
                self._changed.wait()
            if not self._pending or self._error is not None:
                return None
            self._busy += 1
            return self._pending.pop()

    def _next_many(self) -> list[RelativePath]:
        """Folders that were found early, since they have most below them; none when the walk ends."""
        assert self._elsewhere is not None
        with self._changed:
            while (self._pending or self._busy) and self._error is None:
                if len(self._pending) >= _FEW and self._elsewhere.is_ready:
                    self._busy += 1
                    count = min(FOLDERS_PER_TASK, len(self._pending) // 2)
                    return [self._pending.popleft() for _ in range(count)]
                self._many.wait(_PAUSE_S)
            return []

    def _walk_many(self, folders: list[RelativePath]) -> None:
        assert self._elsewhere is not None
        while folders and self._error is None:
            some, folders = folders[-FOLDERS_PER_TASK:], folders[:-FOLDERS_PER_TASK]
            left, here = self._elsewhere(some)
            for folder in here:
                self._walk_one(folder)
            with self._changed:
                room = max(PENDING_MAX - len(self._pending), 0)
                self._pending.extend(left[:room])
                self._changed.notify_all()
            folders += left[room:]

    def _walk_one(self, folder: RelativePath) -> None:
        for below in self._visit(folder):
            if self._error is not None:
                return
            if len(self._pending) < PENDING_MAX:
                with self._changed:
                    self._pending.append(below)
                    self._changed.notify()
                    if len(self._pending) >= _FEW:
                        self._many.notify()
            else:
                self._walk_one(below)
