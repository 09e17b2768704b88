"""Ctrl-C while a verb runs: it ends within a second, with the processes that it started.

Python runs a signal's handler between its own instructions only: not while DuckDB runs a query, nor while Arrow waits
for a pipe. So each signal also writes a byte, which a thread reads. The thread gives the main thread a moment to
end, then ends the process; what is durable stays durable, as after a kill.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar, cast

T = TypeVar("T")
INTERRUPTED = 130
GRACE_S = 0.7
_KILL_TRIES = 50
_CURSOR_BACK = "\r\x1b[2K\x1b[?25h"


@contextmanager
def leaving_on_interrupt(stopped: Callable[[], str], grace_s: float = GRACE_S) -> Iterator[None]:
    """Let Ctrl-C end this process with code 130, unless SIGINT is handled otherwise or ignored.

    Args:
        stopped: gives the message.
        grace_s: how long the main thread may take to end; 0 if it would only report the end of Java.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    leaving = _Leaving(stopped, grace_s)
    try:
        yield
    except BaseException as error:
        if not isinstance(error, KeyboardInterrupt) and not leaving.asked:
            raise
        leaving.announce()
        if not grace_s:
            leave_now()
        raise SystemExit(INTERRUPTED) from None
    finally:
        leaving.close()


def detached(work: Callable[[], T]) -> T:
    """Run ``work`` in a thread that Ctrl-C does not wait for: Spark's own handler prints long errors."""
    ended: Future[T] = Future()

    def run() -> None:
        try:
            ended.set_result(work())
        except BaseException as error:  # handed to the caller
            ended.set_exception(error)

    threading.Thread(target=run, name="detached", daemon=True).start()
    return ended.result()


@contextmanager
def run_beside(work: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Run ``work`` in a thread as long as the block; it gets the event that is set at the end of the block."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def print_error(text: str) -> None:
    """Print a line on standard error without a console's lock, and show the cursor that a progress bar hides."""
    with suppress(OSError):
        os.write(2, f"{_CURSOR_BACK if os.isatty(2) else ''}{text}\n".encode())


def leave_now() -> NoReturn:
    """Exit without Python's finalization, which waits for threads that may never end."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(INTERRUPTED)


def leave(code: int) -> NoReturn:
    """Exit; without Python's finalization where nothing needs it.

    That takes a sixth of a short command's time, and DuckDB then lists objects of a query that was left.
    """
    if "pyspark" not in sys.modules:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, lambda *_: leave_now())  # Python 3.13 only prints what it raises meanwhile
        cast("Any", threading)._shutdown()  # waits for the threads that finalization waits for
        with suppress(OSError, ValueError):  # else Python says so
            sys.stdout.flush()
            sys.stderr.flush()
            atexit._run_exitfuncs()
            os._exit(code)
    sys.exit(code)


class _Leaving:
    """The thread that reads SIGINT, and what it does."""

    def __init__(self, stopped: Callable[[], str], grace_s: float) -> None:
        self.asked = False
        self._stopped = stopped
        self._grace_s = grace_s
        self._announced = False
        self._announce_lock = threading.Lock()
        self._over = threading.Event()
        self._readable, self._writable = os.pipe()
        os.set_blocking(self._writable, False)
        self._thread = threading.Thread(target=self._read, name="interrupts", daemon=True)
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

    def announce(self) -> None:
        """Print the message and end the processes that this one started; once."""
        with self._announce_lock:
            if self._announced:
                return
            self._announced = True
            print_error(self._stopped())
            if not self._grace_s:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            end_children()

    def _interrupt(self, *_: object) -> None:
        self.asked = True
        raise KeyboardInterrupt

    def _read(self) -> None:
        while byte := os.read(self._readable, 1):
            if byte[0] == signal.SIGINT:
                break
        else:
            return
        if self._over.wait(self._grace_s):
            return
        self.announce()
        os._exit(INTERRUPTED)


def end_children() -> None:
    """Kill all descendants of this process in its session: a starting JVM ignores other signals.

    Those in a session of their own go on (``shell/processes/spawn.py``), such as a detached cluster.

    All have stopped before any is killed: one that is told to stop may still start another.
    """
    stopped: set[int] = set()  # before the newest look
    for _ in range(_KILL_TRIES):
        found = _descendants()
        if not found:
            return
        are_all = stopped.issuperset(found)
        _signal(found if are_all else found.keys() - stopped, signal.SIGKILL if are_all else signal.SIGSTOP)
        stopped.update(pid for pid, is_stopped in found.items() if is_stopped)
        time.sleep(0.01 if are_all else 0.001)
    _signal(_descendants(), signal.SIGKILL)  # none that is stopped stays so


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _descendants() -> dict[int, bool]:
    """The processes of this session below this one, less those that have ended, and whether each is stopped."""
    import psutil  # deferred: only an interrupt needs it

    found = {}
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error, OSError):  # it is gone
            status = child.status()
            if status != psutil.STATUS_ZOMBIE and os.getsid(child.pid) == os.getsid(0):
                found[child.pid] = status == psutil.STATUS_STOPPED
    return found
