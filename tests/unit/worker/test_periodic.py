"""Periodic work that is done when it is asked for."""

from __future__ import annotations

import threading

from replication.worker.periodic import PeriodicTimer, when_asked
from tests.waiting import wait_until


def test_work_is_done_when_asked_and_again_only_after_the_interval_or_if_urgent() -> None:
    timer, stop, done = PeriodicTimer(3600.0, 3600.0), threading.Event(), list[int]()
    thread = when_asked(timer, "test", lambda: done.append(1), stop)
    thread.start()
    for times in (1, 2):
        timer.ask(urgent=times > 1)
        wait_until(lambda times=times: len(done) == times)
    timer.ask()
    thread.join(0.05)
    assert len(done) == 2, "the interval is not over"
    stop.set()
    timer.ask(urgent=True)
    thread.join(60)
    assert not thread.is_alive() and len(done) == 2


def test_work_that_nobody_asks_for_is_done_now_and_then() -> None:
    timer, stop, done = PeriodicTimer(0.0, 0.001), threading.Event(), list[int]()
    thread = when_asked(timer, "test", lambda: done.append(1), stop)
    thread.start()
    wait_until(lambda: len(done) > 2)
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
