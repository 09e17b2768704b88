"""Periodic work in its own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from replication import log
from replication.errors import ReplicationError

_log = log.get(__name__)


def every(interval_s: float, name: str, work: Callable[[], object], stop: threading.Event) -> threading.Thread:
    """Return a thread, not started, that calls ``work`` every ``interval_s`` until ``stop``.

    A ReplicationError is logged as a warning, once per run of failures.
    """

    def run() -> None:
        is_failing = False
        while not stop.wait(interval_s):
            try:
                work()
                is_failing = False
            except ReplicationError as error:
                if not is_failing:
                    _log.warning("worker_trouble", work=name, error=str(error))
                is_failing = True

    return threading.Thread(target=run, name=name, daemon=True)
