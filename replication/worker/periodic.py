"""Periodic work in its own thread: at intervals, or when it is asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from replication import log
from replication.errors import ReplicationError

_log = log.get(__name__)


class PeriodicTimer:
    """When work that is asked for is done: at once after a pause, else ``interval_s`` after it was done before.

    Args:
        interval_s: the shortest interval, except for urgent work.
        idle_s: the interval of work that nobody asks for.
    """

    def __init__(self, interval_s: float, idle_s: float) -> None:
        self._interval_s = interval_s
        self._idle_s = idle_s
        self._asked, self._urgent = threading.Event(), threading.Event()
        self._done_s = -interval_s

    def ask(self, *, urgent: bool = False) -> None:
        """Ask for the work; with ``urgent`` it is done before the interval is over. Safe for threads."""
        if urgent:
            self._urgent.set()
        if not self._asked.is_set():
            self._asked.set()

    def wait(self) -> None:
        """Wait until the work is due. For one thread."""
        self._asked.wait(self._idle_s)
        left_s = self._done_s + self._interval_s - time.monotonic()
        if left_s > 0:
            self._urgent.wait(left_s)
        self._asked.clear()
        self._urgent.clear()
        self._done_s = time.monotonic()


def every(interval_s: float, name: str, work: Callable[[], object], stop: threading.Event) -> threading.Thread:
    """Return a thread, not started, that calls ``work`` every ``interval_s`` until ``stop``.

    A ReplicationError is logged as a warning, once per run of failures.
    """
    return _thread(name, work, lambda: stop.wait(interval_s))


def when_asked(timer: PeriodicTimer, name: str, work: Callable[[], object], stop: threading.Event) -> threading.Thread:
    """As ``every``, by a timer. Set ``stop`` before asking for the last time."""

    def wait() -> bool:
        timer.wait()
        return stop.is_set()

    return _thread(name, work, wait)


def _thread(name: str, work: Callable[[], object], wait: Callable[[], bool]) -> threading.Thread:
    def run() -> None:
        is_failing = False
        while not wait():
            try:
                work()
                is_failing = False
            except ReplicationError as error:
                if not is_failing:
                    _log.warning("periodic_work_failed", work=name, error=str(error))
                is_failing = True

    return threading.Thread(target=run, name=name, daemon=True)
