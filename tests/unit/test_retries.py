"""Waits between attempts, and calls that are repeated."""

from __future__ import annotations

import pytest

from replication.retries import Backoff, Retries, exponential, next_ask_s, repeated_on


def test_a_failing_peer_is_left_alone_longer_each_time_up_to_a_limit() -> None:  # 004-16
    backoff, wait = Backoff(), exponential(1.0, 60.0)
    for longest in (1, 2, 4, 8, 16, 32, 60, 60):
        backoff = backoff.failed(100.0, wait)
        assert longest / 2 <= backoff.until_s - 100.0 <= longest
    assert not backoff.due(129.0) and backoff.due(160.0) and backoff.failures == 8
    assert 30.0 <= Backoff(10_000).failed(0.0, wait).until_s <= 60.0


def test_those_who_failed_together_come_back_apart() -> None:
    wait = exponential(8.0, 60.0)
    assert len({wait(1) for _ in range(20)}) > 1


def test_after_success_the_wait_is_short_again_and_few_failures_are_worth_a_line() -> None:
    retries = Retries(1.0, 60.0)
    logged = []
    for failure in range(1, 9):
        if retries.is_logged:
            logged.append(failure)
        last = retries.failed()
    assert logged == [1, 2, 4, 8] and last >= 30.0
    retries.succeeded()
    assert retries.failures == 0 and retries.failed() <= 1.0


def test_a_step_that_lost_a_race_is_repeated_so_often_and_other_errors_are_raised_at_once() -> None:
    calls: list[int] = []

    @repeated_on(KeyError, ValueError, times=3)
    def step(errors: list[Exception]) -> str:
        calls.append(1)
        if errors:
            raise errors.pop(0)
        return "done"

    assert step([KeyError(), ValueError()]) == "done" and len(calls) == 3
    with pytest.raises(ValueError, match="third"):
        step([KeyError(), KeyError(), ValueError("third"), KeyError()])
    calls.clear()
    with pytest.raises(RuntimeError):
        step([RuntimeError()])
    assert len(calls) == 1


def test_who_hangs_is_asked_again_after_ten_times_as_long() -> None:
    assert next_ask_s(100.0, 100.001, 1.0) == 101.001
    assert next_ask_s(100.0, 102.0, 1.0) == 122.0
    assert next_ask_s(100.0, 102.0, 1.0, 10.0) == 112.0
