"""The main job under fire: every process killed in turn during a load; tables equal, nothing lost, nothing twice."""

from __future__ import annotations

import contextlib
import threading
from itertools import count
from random import Random
from uuid import uuid4

import pyarrow as pa
import pytest

from peer.client.comparison import compare_clusters
from replication.core.position import Position
from replication.errors import CoordinationError, ReplicationError
from tests.e2e.conftest import ROLES
from tests.waiting import wait_until

SCHEMA = pa.schema([("id", pa.int64()), ("version", pa.int64()), ("text", pa.string())])
KEYS, BATCH = 20_000, 500


class Load:
    """Writes batches until told to stop: new keys, then the same keys again with the next version, some deleted."""

    def __init__(self, cluster, table, log):
        self.cluster, self.table, self.log = cluster, table, log
        self.stop = threading.Event()
        self.rows = {}
        self.appended = 0
        self.position = None
        self.error = None
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        try:
            number = 0
            while not self.stop.wait(0.1):
                with contextlib.suppress(CoordinationError):  # ZooKeeper was away for long; the same again
                    self.step(number)
                    number += 1
        except ReplicationError as error:
            self.error = error

    def step(self, number):
        ids = [(number * BATCH + i) % KEYS for i in range(BATCH)]
        rows = [{"id": i, "version": number, "text": f"{i}-{number}"} for i in ids]
        changed = pa.Table.from_pylist(rows, schema=SCHEMA)
        self.reach(self.cluster.upsert(self.table, changed, batch_id=f"{number}"))
        self.rows.update((row["id"], row) for row in rows)
        self.reach(self.cluster.upsert(self.log, rows, batch_id=f"{number}"))
        if number % 7 == 3:
            gone = ids[:50]
            self.reach(self.cluster.delete(self.table, [{"id": i} for i in gone]))
            for i in gone:
                self.rows.pop(i)
        self.appended += len(rows)

    def reach(self, position: Position):
        self.position = position if self.position is None else self.position.join(position)

    def finish(self):
        self.stop.set()
        self.thread.join()
        assert self.error is None, self.error
        return self.position


@pytest.fixture(scope="module")
def tables(sites):
    east, _ = sites
    name, log = f"e2e.t{uuid4().hex[:8]}", f"e2e.log{uuid4().hex[:8]}"
    with east.connect() as cluster:
        cluster.create_table(name, SCHEMA, ["id"])
        cluster.create_table(log, SCHEMA)
    for table in (name, log):
        east.shell("enablereplication", "-t", table, "west")
    return name, log


def test_every_process_is_killed_in_turn_during_a_load_and_the_tables_are_equal(sites, tables):
    east, west = sites
    table, log = tables
    with east.connect() as here, west.connect() as there:
        load = Load(here, table, log)
        for role in ("worker", "receiver", "master", "replay", "zookeeper"):
            killed = {site.name: site.kill(role) for site in (west, east)}
            for site in (west, east):
                old = killed[site.name]
                wait_until(
                    lambda s=site, r=role, o=old: s.ready(r, other_than=o),
                    timeout_s=400,
                    what=f"{site.name}'s {role} again",
                )
        position = load.finish()
        here.wait(position, until="visible", timeout_s=400)
        here.wait(position, cluster="west", until="visible", timeout_s=400)
        wanted = sorted(load.rows.values(), key=lambda row: row["id"])
        for cluster in (here, there):
            found = sorted(cluster.read(table).read_all().to_pylist(), key=lambda row: row["id"])
            assert found == wanted, cluster.name
            assert cluster.read(log, columns=["id"]).read_all().num_rows == load.appended, cluster.name
        for name in tables:
            verdict = compare_clusters(here, there, [name], 60)[0]
            assert verdict.same and verdict.identical, verdict
    assert not east.json("status")["quarantined"] and not west.json("status")["quarantined"]


def test_a_jvm_and_executors_that_are_killed_lose_and_double_nothing(sites, tables):
    east, west = sites
    name = f"e2e.t{uuid4().hex[:8]}"
    with east.connect() as here, west.connect() as there:
        here.create_table(name, SCHEMA)
        east.shell("enablereplication", "-t", name, "west")

        def write(part, rows=50_000):  # so much that executors decode it
            noise = Random(part).randbytes(rows * 90).hex()
            texts = [noise[at : at + 180] for at in range(0, len(noise), 180)]
            made = {"id": list(range(part * rows, (part + 1) * rows)), "version": [part] * rows, "text": texts}
            return here.upsert(name, pa.table(made, SCHEMA))

        parts = count()

        def written_until(found, what):
            def again():
                if not (done := found()):
                    here.wait(write(next(parts)), cluster="west", until="visible", timeout_s=400)
                    done = found()
                return done

            wait_until(again, timeout_s=400, what=what)

        written_until(lambda: west.json("status")["replay"]["work"]["jobs"], "a job")
        before = west.state("replay").pid
        assert west.kill_below("replay", "org.apache.spark")
        written_until(lambda: west.ready("replay", other_than=before), "west's replay again")
        written_until(lambda: west.kill_below("replay", "pyspark.worker"), "an executor to be there")
        position = write(next(parts))
        west.kill_below("replay", "pyspark.worker")
        here.wait(position, cluster="west", until="visible", timeout_s=400)
        ids = there.read(name, columns=["id"]).read_all().column(0).to_pylist()
        assert sorted(ids) == list(range(next(parts) * 50_000))
    assert not west.json("status")["quarantined"]


def test_a_batch_repeated_by_another_writer_is_there_once(sites, tables):
    east, west = sites
    _, log = tables
    rows = [{"id": 900_000 + i, "version": 0, "text": "batch"} for i in range(1000)]
    with east.connect() as here:
        here.upsert(log, rows, batch_id="once")
    with east.connect() as here, west.connect() as there:
        position = here.upsert(log, rows, batch_id="once")
        here.wait(position, cluster="west", until="visible", timeout_s=400)
        here.wait(position, until="visible", timeout_s=400)
        for cluster in (here, there):
            assert cluster.read(log, where="id >= 900000").read_all().num_rows == 1000


def test_a_standby_refuses_writers_and_goes_on_receiving(sites, tables):
    east, west = sites
    table, _ = tables
    west.shell("readonly", "on")
    try:
        with west.connect() as there, pytest.raises(ReplicationError, match="STANDBY"):
            there.upsert(table, [{"id": 1, "version": 0, "text": "x"}])
        with east.connect() as here:
            position = here.upsert(table, [{"id": 1, "version": 10**6, "text": "through"}])
            here.wait(position, cluster="west", until="visible", timeout_s=400)
        with west.connect() as there:
            assert there.read(table, where="id = 1").read_all().to_pylist()[0]["text"] == "through"
    finally:
        west.shell("readonly", "off")


def test_all_roles_are_up_at_the_end(sites):
    for site in sites:
        assert all(site.ready(role) for role in ROLES)
