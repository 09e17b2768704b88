"""Rates: whatever is asked for and when, a peer is sent no more than its rate, and no less when enough waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.core.shipping.throttle import BURST_S, TokenBucket, parse_rate
from replication.errors import FormatError
from replication.worker.ship.throttle import Throttle

RATE = st.integers(1_000, 10**9)
SIZES = st.lists(st.integers(1, 4 << 20), min_size=1, max_size=60)
EPSILON = 1e-6


@given(RATE, SIZES, st.lists(st.floats(0, 3), min_size=60, max_size=60))
def test_over_any_time_at_most_rate_times_time_and_a_burst_and_one_message_go(rate, sizes, pauses):
    bucket = TokenBucket.full(rate, 0.0)
    now, sent = 0.0, []
    for size, pause in zip(sizes, pauses, strict=False):
        now += pause
        bucket = bucket.at(now)
        if bucket.wait_s() == 0.0:
            bucket = bucket.spend(size)
            sent.append((now, size))
    for first in range(len(sent)):
        total = 0
        for at, size in sent[first:]:
            assert total <= rate * (at - sent[first][0] + BURST_S) + EPSILON * rate
            total += size


@given(RATE, SIZES)
def test_a_sender_that_waits_as_told_gets_the_whole_rate(rate, sizes):
    bucket, now = TokenBucket.full(rate, 0.0), 0.0
    for size in sizes:
        bucket = bucket.at(now)
        now += bucket.wait_s()
        bucket = bucket.at(now)
        assert bucket.tokens >= -EPSILON * rate
        bucket = bucket.spend(size)
    assert now <= sum(sizes[:-1]) / rate + EPSILON


@given(RATE, RATE, st.integers(1, 1 << 24))
def test_another_rate_keeps_the_debt_and_no_more_than_the_new_burst(rate, other, size):
    bucket = TokenBucket.full(rate, 0.0).spend(size).at_rate(other)
    assert bucket.tokens == min(rate * BURST_S - size, other * BURST_S)


def test_a_clock_that_goes_back_gives_nothing():
    bucket = TokenBucket.full(100, 50.0).spend(1000)
    assert bucket.at(10.0) == bucket


def test_a_throttle_is_changed_while_it_is_used():
    now = [0.0]
    throttle = Throttle(lambda: now[0])
    throttle.spend(10**9)
    assert throttle.admits() and throttle.message_bytes(4 << 20) == 4 << 20
    throttle.set_rate(1_000_000)
    assert throttle.admits() and throttle.message_bytes(4 << 20) == 250_000
    throttle.spend(1_250_000)
    assert not throttle.admits()
    now[0] = 0.99
    assert not throttle.admits()
    throttle.set_rate(2_000_000)
    now[0] = 1.0
    assert throttle.admits()
    throttle.spend(10**9)
    throttle.set_rate(0)
    assert throttle.admits()


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
