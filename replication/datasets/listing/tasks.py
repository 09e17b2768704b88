"""Lists folders of a big tree by tasks on other hosts. The sink gets here what the sinks of the tasks got there.

Bounds: a task ends after ``ENTRIES`` entries or ``_TASK_S`` and hands back the folders that are left. One with more
entries than that is handed back whole, and is streamed by the driver. So an answer has at most twice as many entries,
and there are ``PARALLEL_MAX`` at once, however many files there are.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import RelativePath
from replication.datasets.listing.sink import ListingSink, Tasks
from replication.datasets.stores.base import Store
from replication.error_text import one_line
from replication.log import get, redact

ENTRIES = 4_000
PARALLEL_MAX = 16
MISSING_MAX = 100_000
_TASK_S = 5.0
_LEFT, _HERE = "left", "here"
_log = get(__name__)

#: A method of a sink and what it is called with; or _LEFT or _HERE with a folder, and whether the one above is missing.
Answer = tuple[str, tuple[Any, ...]]


class Visitor(Protocol):
    """Lists folders into the sink that it was made with."""

    missing: set[RelativePath]

    def visit(self, folder: RelativePath) -> Iterator[RelativePath]:
        """List one folder; those below that are to be listed."""


class FolderTasks:
    """Visits folders by tasks, ``parallel`` at once. What no attempt of a task could list is listed by the driver.

    ``visitor`` makes a visitor for a given ``sink``, and can be pickled.
    """

    def __init__(
        self,
        tasks: Tasks,
        stores: tuple[Store, Store],
        visitor: Callable[..., Visitor],
        missing: set[RelativePath],
        sink: ListingSink,
    ) -> None:
        self._tasks, self._missing, self._sink = tasks, missing, sink
        self._opened = pickle.dumps((stores, visitor))
        self.parallel = min(tasks.parallel, PARALLEL_MAX)

    @property
    def is_ready(self) -> bool:
        """Whether it can be called; it may become so."""
        return self._tasks.is_ready

    def __call__(self, folders: Sequence[RelativePath]) -> tuple[list[RelativePath], list[RelativePath]]:
        """Visit folders, and some below: those that are left to anyone, and those that this process must visit.

        Returns when the sink has taken what was found.
        """
        if self._sink.is_stopped:
            return [], []
        rows = [(str(folder), folder.parent in self._missing) for folder in folders]
        try:
            answers = self._tasks.run(partial(list_folders, self._opened), rows)
        except Exception as error:  # whatever ended each attempt
            _log.warning("listing_task_failed", folders=len(folders), error=redact(one_line(error)))
            return [], list(folders)
        kept: dict[str, list[RelativePath]] = {_LEFT: [], _HERE: []}
        for name, given in answers:
            if name not in kept:
                getattr(self._sink, name)(*given)
                continue
            folder, is_missing = RelativePath(given[0]), given[1]
            kept[name].append(folder)
            if is_missing:
                note_missing(self._missing, folder.parent)
        return kept[_LEFT], kept[_HERE]


def note_missing(missing: set[RelativePath], folder: RelativePath) -> None:
    """Note a folder that the target does not have; of many others it may be asked again."""
    if len(missing) >= MISSING_MAX:
        missing.clear()
    missing.add(folder)


def list_folders(opened: bytes, rows: Iterable[tuple[str, bool]]) -> Iterator[Answer]:
    """Visit folders and those below as far as the bounds let, in an executor."""
    (source, target), made = pickle.loads(opened)
    sink = _AnswerSink()
    visitor: Visitor = made(sink=sink)
    left: list[RelativePath] = []
    for path, is_missing in rows:
        left.append(RelativePath(path))
        if is_missing:
            visitor.missing.add(left[-1].parent)
    entries, until_s = 0, time.monotonic() + _TASK_S
    with source, target:
        while left and entries < ENTRIES and time.monotonic() < until_s:
            folder = left.pop()
            below = list(visitor.visit(folder))
            answers, count = sink.taken()
            if count + len(below) > ENTRIES:
                yield _HERE, (str(folder), folder.parent in visitor.missing)
                continue
            yield from answers
            entries += count + len(below) + 1
            left += below
    for folder in left:
        yield _LEFT, (str(folder), folder.parent in visitor.missing)


class _AnswerSink:
    """A sink that keeps what it gets of one folder, unless that is too much."""

    tasks = None

    def __init__(self) -> None:
        self._answers: list[Answer] = []
        self._count = 0

    def taken(self) -> tuple[list[Answer], int]:
        answers, count = self._answers, self._count
        self._answers, self._count = [], 0
        return answers, count

    @property
    def is_stopped(self) -> bool:
        return self._count > ENTRIES

    def _keep(self, name: str, *given: Any, count: int = 1) -> None:
        self._count += count
        if self.is_stopped:
            self._answers = []
        else:
            self._answers.append((name, given))

    def copy(self, files: Sequence[CopyableFile]) -> None:
        self._keep("copy", files, count=len(files))

    def ended(self, file_set: str) -> None:
        self._keep("ended", file_set, count=0)

    def skipped(self, reason: str, path: RelativePath, size: int) -> None:
        self._keep("skipped", reason, path, size)

    def failed(self, path: str, reason: str) -> None:
        self._keep("failed", path, reason)

    def unlisted(self, folder: str, reason: str, file_set: str) -> None:
        self._keep("unlisted", folder, reason, file_set)

    def extra(self, file: FileAttributes) -> None:
        self._keep("extra", file)

    def empty(self, folder: RelativePath) -> None:
        self._keep("empty", folder)
