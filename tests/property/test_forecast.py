"""Forecasts: what grows steadily is told exactly, what shrinks never runs out, and noise changes little."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.core.forecast import WINDOW_US, forecast

NOW = 10**15


def line(rate: float, start: int, seconds: int) -> list[tuple[int, int]]:
    return [(NOW - (seconds - s) * 10**6, int(start + rate * s)) for s in range(0, seconds + 1, 5)]


@given(st.integers(1, 10**8), st.integers(0, 10**10), st.integers(10, 590), st.integers(1, 10**12))
def test_what_grows_steadily_runs_out_when_it_says(rate, start, seconds, left):
    samples = line(rate, start, seconds)
    found = forecast(samples, samples[-1][1] + left, NOW)
    late = (NOW - samples[-1][0]) / 1e6
    assert found is not None and found.growth == pytest.approx(rate, rel=1e-6)
    assert found.in_s == pytest.approx(max(0.0, left / rate - late), rel=1e-6, abs=1e-3)


@given(st.lists(st.integers(0, 10**9), min_size=3, max_size=100), st.integers(0, 10**9))
def test_what_is_past_its_limit_is_over_now_and_what_does_not_grow_never_is(values, limit):
    samples = [(NOW - 5_000_000 * (len(values) - n), value) for n, value in enumerate(values)]
    found = forecast(samples, limit, NOW)
    assert found is not None
    if values[-1] >= limit:
        assert found.in_s == 0.0
    elif found.growth <= 0:
        assert found.in_s is None
    else:
        assert found.in_s is not None and found.in_s >= 0


def test_only_the_last_ten_minutes_count():
    before = [(NOW - WINDOW_US - 10**6 * n, 10**9) for n in range(100, 0, -1)]
    found = forecast([*before, *line(100, 0, 60)], 12_000, NOW)
    assert found is not None and found.growth == pytest.approx(100) and found.in_s == pytest.approx(60)


@pytest.mark.parametrize("samples", [[], [(NOW, 5)], [(NOW - 1_000_000, 1), (NOW, 2)], [(1, 1), (2, 2)]])
def test_too_little_tells_nothing(samples):
    assert forecast(samples, 100, NOW) is None


def test_a_limit_that_is_too_far_away_is_not_told():
    samples = line(100, 0, 60)
    near, far = (forecast(samples, 6000 + 100 * seconds, NOW, reach=20) for seconds in (1199, 1201))
    assert near is not None and near.in_s == pytest.approx(1199)
    assert far is not None and far.in_s is None and far.growth == pytest.approx(100)
