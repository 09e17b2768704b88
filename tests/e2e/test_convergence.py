"""Two clusters that send to each other: puts and deletes at any timestamps, from both sides, end the same on both.

Scenarios 1, 2, 17 and 18; 22 is in ``tests/property/test_status_algebra.py``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest

from peer.client.cluster import Cluster
from peer.client.comparison import compare_clusters
from replication.core.position import Position
from replication.core.rows.mutation import Mutation
from replication.errors import ReplicationError
from replication.tables.base import open_duckdb
from tests.e2e.conftest import Site, await_fold
from tests.waiting import wait_until

NOW = time.time_ns() // 1000
HOUR = 3_600_000_000
Places = list[tuple[Cluster, Position]]


@pytest.fixture(scope="module")
def both(masters: tuple[Site, Site]) -> Iterator[tuple[Cluster, Cluster]]:
    """East and west, each the other's peer."""
    with masters[0].connect() as here, masters[1].connect() as there:
        yield here, there


def shared(sites: tuple[Site, Site], cluster: Cluster, kind: str) -> str:
    """A table that both clusters send each other."""
    name = f"e2e.{kind}{uuid4().hex[:8]}"
    if kind == "cell":
        cluster.create_table(name, kind="cell", groups={"meta": ["m"]})
    else:
        cluster.create_table(name, "id long, a string, b string", ["id"], groups={"left": ["a"], "right": ["b"]})
    sites[0].shell("enablereplication", "-t", name, "west")
    sites[1].shell("enablereplication", "-t", name, "east")
    return name


def settle(both: tuple[Cluster, Cluster], places: Places) -> None:
    """Wait until everything is visible on both sides."""
    for writer, position in places:
        for cluster in both:
            writer.wait(position, cluster=cluster.name, timeout_s=400)


def cells(cluster: Cluster, table: str) -> dict[tuple[str, str], bytes]:
    rows = cluster.read(table).read_all().to_pylist()
    return {(row["row"].decode(), row["family"]): row["value"] for row in rows}


def test_a_put_appears_and_its_delete_makes_it_disappear_on_both_sides(
    sites: tuple[Site, Site], both: tuple[Cluster, Cluster]
) -> None:
    table = shared(sites, both[0], "typed")
    for step in ("put", "delete", "put"):
        rows = [{"id": at, "a": step, "b": writer.name} for at, writer in enumerate(both)]
        keys = [[{"id": row["id"]}] for row in rows]
        settle(
            both,
            [
                (writer, writer.delete(table, key) if step == "delete" else writer.upsert(table, [row]))
                for writer, row, key in zip(both, rows, keys, strict=True)
            ],
        )
        for cluster in both:
            found = sorted(cluster.read(table).read_all().to_pylist(), key=lambda row: row["id"])
            assert found == ([] if step == "delete" else rows), cluster.name


def assert_identical(here: Cluster, there: Cluster, table: str) -> None:
    verdict = compare_clusters(here, there, [table], 60)[0]
    assert verdict.same and verdict.identical


def test_a_delete_at_a_time_hides_every_version_up_to_then_wherever_and_whenever_it_comes(
    sites: tuple[Site, Site], both: tuple[Cluster, Cluster]
) -> None:
    here, there = both
    table = shared(sites, here, "cell")

    def put(cluster: Cluster, row: str, at: int | None, value: str, family: str = "m") -> None:
        places.append((cluster, cluster.apply(table, Mutation(row).put(family, "q", value, timestamp=at))))

    def delete(cluster: Cluster, row: str, at: int | None, family: str = "m") -> None:
        places.append((cluster, cluster.apply(table, Mutation(row).delete(family, "q", timestamp=at))))

    places: Places = []
    put(here, "before", NOW - 2, "x")
    delete(there, "before", NOW)
    put(here, "at", NOW, "x")
    delete(there, "at", NOW)
    put(here, "after", NOW + 1, "shows")
    delete(there, "after", NOW)
    delete(here, "delete first", NOW)
    delete(here, "then after", NOW)
    delete(here, "ahead", NOW + HOUR)
    put(here, "plain", None, "x")
    put(there, "future", NOW + HOUR, "shows")
    put(here, "family", NOW, "x")
    put(here, "family", NOW, "shows", "other")
    settle(both, places)
    put(there, "delete first", NOW, "x")
    put(there, "then after", NOW + 1, "shows")
    put(there, "ahead", None, "x")
    put(there, "ahead", NOW + HOUR - 1, "x")
    delete(there, "plain", None)
    delete(here, "future", None)
    delete(there, "family", NOW)
    settle(both, places)
    wanted = {("after", "m"), ("then after", "m"), ("future", "m"), ("family", "other")}
    for folded in (False, True):
        for cluster in both:
            if folded:
                await_fold(cluster, table)
            assert cells(cluster, table) == dict.fromkeys(wanted, b"shows"), cluster.name
    assert_identical(here, there, table)
    put(here, "at", None, "again")
    put(there, "ahead", NOW + HOUR + 1, "again")
    settle(both, places)
    for cluster in both:
        assert cells(cluster, table) == dict.fromkeys(wanted, b"shows") | {
            ("at", "m"): b"again",
            ("ahead", "m"): b"again",
        }


