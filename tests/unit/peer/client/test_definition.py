"""Tables, groups, ages and positions as users give them to a cluster's handle."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn
from uuid import UUID

import pyarrow as pa
import pytest

from peer.client.cluster import Cluster
from peer.client.definition import definition, refuse_taken_name
from peer.client.opened import OpenedParts
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId
from replication.core.position import Position
from replication.core.rows.mutation import Mutation, cells_of
from replication.errors import CoordinationError, FormatError, RequestError, SchemaError, TableExistsError
from replication.ledger.base import Peer
from tests.sites import Site, table
from tests.tables_made import keyed


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    site = Site(tmp_path, "east")
    site.ledger.tables.create(table())
    yield Cluster(site.config, site.ledger)
    site.close()


def test_a_fork_must_connect_itself_and_closes_nothing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.getpid()
    with monkeypatch.context() as fork:
        fork.setattr("os.getpid", lambda: opened + 1)
        for call in (cluster.tables, cluster.status, lambda: cluster.upsert("ops.flights", []), lambda: cluster.reader):
            with pytest.raises(RequestError, match=f"opened in process {opened}"):
                call()
        cluster.close()
    assert [spec.name for spec in cluster.tables()] == ["ops.flights"]


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


def test_of_two_that_make_a_table_at_once_the_later_is_told_that_there_is_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []

    def check(name: str, specs: Iterable[TableSpec]) -> None:
        refuse_taken_name(name, () if not checked else specs)  # the other made it after the first check
        checked.append(name)

    monkeypatch.setattr("peer.client.cluster.refuse_taken_name", check)
    with pytest.raises(TableExistsError, match=r"there is a table ops\.flights already"):
        cluster.create_table("ops.flights", "id long", key="id")


def test_one_change_is_made_at_a_time(cluster: Cluster) -> None:
    for asked in ({}, {"group": "g"}, {"add": "x int", "add_group": ("g", "y int")}):
        with pytest.raises(RequestError, match="altered by one of") as refused:
            cluster.alter_table("ops.flights", **asked)  # type: ignore[arg-type]
        assert "add_group" not in refused.value.what, "a name of the library is none of the command line"
    with pytest.raises(SchemaError):
        cluster.alter_table("ops.flights", add_group=("g", ""))


def test_an_age_is_a_number_of_seconds(cluster: Cluster) -> None:
    assert cluster.set_table("ops.flights", {"max_age_s": 60}).setting("max_age_s") == "60"
    with pytest.raises(SchemaError, match="max_age_s is a number of seconds"):
        cluster.set_table("ops.flights", {"max_age_s": "a day"})
    assert cluster.set_table("ops.flights", {"max_age_s": ""}).setting("max_age_s") == ""


@pytest.mark.parametrize("partition", ["day(at)", "bucket(16, id)", "years(at)", "truncate(4, name)", "name"])
def test_partitions_are_iceberg_transforms(cluster: Cluster, partition: str) -> None:
    spec = cluster.create_table("ops.log", "id long, at timestamp, name string", partition=[partition])
    assert spec.partition == (partition,)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"partition": ["foo(at)"]}, "not an Iceberg partition transform"),
        ({"partition": ["day(id)"]}, "id is int64"),
        ({"partition": ["day(gone)"]}, "'gone' is not in the schema"),
        ({"sort": [""]}, "sort column"),
        ({"history_s": -5}, "at least one second"),
        ({"name": "ops." + "x" * 201}, "longer than 200"),
        ({"name": "o" * 300 + ".t"}, "longer than 200"),
    ],
)
def test_a_table_that_replay_could_not_write_is_refused(cluster: Cluster, given: dict[str, Any], why: str) -> None:
    with pytest.raises(SchemaError, match=why):
        cluster.create_table(given.pop("name", "ops.log"), "id long, at timestamp", **given)
    with pytest.raises(SchemaError, match="at least|longer"):
        cluster.create_table("ops." + "x" * 201, kind="cell", history_s=0)


def test_letter_case_does_not_make_another_name(cluster: Cluster) -> None:
    for name, aside in (("ops.flights", ""), ("OPS.Flights", " .letter case does not count.")):
        with pytest.raises(TableExistsError, match=f"table ops.flights already{aside}"):
            cluster.create_table(name, "id long")
        with pytest.raises(TableExistsError, match="another uuid"):
            cluster.ledger.tables.create(keyed(name))
    cluster.drop_table("ops.flights")
    assert cluster.create_table("OPS.Flights", "id long", key="id").key == ("id",)


def test_values_that_are_no_position_mutation_or_time_are_refused(cluster: Cluster) -> None:
    position = Position(cluster.id)
    for given in (None, "abc", position.to_json()):
        with pytest.raises(FormatError, match="not a position"):
            cluster.wait(given)
    for seconds in (None, "x", float("nan"), -1):
        with pytest.raises(FormatError, match="not a time to wait"):
            cluster.wait(position, timeout_s=seconds)
    endless = position.to_json().replace('"commit":0', '"commit":Infinity')
    for text in ("{}", "[]", "", '{"cluster": 1}', endless, "[" * 100_000):
        with pytest.raises(FormatError, match="not a position"):
            Position.from_json(text)
    for row in (None, 5):
        with pytest.raises(SchemaError, match="neither bytes nor text"):
            Mutation(row)
    with pytest.raises(SchemaError, match="half a surrogate pair"):
        Mutation("r").put("f", "q", "\ud800")
    with pytest.raises(SchemaError, match="not a Mutation"):
        cells_of("x", "ops.cells")


def test_one_name_in_place_of_a_list_is_a_list_of_one() -> None:
    cells = definition("t.c", None, (), {"fast": "meta"}, (), (), "cell", 100)
    assert cells.group("fast").members == ("meta",)
    made = definition("t.t", "id long, at timestamp", "id", {"when": "at"}, "day(at)", "id desc", "typed", 100)
    assert (made.key, made.group("when").members) == (("id",), ("at",))
    assert (made.partition, made.sort) == (("day(at)",), ("id desc",))


def test_a_drop_that_fails_since_zookeeper_does_not_answer_drops_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(_: OpenedParts) -> NoReturn:
        raise CoordinationError("ZooKeeper does not answer")

    cluster.ledger.rules.define(
        Peer("west", "zk:1/west", ClusterId("west", UUID(int=2))), cluster.ledger.terms.current()
    )
    monkeypatch.setattr(OpenedParts, "coordination", property(silent))
    with pytest.raises(CoordinationError):
        cluster.drop_table("ops.flights")
    assert cluster.table("ops.flights").name == "ops.flights"


def test_no_value_restores_the_default_of_a_property(cluster: Cluster) -> None:
    for name in ("write.data.path", "codec"):
        cluster.set_table("ops.flights", {name: "zstd"})
        assert cluster.set_table("ops.flights", {name: None}).setting(name) == ""
