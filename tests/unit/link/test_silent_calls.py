"""Calls on which nothing comes are ended, by one thread for all of them."""

from __future__ import annotations

import threading
import time

from replication.link.silent_calls import SilentCalls


def test_only_calls_that_wait_too_long_are_ended() -> None:
    calls, ended, others = SilentCalls(), threading.Event(), set(threading.enumerate())
    with calls.ended_after(60.0, lambda: None):
        with calls.ended_after(60.0, ended.set), calls.ended_after(0.01, lambda: None):
            pass
        assert not ended.is_set()
        with calls.ended_after(0.05, ended.set):
            assert ended.wait(5.0), "it is due before what came first"
        assert [each.name for each in set(threading.enumerate()) - others] == ["silent calls"]


def test_a_call_that_cannot_be_ended_keeps_no_other_from_it() -> None:
    calls, tried, ended = SilentCalls(), threading.Event(), threading.Event()

    def fail() -> None:
        tried.set()
        raise RuntimeError("it has ended already")

    with calls.ended_after(0.01, fail):
        assert tried.wait(5.0)
        with calls.ended_after(0.01, ended.set):
            assert ended.wait(5.0), "its thread goes on"


def test_its_thread_ends_with_the_calls_and_comes_back() -> None:
    calls = SilentCalls()
    for _ in range(2):
        ended = threading.Event()
        with calls.ended_after(0.01, ended.set):
            assert ended.wait(5.0)
        deadline_s = time.monotonic() + 5.0
        while calls._looks_s and time.monotonic() < deadline_s:
            time.sleep(0.005)
        assert not calls._looks_s
