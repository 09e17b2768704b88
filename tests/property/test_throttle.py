"""Rates: whatever is asked for and when, a peer is sent no more than its rate, and no less when enough waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.core.shipping.rate import parse_rate
from replication.errors import FormatError
from replication.worker.ship.throttle import BURST_S, Throttle

RATE = st.integers(1_000, 10**9)
SIZES = st.lists(st.integers(1, 4 << 20), min_size=1, max_size=60)
EPSILON = 1e-6


class Clock:
    """Monotonic seconds that the test moves."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def throttled(rate: float, clock: Clock) -> Throttle:
    throttle = Throttle(clock)
    throttle.set_rate(rate)
    return throttle


@given(RATE, SIZES, st.lists(st.floats(0, 3), min_size=60, max_size=60))
def test_over_any_time_at_most_rate_times_time_and_a_burst_and_one_message_go(rate, sizes, pauses):
    clock = Clock()
    throttle, sent = throttled(rate, clock), []
    for size, pause in zip(sizes, pauses, strict=False):
        clock.now += pause
        if throttle.wait_s() == 0.0:
            throttle.spend(size)
            sent.append((clock.now, size))
    for first in range(len(sent)):
        total = 0
        for at, size in sent[first:]:
            assert total <= rate * (at - sent[first][0] + BURST_S) + EPSILON * rate
            total += size


@given(RATE, SIZES)
def test_a_sender_that_waits_as_told_gets_the_whole_rate(rate, sizes):
    clock = Clock()
    throttle = throttled(rate, clock)
    for size in sizes:
        clock.now += throttle.wait_s()
        assert throttle.wait_s() <= EPSILON
        throttle.spend(size)
    assert clock.now <= sum(sizes[:-1]) / rate + EPSILON


@given(RATE, RATE, st.integers(1, 1 << 24))
def test_another_rate_keeps_the_debt_and_no_more_than_the_new_burst(rate, other, size):
    throttle = throttled(rate, Clock())
    throttle.spend(size)
    throttle.set_rate(other)
    left = min(rate * BURST_S - size, other * BURST_S)
    assert throttle.wait_s() == max(0.0, -left / other)
    throttle.spend(1 << 30)
    assert throttle.wait_s() == pytest.approx(((1 << 30) - left) / other)


def test_a_clock_that_goes_back_gives_nothing():
    clock = Clock(50.0)
    throttle = throttled(100, clock)
    throttle.spend(1000)
    wait_s = throttle.wait_s()
    clock.now = 10.0
    assert throttle.wait_s() == wait_s > 0.0
    clock.now = 50.0
    assert throttle.wait_s() == wait_s


def test_a_throttle_is_changed_while_it_is_used():
    now = [0.0]
    throttle = Throttle(lambda: now[0])
    throttle.spend(10**9)
    assert throttle.wait_s() == 0.0 and throttle.message_bytes(4 << 20) == 4 << 20
    throttle.set_rate(1_000_000)
    assert throttle.wait_s() == 0.0 and throttle.message_bytes(4 << 20) == 250_000
    throttle.spend(1_250_000)
    assert throttle.wait_s() > 0.0
    now[0] = 0.99
    assert throttle.wait_s() > 0.0
    throttle.set_rate(2_000_000)
    now[0] = 1.0
    assert throttle.wait_s() == 0.0
    throttle.spend(10**9)
    throttle.set_rate(0)
    assert throttle.wait_s() == 0.0


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("10MB", 10_000_000),
        ("10 MB/s", 10_000_000),
        ("512KiB", 524_288),
        ("1.5m", 1_500_000),
        ("2GiB/s", 2 << 30),
        ("800", 800),
        ("1TiB", 1 << 40),
        ("off", 0),
        ("OFF", 0),
    ],
)
def test_rates_are_read_as_people_write_them(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "-1MB", "0", "0.2", "10MBit", "1e6", "9" * 30 + "TB", "9" * 400])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(FormatError, match="is not a rate"):
        parse_rate(text)
