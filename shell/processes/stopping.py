"""Why a process stops: a signal, the end of its lifeline, or a failed thread.

A signal handler may run while the main thread holds the lock of the event that it waits on. Setting the event there
would block for ever. So the handler only writes a byte, and a thread sets the event.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from replication import log

DETACH = b"d"
_log = log.get(__name__)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopping_on_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set. For the main thread only."""
    stop = threading.Event()
    readable, writable = os.pipe()
    os.set_blocking(writable, False)

    def handle(*_: object) -> None:
        with suppress(BlockingIOError):  # the pipe is full of earlier signals
            os.write(writable, b"s")

    def wait() -> None:
        if os.read(readable, 1):
            stop.set()

    thread = threading.Thread(target=wait, name="signals", daemon=True)
    thread.start()
    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writable)
        thread.join()
        os.close(readable)


def watch_lifeline(descriptor: int, stop: threading.Event) -> None:
    """Set ``stop`` when the pipe ends, unless a ``DETACH`` byte came before."""

    def watch() -> None:
        if os.read(descriptor, 1) != DETACH:
            stop.set()

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


@contextmanager
def stopping_on_thread_errors(stop: threading.Event) -> Iterator[list[str]]:
    """Set ``stop`` when a thread ends by an error, and log it: a process must not run on without its thread."""
    failed: list[str] = []
    before = threading.excepthook

    def failure(error: threading.ExceptHookArgs) -> None:
        if error.exc_type is SystemExit:
            return
        name = error.thread.name if error.thread is not None else "a thread"
        found = (error.exc_type, error.exc_value, error.exc_traceback)
        failed.append(f"its thread {name} failed: {error.exc_type.__name__}: {error.exc_value}"[:500])
        try:
            _log.error("thread_failed", thread=name, exc_info=found)
        finally:
            stop.set()

    threading.excepthook = failure
    try:
        yield failed
    finally:
        threading.excepthook = before
