"""Tables of one identity on two masters, altered on both at once while rows go both paths."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID, uuid4

import pyarrow as pa

from peer.client.cluster import Cluster
from replication.core.definition.schema import TableSpec
from replication.errors import ReplicationError
from tests.e2e.conftest import Site
from tests.waiting import wait_until


def columns(cluster: Cluster, table: str) -> list[tuple[UUID, str, str]]:
    """Uuid, name and type of each."""
    return [(column.uuid, column.name, str(column.type)) for column in cluster.table(table).columns]


def alter_on_both(east: Site, west: Site, table: str) -> None:
    for change in ("--add", "seats int"), ("--add", "x int"):
        east.shell("altertable", table, *change)
    for change in ("--rename", "note", "words"), ("--widen", "v", "bigint"), ("--add", "x string"):
        west.shell("altertable", table, *change)


def assert_no_value_is_lost(cluster: Cluster, table: str) -> None:
    wanted = {
        1: (1, "east", None),
        3: (3, "west", None),
        4: (4, None, 7),
        5: (5_000_000_000, "wide", None),
        6: (6, "all", 9),
    }
    rows = cluster.read(table).read_all().to_pylist()
    assert {row["id"]: (row["v"], row["words"], row["seats"]) for row in rows} == wanted, cluster.name
    assert sorted(row["id"] for row in rows if row["x"] is not None or row["y"] is not None) == [4]


def test_two_masters_alter_one_table_at_once_and_lose_no_value(masters: tuple[Site, Site]) -> None:
    east, west = masters
    table = f"e2e.m{uuid4().hex[:8]}"
    east.shell("createtable", table, "id long, v int, note string", "--key", "id")
    west.shell("createtable", table, "--like", "east")
    east.shell("enablereplication", "-t", table, "west")
    west.shell("enablereplication", "-t", table, "east")
    with east.connect() as here, west.connect() as there:
        assert here.table(table).uuid == there.table(table).uuid
        positions = [
            (here, "west", here.upsert(table, [{"id": 1, "v": 1, "note": "east"}, {"id": 2, "v": 2, "note": "both"}])),
            (there, "east", there.upsert(table, [{"id": 3, "v": 3, "note": "west"}])),
        ]
        for cluster, peer in ((here, "west"), (there, "east")):  # neither hears of the other's changes before its own
            cluster.operations.pause(peer)
        alter_on_both(east, west, table)
        positions += [
            (here, "west", here.upsert(table, [{"id": 4, "v": 4, "seats": 7, "x": 1}])),
            (there, "east", there.upsert(table, [{"id": 5, "v": 5_000_000_000, "words": "wide"}])),
        ]
        for cluster, peer in ((here, "west"), (there, "east")):
            cluster.operations.resume(peer)
        wait_until(
            lambda: len(columns(here, table)) == 6 and columns(here, table) == columns(there, table),
            timeout_s=400,
            what="one definition on both",
        )
        names = [name for _, name, _ in columns(here, table)]
        first, second = (name for name in names if name.startswith("x"))
        assert {first, second} > {"x"} and names[:4] == ["id", "v", "words", "seats"]
        loser = second if first == "x" else first
        assert any(loser in note for row in east.json("status")["tables"] for note in row["clashes"])
        west.shell("altertable", table, "--rename", loser, "y")
        wait_until(lambda: "y" in here.table(table).by_name, timeout_s=400, what="the new name at east")
        positions.append((here, "west", here.upsert(table, [{"id": 6, "v": 6, "words": "all", "seats": 9}])))
        positions.append((there, "east", there.delete(table, [{"id": 2}])))
        for cluster, peer, position in positions:
            cluster.wait(position, until="visible", timeout_s=400)
            cluster.wait(position, cluster=peer, until="visible", timeout_s=400)
        for cluster in (here, there):
            assert_no_value_is_lost(cluster, table)
        east.shell("verify", "west", table)
        for cluster in (here, there):
            status = cluster.status()
            assert not status.quarantined
            assert not [row.replay_held for row in status.tables if row.table == table and row.replay_held]


def test_one_name_made_twice_is_refused_and_the_remedy_works(masters: tuple[Site, Site]) -> None:
    east, west = masters
    table = f"e2e.twice{uuid4().hex[:8]}"
    for site in masters:
        site.shell("createtable", table, "id long, v int", "--key", "id")
    said = east.shell("enablereplication", "-t", table, "west", code=6)
    assert f"droptable {table} there, then enablereplication again" in " ".join(said.split())
    west.shell("droptable", table)
    east.shell("enablereplication", "-t", table, "west", "--without-properties")
    east.shell("settable", table, "history_s=86400", "codec=snappy")
    east.shell("altertable", table, "--add", "late double")
    with east.connect() as here, west.connect() as there:
        wait_until(lambda: "late" in there.table(table).by_name, timeout_s=400, what="the column at west")
        assert here.table(table).history_s == 86_400 == there.table(table).history_s
        assert here.table(table).setting("codec") == "snappy" != there.table(table).setting("codec")
        try:
            here.alter_table(table, drop="id")
        except ReplicationError as error:
            assert "in the key" in str(error)
        else:
            raise AssertionError("a key column was dropped")


def test_a_dropped_column_and_an_added_group_arrive_and_the_rows_there_were_stay(masters: tuple[Site, Site]) -> None:
    east, west = masters
    table = f"e2e.d{uuid4().hex[:8]}"
    east.shell("createtable", table, "id long, v int, note string", "--key", "id")
    east.shell("enablereplication", "-t", table, "--all-loc-groups", "west")
    with east.connect() as here, west.connect() as there:

        def shown(*rows: dict[str, object]) -> bool:
            """Whether both clusters show these rows and columns, and no others."""
            wanted = sorted(map(repr, rows))
            return all(sorted(map(repr, c.read(table).read_all().to_pylist())) == wanted for c in (here, there))

        old = [{"id": 1, "v": 1, "note": "one"}, {"id": 2, "v": 2, "note": "two"}]
        position = here.upsert(table, old)
        for peer in (None, "west"):
            here.wait(position, cluster=peer, until="visible", timeout_s=400)
        assert shown(*old)
        east.shell("altertable", table, "--drop", "note")
        wait_until(lambda: "note" not in there.table(table).by_name, timeout_s=400, what="the drop at west")
        assert shown({"id": 1, "v": 1}, {"id": 2, "v": 2})
        east.shell("altertable", table, "--add", "note bigint")
        east.shell("altertable", table, "--add-group", "seen=by string,seats int")
        position = here.upsert(table, [{"id": 1, "by": "ann", "seats": 4}])
        position = position.join(here.upsert(table, [{"id": 3, "v": 3, "note": 33}]))
        for peer in (None, "west"):
            here.wait(position, cluster=peer, until="visible", timeout_s=400)
        assert shown(
            {"id": 1, "v": 1, "note": None, "by": "ann", "seats": 4},
            {"id": 2, "v": 2, "note": None, "by": None, "seats": None},
            {"id": 3, "v": 3, "note": 33, "by": None, "seats": None},
        )
        assert columns(here, table) == columns(there, table)
        assert {row["group"] for row in east.json("status")["peers"] if row["table"] == table} == {"default", "seen"}
        east.shell("verify", "west", table)


def test_a_change_that_does_not_fit_holds_its_table_only_and_says_what_to_do(masters: tuple[Site, Site]) -> None:
    east, west = masters
    odd, even = (f"e2e.{name}{uuid4().hex[:8]}" for name in ("odd", "even"))

    def as_text(spec: TableSpec) -> TableSpec:
        """What no verb does."""
        return replace(spec, columns=(spec.columns[0], replace(spec.by_name["v"], type=pa.string())))

    with east.connect() as here, west.connect() as there:
        for table in (odd, even):
            east.shell("createtable", table, "id long, v int", "--key", "id")
            east.shell("enablereplication", "-t", table, "west")
        there.ledger.tables.alter(there.table(odd).uuid, as_text)
        here.alter_table(odd, add="seats int")
        here.upsert(odd, [{"id": 1, "v": 1}])

        def held() -> str:
            rows = {row["table"]: row for row in east.json("status", "--peer", "west")["peers"]}
            assert rows[even]["state"] != "held"
            return str(rows[odd]["last_error"]) if rows[odd]["state"] == "held" else ""

        said = wait_until(held, timeout_s=400, what="the table to be held")
        assert f"column v of table {odd} is string here and int32 there" in said
        position = here.upsert(even, [{"id": 2, "v": 2}])
        here.wait(position, cluster="west", until="visible", timeout_s=400)
        assert "with another name" in said and "createtable --like" in said
        east.shell("createtable", f"{odd}_2", "id long, v int, seats int", "--key", "id")
        west.shell("createtable", f"{odd}_2", "--like", "east")
        east.shell("enablereplication", "-t", f"{odd}_2", "west")
        position = here.upsert(f"{odd}_2", here.read(odd).read_all())
        here.wait(position, cluster="west", until="visible", timeout_s=400)
        assert there.read(f"{odd}_2").read_all().to_pylist() == [{"id": 1, "v": 1, "seats": None}]
        east.shell("disablereplication", "-t", odd, "west")  # nothing of it is held at clusters that others test with
        for site in masters:
            site.shell("droptable", odd)
