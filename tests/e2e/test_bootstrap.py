"""A table with rows gets a peer while it is written to, loses it, and gets it again, with and without a bootstrap."""

from __future__ import annotations

from uuid import uuid4

import pyarrow as pa
import pytest

from peer.client.comparison import compare_clusters
from tests.e2e.test_two_clusters import Load
from tests.waiting import wait_until

SCHEMA = pa.schema([("id", pa.int64()), ("version", pa.int64()), ("text", pa.string())])


def states(site, table):
    return {row["table"]: row["state"] for row in site.json("status")["peers"]}[table]


@pytest.fixture(scope="module")
def tables(sites):
    east, _ = sites
    name, log = f"e2e.b{uuid4().hex[:8]}", f"e2e.blog{uuid4().hex[:8]}"
    with east.connect() as cluster:
        cluster.create_table(name, SCHEMA, ["id"])
        cluster.create_table(log, SCHEMA)
    return name, log


def test_rows_from_before_come_while_writes_go_on_and_processes_die(sites, tables):  # 004-32
    east, west = sites
    table, log = tables
    with east.connect() as here, west.connect() as there:
        old = [{"id": i, "version": -1, "text": f"old {i}"} for i in range(100_000)]
        here.upsert(table, pa.Table.from_pylist(old, schema=SCHEMA))
        position = here.delete(table, [{"id": i} for i in range(90_000, 90_100)])
        here.wait(position.join(here.upsert(log, old[:1000])), until="visible", timeout_s=400)
        refused = east.shell("enablereplication", "-t", table, "west", code=4)
        assert "99,900 rows" in refused and "--bootstrap" in refused
        load = Load(here, table, log)
        east.shell("pause", "west")  # so that the bootstraps are still under way when processes die
        for name in tables:
            east.shell("enablereplication", "-t", name, "--bootstrap", "west")
        assert states(east, table) == "bootstrapping"
        east.shell("resume", "west")
        killed = (east.kill("replay"), west.kill("replay"), west.kill("receiver"))
        assert all(killed)
        for name in tables:
            (told,) = east.json("bootstrap", "west", "-t", name, "--wait", "400")
            assert (told["table"], told["phase"]) == (name, "live")
        position = load.finish()
        for cluster in ("east", "west"):  # both are compared
            here.wait(position, cluster=cluster, timeout_s=400)
        wanted = {row["id"]: row for row in old if not 90_000 <= row["id"] < 90_100} | load.rows
        gone = {
            i for number in range(3, load.appended // 500, 7) for i in [(number * 500 + j) % 20_000 for j in range(50)]
        }
        wanted = {i: row for i, row in wanted.items() if i in load.rows or i not in gone}
        found = {row["id"]: row for row in there.read(table).read_all().to_pylist()}
        assert found == wanted
        assert there.read(log, columns=["id"]).read_all().num_rows == 1000 + load.appended
        verdict = compare_clusters(here, there, [table], 60)[0]
        assert verdict.same and verdict.identical, verdict
    wait_until(lambda: states(east, table) in ("caught_up", "behind"))


def test_rows_of_a_gap_are_absent_and_said_to_be_until_they_are_bootstrapped(sites, tables):  # scenario 5
    east, west = sites
    table, _ = tables
    with east.connect() as here, west.connect() as there:
        east.shell("disablereplication", "-t", table, "west")
        wait_until(lambda: not any(row["table"] == table for row in east.json("status")["peers"]))
        here.upsert(table, [{"id": 500_000 + i, "version": 0, "text": "gap"} for i in range(10)])
        here.wait(here.upsert(table, [{"id": 500_010, "version": 0, "text": "gap"}]), until="visible", timeout_s=400)
        east.shell("enablereplication", "-t", table, "--from-now", "west")
        later = here.upsert(table, [{"id": 600_000, "version": 0, "text": "later"}])
        here.wait(later, cluster="west", until="visible", timeout_s=400)
        assert [row["id"] for row in there.read(table, where="id >= 500000").read_all().to_pylist()] == [600_000]
        assert [row["gaps"] for row in east.json("status")["peers"] if row["table"] == table] != [[]]
        east.shell("bootstrap", "west", "-t", table, "--wait", "400")
        found = sorted(row["id"] for row in there.read(table, where="id >= 500000").read_all().to_pylist())
        assert found == [*range(500_000, 500_011), 600_000]
        verdict = compare_clusters(here, there, [table], 60)[0]
        assert verdict.same and verdict.identical, verdict
