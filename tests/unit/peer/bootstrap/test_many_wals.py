"""Decoding a bootstrap's rows takes time by their number, not by that times the number of WALs that they came from."""

from __future__ import annotations

import time

import numpy as np
import pytest

from peer.bootstrap.decode import _among
from replication.core.coverage import Ranges

pytestmark = pytest.mark.heavy


def _cpu_s(rows: int) -> float:
    """What it costs to choose among rows of as many WALs, the cheaper of two."""
    costs = []
    for _ in range(2):
        began = time.process_time()
        chosen = _among(np.arange(rows)[::-1], np.arange(rows) % 2, [Ranges.of((0, 1))] * rows)
        costs.append(time.process_time() - began)
        assert chosen.sum() == rows // 2
    return min(costs)


def test_four_times_the_rows_of_four_times_the_wals_take_about_four_times_as_long() -> None:
    assert _cpu_s(160_000) < 9 * _cpu_s(40_000)


def test_no_rows_are_chosen_of_a_frame_without_rows() -> None:
    assert not len(_among(np.arange(0), np.arange(0), []))