def test_both_sides_write_and_delete_the_same_keys_at_once_and_end_equal(
    sites: tuple[Site, Site], both: tuple[Cluster, Cluster]
) -> None:  # 004-34
    typed, cell = shared(sites, both[0], "typed"), shared(sites, both[0], "cell")
    places: Places = []

    def write(cluster: Cluster, seed: int) -> None:
        last: dict[str, Position] = {}
        for n in range(60):
            key = (n * 7 + seed) % 5
            if n % 4 == 3:
                last[typed] = cluster.delete(typed, [{"id": key}])
                last[cell] = cluster.apply(cell, Mutation(str(key)).delete("m", "q", timestamp=NOW + n % 9))
            else:
                column = "a" if n % 2 else "b"
                last[typed] = cluster.upsert(typed, [{"id": key, column: f"{cluster.name}{n}"}])
                put = Mutation(str(key)).put("m", "q", f"{cluster.name}{n}", timestamp=NOW + n % 9 if n % 3 else None)
                last[cell] = cluster.apply(cell, put)
        places.extend((cluster, position) for position in last.values())

    writers = [threading.Thread(target=write, args=(cluster, seed)) for seed, cluster in enumerate(both)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    settle(both, places)
    for table in (typed, cell):
        verdict = compare_clusters(*both, [table], 60)[0]
        assert verdict.same and verdict.identical and verdict.left.rows, verdict


def test_a_keys_versions_come_in_order_whoever_is_killed_on_the_way(
    sites: tuple[Site, Site], both: tuple[Cluster, Cluster]
) -> None:
    (east, west), (here, there) = sites, both
    table = shared(sites, here, "typed")
    stop, count = threading.Event(), 0
    places: Places = []

    def write() -> None:
        nonlocal count
        while not stop.wait(0.01):
            count += 1
            places[:] = [(here, here.upsert(table, [{"id": 1, "a": str(count)}]))]

    writer = threading.Thread(target=write)
    writer.start()
    for site, role in ((east, "worker"), (west, "receiver"), (east, "master"), (east, "worker")):
        old = site.kill(role)
        wait_until(
            lambda s=site, r=role, o=old: s.ready(r, other_than=o), timeout_s=400, what=f"{site.name}'s {role} again"
        )
    stop.set()
    writer.join()
    settle(both, places)
    with open_duckdb() as connection:
        there.reader.catalog.attach(connection, "log", f"{table}__changes")
        query = "select a::int from log where _op = 0 order by _replay, _wal, _seq, _row"
        found = [number for (number,) in connection.execute(query).fetchall()]
    assert found == list(range(1, count + 1)), "each once, and none before an older one"


def test_a_standby_refuses_writers_answers_reads_and_takes_what_is_replicated(
    sites: tuple[Site, Site], both: tuple[Cluster, Cluster]
) -> None:  # 004-31
    here, there = both
    table = shared(sites, here, "typed")
    settle(both, [(there, there.upsert(table, [{"id": 1, "a": "mine"}]))])
    sites[1].shell("readonly", "on")
    try:
        for refused in (
            lambda: there.upsert(table, [{"id": 2, "a": "x"}]),
            lambda: there.delete(table, [{"id": 1}]),
        ):
            with pytest.raises(ReplicationError, match="STANDBY"):
                refused()
        line = '{"id": 2, "a": "x"}\n'
        assert "STANDBY" in sites[1].shell("write", table, "-", "--format", "json", stdin=line, code=5)
        settle((there,), [(here, here.upsert(table, [{"id": 3, "a": "through"}]))])
        assert {row["id"] for row in there.read(table).read_all().to_pylist()} == {1, 3}
        assert len(sites[1].shell("read", table, "--json").splitlines()) == 2
    finally:
        sites[1].shell("readonly", "off")

    def taken() -> bool:
        try:
            settle(both, [(there, there.upsert(table, [{"id": 4, "a": "again"}]))])
            return True
        except ReplicationError:
            return False

    wait_until(taken, timeout_s=400)
    assert compare_clusters(*both, [table], 60)[0].identical
