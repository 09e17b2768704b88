"""Which tables a query is given: to attach a thousand for a query of one would take a thousand times as long."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.tables.read import Reader, named_in
from tests.sites import Site
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


@pytest.mark.parametrize(
    "namespace", ["information_schema", "pg_catalog", "system", "temp", "memory", "main", "select"]
)
def test_a_namespace_that_the_engine_has_too_keeps_no_other_table_from_queries(tmp_path: Path, namespace: str) -> None:
    site = Site(tmp_path, "east")
    reader = Reader(site.config, site.ledger)
    specs = [keyed(f"{namespace}.planes"), keyed("ops.planes")]
    assert reader.sql("select count(*) as n from ops.planes", specs).read_all().to_pylist() == [{"n": 0}]
    if namespace not in ("information_schema", "pg_catalog"):
        query = f'select count(*) as n from walship."{namespace}".planes'
        assert reader.sql(query, specs).read_all().to_pylist() == [{"n": 0}]
    reader.close()
    site.close()
