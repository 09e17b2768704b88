"""Walks the folders of a store with several threads.

Bounds: ``threads`` threads, and at most ``PENDING_MAX`` folders that wait; past that a thread walks the folders that it
finds itself, one after the other, so that the memory grows with the depth of the tree and not with its size.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from replication.core.copying.names import RelativePath

PENDING_MAX = 10_000

#: Lists one folder and returns those below that are to be walked.
Visit = Callable[[RelativePath], Iterable[RelativePath]]


def walk(begin: RelativePath, visit: Visit, threads: int) -> None:
    """Visit a folder and all below it; returns when every one was visited.

    Args:
        begin: the first folder.
        visit: called by several threads, once a folder; it handles its own errors.
        threads: at most so many.

    Raises:
        BaseException: what ``visit`` raised first; the walk has ended then.
    """
    _Walk(visit).run(begin, threads)


class _Walk:
    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._changed = threading.Condition()
        self._pending: deque[RelativePath] = deque()
        self._busy = 0
        self._error: BaseException | None = None

    def run(self, begin: RelativePath, threads: int) -> None:
        self._pending.append(begin)
        helpers = [threading.Thread(target=self._work, name=f"listing-{n}", daemon=True) for n in range(1, threads)]
        for helper in helpers:
            helper.start()
        self._work()
        for helper in helpers:
            helper.join()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while (folder := self._next()) is not None:
            try:
                self._walk_one(folder)
            except BaseException as error:
                with self._changed:
                    self._error = self._error or error
            finally:
                with self._changed:
                    self._busy -= 1
                    self._changed.notify_all()

    def _next(self) -> RelativePath | None:
        with self._changed:
            while not self._pending and self._busy and self._error is None:
                self._changed.wait()
            if not self._pending or self._error is not None:
                return None
            self._busy += 1
            return self._pending.pop()

    def _walk_one(self, folder: RelativePath) -> None:
        for below in self._visit(folder):
            if self._error is not None:
                return
            if len(self._pending) < PENDING_MAX:
                with self._changed:
                    self._pending.append(below)
                    self._changed.notify()
            else:
                self._walk_one(below)
