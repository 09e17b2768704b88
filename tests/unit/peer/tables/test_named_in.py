"""Which tables a query is given: to attach a thousand for a query of one would take a thousand times as long."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from peer.tables.read import Reader, named_in
from replication.core.definition.alter import add_column, drop_column
from replication.core.definition.define import typed_table
from replication.core.definition.evolution import join
from replication.errors import RequestError
from tests.sites import Site
from tests.tables_made import keyed, uuids

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


def test_a_table_without_a_column_is_refused_with_the_remedy_and_keeps_no_other_from_queries(tmp_path: Path) -> None:
    """Of two columns each of two masters may drop the other one's."""
    site = Site(tmp_path, "east")
    reader = Reader(site.config, site.ledger)
    both = typed_table("ops.log", pa.schema([("a", pa.int64()), ("b", pa.int64())]), (), uuids=uuids())
    none, other = join(drop_column(both, "a"), drop_column(both, "b")), keyed("ops.t")
    reader.catalog.create(both)
    for read in (lambda: reader.read(none), lambda: reader.sql("from ops.log", [none, other])):
        with pytest.raises(RequestError, match=r"ops\.log has no columns.*altertable ops\.log --add"):
            read()
    assert reader.sql("select 1 as n", [none, other]).read_all().to_pylist() == [{"n": 1}]
    assert reader.read(add_column(none, "c", pa.int64(), "", uuid4(), 1)).schema.names == ["c"]
    reader.close()
    site.close()
