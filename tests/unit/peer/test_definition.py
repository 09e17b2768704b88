"""Groups and ages as users give them to a cluster's handle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from peer.cluster import Cluster
from replication.errors import RequestError, SchemaError
from tests.sites import Site, table


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    site = Site(tmp_path, "east")
    site.ledger.tables.create(table())
    yield Cluster(site.config, site.ledger)
    site.close()


def test_a_group_is_added_by_text_or_schema(cluster: Cluster) -> None:
    cluster.alter_table("ops.flights", add_group=("seating", "seats int, rows int"))
    spec = cluster.alter_table("ops.flights", add_group=("fuel", pa.schema([("litres", pa.float64())])))
    assert [(group.name, group.members) for group in spec.groups] == [
        ("default", ("text",)),
        ("seating", ("seats", "rows")),
        ("fuel", ("litres",)),
    ]
    more = cluster.alter_table("ops.flights", add="exits int", group="seating")
    assert more.group("seating").members == ("seats", "rows", "exits")


def test_one_thing_is_altered_at_a_time(cluster: Cluster) -> None:
    with pytest.raises(RequestError, match="altered by one of"):
        cluster.alter_table("ops.flights", add="x int", add_group=("g", "y int"))
    with pytest.raises(SchemaError):
        cluster.alter_table("ops.flights", add_group=("g", ""))


def test_an_age_is_a_number_of_seconds(cluster: Cluster) -> None:
    assert cluster.set_table("ops.flights", {"max_age_s": 60}).setting("max_age_s") == "60"
    with pytest.raises(SchemaError, match="max_age_s is a number of seconds"):
        cluster.set_table("ops.flights", {"max_age_s": "a day"})
    assert cluster.set_table("ops.flights", {"max_age_s": ""}).setting("max_age_s") == ""
