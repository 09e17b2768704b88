"""Which tables a query is given: to attach a thousand for a query of one would take a thousand times as long."""

from __future__ import annotations

import pytest

from peer.read import named_in
from tests.tables_made import keyed

SPECS = [keyed(name) for name in ("ops.flights", "ops.Weather", "else.weather", "ops.planes")]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("select * from ops.flights", ["ops.flights"]),
        ('SELECT * FROM "OPS" . "FLIGHTS"', ["ops.flights"]),
        ("select 1 from ops.weather join `ops`.`planes`", ["ops.Weather", "else.weather", "ops.planes"]),
        ("select * from ops.flights__latest", ["ops.flights"]),
        ("select planes_of, 'air planes' from ops.flights", ["ops.flights", "ops.planes"]),
        ("select * from information_schema.tables", [spec.name for spec in SPECS]),
        ("select * from ops.fligths", [spec.name for spec in SPECS]),  # the engine then says which it may have meant
    ],
)
def test_a_query_is_given_the_tables_that_it_names_or_all(query: str, names: list[str]) -> None:
    assert [spec.name for spec in named_in(query, SPECS)] == names
