"""Comparing a table takes time by its columns, not by their square."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from peer.verify.digest import Reading
from replication.tables.base import open_duckdb

pytestmark = pytest.mark.heavy


def _cpu_s(columns: int, *, keys: bool) -> float:
    """What a reading of three rows costs, the cheaper of two."""
    costs = []
    for _ in range(2):
        connection = open_duckdb()
        connection.register("rows", pa.table({f"c{number}": [1, 2, 3] for number in range(columns)}))
        reading = Reading(connection, "rows", [f"c{number}" for number in range(columns)], ["c0"])
        began = time.process_time()
        assert (reading.keys(range(4096)).read_all().num_rows if keys else reading.digest().rows) == 3
        costs.append(time.process_time() - began)
        reading.close()
    return min(costs)


@pytest.mark.parametrize(("few", "keys"), [(300, False), (200, True)])
def test_four_times_the_columns_take_about_four_times_as_long(few: int, keys: bool) -> None:
    assert _cpu_s(4 * few, keys=keys) < 9 * _cpu_s(few, keys=keys)
