"""Periodic work that is done when it is asked for."""

from __future__ import annotations

import threading

from replication.worker.periodic import Pace, when_asked
from tests.waiting import wait_until


def test_work_is_done_when_asked_and_again_only_after_the_interval_or_in_a_hurry() -> None:
    pace, stop, done = Pace(3600.0, 3600.0), threading.Event(), list[int]()
    thread = when_asked(pace, "test", lambda: done.append(1), stop)
    thread.start()
    for times in (1, 2):
        pace.ask(hurry=times > 1)
        wait_until(lambda times=times: len(done) == times)
    pace.ask()
    thread.join(0.05)
    assert len(done) == 2, "the interval is not over"
    stop.set()
    pace.ask(hurry=True)
    thread.join(60)
    assert not thread.is_alive() and len(done) == 2


def test_work_that_nobody_asks_for_is_done_now_and_then() -> None:
    pace, stop, done = Pace(0.0, 0.001), threading.Event(), list[int]()
    thread = when_asked(pace, "test", lambda: done.append(1), stop)
    thread.start()
    wait_until(lambda: len(done) > 2)
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
