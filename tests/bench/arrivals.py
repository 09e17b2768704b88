"""When what was acked at east arrived at west, observed from outside through west's ledger.

``durable`` is the end of the contiguous range of east's WAL that west has registered, ``visible`` the prefix of it
that west's replay has marked applied. A receiver registers after fdatasync, and replay marks after its commit to the
table, so neither is seen too early; it is seen late by at most the time between two looks. Benches prove now and then,
by reading a key that is said to be visible, that it is. A look costs about a third of a millisecond of SQLite, and
there is none while nothing is awaited.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import walship
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import FileId
from replication.core.position import Position
from replication.ledger.base import FileKind

Reached = Callable[[Sequence[FileId]], Mapping[FileId, int]]


def durable(west: walship.Cluster) -> Reached:
    """How far west has east's files registered."""
    return lambda files: {file: west.ledger.landing.received(file).prefix(FILE_HEADER_BYTES) for file in files}


def visible(west: walship.Cluster) -> Reached:
    """How far east's files are in west's tables."""
    return west.ledger.landing.applied_prefix


class Arrivals:
    """Watches for positions in the order in which they were acked; a thread of its own, ended by ``finish``.

    Args:
        reached: :func:`durable` or :func:`visible`.
        poll_s: between two looks.
    """

    def __init__(self, reached: Reached, poll_s: float) -> None:
        self.lags: list[tuple[float, float]] = []  # when acked (monotonic), seconds until it arrived
        self._reached, self._poll_s = reached, poll_s
        self._awaited: deque[tuple[float, Position]] = deque()
        self._some = threading.Condition()
        self._ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._watch, name="arrivals")
        self._thread.start()

    def add(self, acked: float, position: Position) -> None:
        """Await a position that was acked at ``acked`` (monotonic)."""
        if self._error is not None:
            raise self._error
        with self._some:
            self._awaited.append((acked, position))
            self._some.notify()

    def finish(self, limit_s: float) -> None:
        """Wait for what is still awaited; TimeoutError when it does not come."""
        with self._some:
            self._ended = True
            self._some.notify()
        self._thread.join(limit_s)
        if self._thread.is_alive():
            with self._some:
                missing = len(self._awaited)
                self._awaited.clear()
            self._thread.join()
            raise TimeoutError(f"{missing} appends have not arrived within {limit_s:.0f} s")
        if self._error is not None:
            raise self._error

    def _watch(self) -> None:
        try:
            while True:
                with self._some:
                    while not self._awaited and not self._ended:
                        self._some.wait()
                    if not self._awaited:
                        return
                    waiting = [*self._awaited]
                self._look(waiting)
                time.sleep(self._poll_s)
        except BaseException as error:
            self._error = error

    def _look(self, waiting: Sequence[tuple[float, Position]]) -> None:
        arrived = self._arrived(waiting)
        seen = time.monotonic()
        self.lags += [(acked, max(0.0, seen - acked)) for acked, _ in waiting[:arrived]]
        with self._some:
            for _ in range(min(arrived, len(self._awaited))):
                self._awaited.popleft()

    def _arrived(self, waiting: Sequence[tuple[float, Position]]) -> int:
        """How many of them, from the first on."""
        reached = self._reached(sorted({file for _, position in waiting for file in position.ends}))
        for number, (_, position) in enumerate(waiting):
            if any(reached.get(file, 0) < end for file, end in position.ends.items()):
                return number
        return len(waiting)


def seen(reached: Reached, position: Position, limit_s: float, poll_s: float = 0.02) -> float:
    """Wait until a position has arrived; the moment (monotonic) it was seen."""
    deadline = time.monotonic() + limit_s
    while True:
        found = reached([*position.ends])
        if all(found.get(file, 0) >= end for file, end in position.ends.items()):
            return time.monotonic()
        if time.monotonic() > deadline:
            raise TimeoutError(f"not there within {limit_s:.0f} s: {found} of {dict(position.ends)}")
        time.sleep(poll_s)


class Curve:
    """MiB of east's WALs that have arrived at west, five times a second, while the context lasts.

    Args:
        east: whose WALs.
        reached: :func:`durable` or :func:`visible`.
    """

    def __init__(self, east: walship.Cluster, reached: Reached) -> None:
        self.points: list[tuple[float, float]] = []
        self._east, self._reached = east, reached
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="curve")

    def __enter__(self) -> Curve:
        """Start sampling."""
        self._begin = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        most: dict[FileId, int] = {}
        first = None
        while True:
            files = [row.file for row in self._east.ledger.files.all() if row.kind is FileKind.WAL]
            for file, end in self._reached(files).items():
                most[file] = max(end, most.get(file, 0))
            total = sum(most.values()) / (1 << 20)
            first = total if first is None else first
            self.points.append((time.monotonic() - self._begin, total - first))
            if self._stop.wait(0.2):
                return


def paced(count: int, per_second: float, begin: float) -> Sequence[float]:
    """The moments at which an open loop acts, whatever became of what it did before."""
    return [begin + number / per_second for number in range(count)]


def sleep_until(moment: float) -> None:
    """Sleep until a monotonic moment; not at all when it has passed."""
    left = moment - time.monotonic()
    if left > 0:
        time.sleep(left)
