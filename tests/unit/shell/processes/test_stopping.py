"""A process told to stop hears it at any moment, also while it holds the lock of the event it waits on."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shell.processes.stopping import DETACH, stopping_on_signals, stopping_on_thread_errors, watch_lifeline

ROOT = Path(__file__).parents[4]
HOLDS_THE_LOCK = """
import signal
from shell.processes.stopping import stopping_on_signals
with stopping_on_signals() as stop:
    with stop._cond:
        signal.raise_signal(signal.SIGTERM)
    assert stop.wait(10)
print("heard")
"""

STUCK_AT_THE_END = """
import atexit, threading, time
from shell.processes.role_process import leave
atexit.register(threading.Event().wait)
threading.Thread(target=lambda: (time.sleep(0.3), print("finished"))).start()
threading.Thread(target=threading.Event().wait, daemon=True).start()
leave(7)
"""


def test_a_role_leaves_when_its_threads_have_ended_whatever_waits_at_the_end_of_python():
    done = subprocess.run(
        [sys.executable, "-c", STUCK_AT_THE_END], capture_output=True, text=True, timeout=30, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (7, "finished\n"), done.stderr


def test_a_signal_is_heard_by_a_thread_that_holds_the_events_lock():
    done = subprocess.run(
        [sys.executable, "-c", HOLDS_THE_LOCK], capture_output=True, text=True, timeout=30, check=False, cwd=ROOT
    )
    assert done.stdout == "heard\n", done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_set_the_event_and_the_handlers_come_back(number):
    before = signal.getsignal(number)
    with stopping_on_signals() as stop:
        assert not stop.is_set()
        for _ in range(3):
            signal.raise_signal(number)
        assert stop.wait(10)
    assert signal.getsignal(number) is before


def test_without_a_signal_the_event_is_never_set():
    with stopping_on_signals() as stop:
        pass
    assert not stop.is_set()


@pytest.mark.parametrize(("last", "stops"), [(b"", True), (DETACH, False)])
def test_the_end_of_the_lifeline_stops_unless_told_to_live_on(last, stops):
    readable, writable = os.pipe()
    stop = threading.Event()
    watch_lifeline(readable, stop)
    os.write(writable, last)
    os.close(writable)
    watcher = next((t for t in threading.enumerate() if t.name == "lifeline"), None)
    if watcher is not None:
        watcher.join(10)
    os.close(readable)
    assert stop.is_set() is stops


def test_a_thread_that_ends_by_an_error_ends_its_role():
    before = threading.excepthook

    def fail() -> None:
        raise KeyError("lost")

    stop = threading.Event()
    with stopping_on_thread_errors(stop) as failed:
        for body in (lambda: None, lambda: sys.exit(3)):
            quiet = threading.Thread(target=body)
            quiet.start()
            quiet.join()
        assert not stop.is_set() and not failed
        threading.Thread(target=fail, name="turns").start()
        assert stop.wait(10)
    assert failed == ["its thread turns failed: KeyError: 'lost'"]
    assert threading.excepthook is before
