"""Ctrl-C while a verb runs: it ends within a second, wherever its main thread is, and so do the processes it started.

Python runs a signal's handler between its own instructions only: not while DuckDB runs a query, nor while Arrow waits
for a pipe. So each signal also writes a byte, which a thread reads. It leaves the main thread a moment to end in good
order, and ends the process when that does not happen; what is durable stays so, as after a kill.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import NoReturn, TypeVar

T = TypeVar("T")
INTERRUPTED = 130
GRACE_S = 0.7
_KILL_TRIES = 50
_CURSOR_BACK = "\r\x1b[2K\x1b[?25h"


@contextmanager
def leaving_on_interrupt(stopped: Callable[[], str], grace_s: float = GRACE_S) -> Iterator[None]:
    """Have Ctrl-C end this process with code 130; nothing changes where SIGINT is handled otherwise, or ignored.

    Args:
        stopped: what to say then.
        grace_s: how long the main thread has for ending in good order; 0 where it would only complain of Java's end.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    import pyarrow as pa  # deferred: whoever connects to a cluster has it anyway

    pa.enable_signal_handlers(False)  # it would hear of Ctrl-C in our place, and wait for a pipe all the same
    leaving = _Leaving(stopped, grace_s)
    try:
        yield
    except BaseException as error:
        if not isinstance(error, KeyboardInterrupt) and not leaving.asked:
            raise
        leaving.tell()
        if not grace_s:
            leave_now()
        raise SystemExit(INTERRUPTED) from None
    finally:
        leaving.close()


def detached(work: Callable[[], T]) -> T:
    """Do something in a thread that Ctrl-C does not wait for: Spark's own handler of it complains at length."""
    ended: Future[T] = Future()

    def run() -> None:
        try:
            ended.set_result(work())
        except BaseException as error:  # handed to the caller
            ended.set_exception(error)

    threading.Thread(target=run, name="detached", daemon=True).start()
    return ended.result()


def say(text: str) -> None:
    """A line on standard error that waits for no lock of a console, with the cursor that a moving bar hides."""
    with suppress(OSError):
        os.write(2, f"{_CURSOR_BACK if os.isatty(2) else ''}{text}\n".encode())


def leave_now() -> NoReturn:
    """End this process without Python's finalization, which waits for threads that may never end."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(INTERRUPTED)


class _Leaving:
    """The thread that hears of SIGINT, and what it does."""

    def __init__(self, stopped: Callable[[], str], grace_s: float) -> None:
        self.asked = False
        self._stopped = stopped
        self._grace_s = grace_s
        self._told = False
        self._telling = threading.Lock()
        self._over = threading.Event()
        self._readable, self._writable = os.pipe()
        os.set_blocking(self._writable, False)
        self._thread = threading.Thread(target=self._hear, name="interrupts", daemon=True)
        self._thread.start()
        signal.signal(signal.SIGINT, self._interrupt)
        self._woken_before = signal.set_wakeup_fd(self._writable, warn_on_full_buffer=False)

    def close(self) -> None:
        """Handle SIGINT as before."""
        self._over.set()
        signal.set_wakeup_fd(self._woken_before)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.close(self._writable)
        self._thread.join()
        os.close(self._readable)

    def tell(self) -> None:
        """Say that it stopped, and end what this process started; once."""
        with self._telling:
            if self._told:
                return
            self._told = True
            say(self._stopped())
            if not self._grace_s:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            end_children()

    def _interrupt(self, *_: object) -> None:
        self.asked = True
        raise KeyboardInterrupt

    def _hear(self) -> None:
        while byte := os.read(self._readable, 1):
            if byte[0] == signal.SIGINT:
                break
        else:
            return
        if self._over.wait(self._grace_s):
            return
        self.tell()
        os._exit(INTERRUPTED)


def end_children() -> None:
    """Kill every process of this session that this one started, and theirs: a starting JVM heeds nothing else.

    What was started in a session of its own goes on (``shell/processes/spawn.py``): a cluster that was detached.

    All are stopped before any is killed: one that its parent starts just before that ends would be nobody's.
    """
    stopped: set[int] = set()
    for _ in range(_KILL_TRIES):
        found = _descendants()
        if not found:
            return
        fresh = [pid for pid in found if pid not in stopped]
        _signal(fresh or found, signal.SIGSTOP if fresh else signal.SIGKILL)
        stopped.update(fresh)
        if not fresh:
            time.sleep(0.01)
    _signal(_descendants(), signal.SIGKILL)  # none that is stopped stays so


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _descendants() -> list[int]:
    """The processes of this session below this one, less those that have ended."""
    import psutil  # deferred: only who is interrupted needs it

    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error, OSError):  # it is gone
            if child.status() != psutil.STATUS_ZOMBIE and os.getsid(child.pid) == os.getsid(0):
                found.append(child.pid)
    return found
