"""What is done to a peer of a whole cluster (scenarios 4, 5, 15, 21), dead writers (16), a target that is down (20)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from tests.e2e.commands import ROOT
from tests.e2e.conftest import ROLES, plugged_in
from tests.waiting import wait_until

SCHEMA = "id long, text string"
WRITER = """
import sys, walship
with walship.connect(sys.argv[1]) as east:
    number = 0
    while True:
        east.upsert(sys.argv[2], [{"id": number * 100 + n, "text": "x" * 50} for n in range(100)])
        number += 1
        print(number * 100, flush=True)
"""


def rows(first, count):
    return [{"id": n, "text": f"row {n}"} for n in range(first, first + count)]


def ids(cluster, table):
    return sorted(row["id"] for row in cluster.read(table, columns=["id"]).read_all().to_pylist())


def at_west(east, table):
    """The row of ``status`` for a table at west; None when there is none."""
    found = [row for row in east.json("status")["peers"] if row["table"] == table and row["peer"] == "west"]
    return found[0] if found else None


@pytest.fixture(scope="module")
def tables(sites):
    east, _ = sites
    space = f"op{uuid4().hex[:8]}"
    names = [f"{space}.{name}" for name in ("a", "b", "gone", "tmp")]
    with east.connect() as cluster:
        for name in names:
            cluster.create_table(name, SCHEMA, ["id"])
    made = east.json("enablereplication", "-t", f"{space}.*", "--exclude", "*.tmp", "west")
    assert len(made) == 3 and all(rule["gaps"] == [] for rule in made)
    assert east.json("status") and at_west(east, names[3]) is None
    return names


def test_a_paused_peer_gets_nothing_and_nothing_is_deleted_until_it_is_resumed(sites, tables):  # scenarios 4 and 21
    east, west = sites
    a = tables[0]
    with east.connect() as here, west.connect() as there:
        here.wait(here.upsert(a, rows(0, 10)), cluster="west", timeout_s=400)
        assert east.json("pause", "west") == {"peer": "west", "paused": True, "workers": ["h0"]}
        position = here.upsert(a, rows(10, 10))
        files = {file.local for file in position.ends}
        here.wait(position, timeout_s=400)
        listed = {file["file"]: file for file in east.json("wal", "list")}
        assert all(listed[file]["state"] == "OPEN" and listed[file]["on_disk"] for file in files)
        here.close()
    wait_until(
        lambda: all(f["state"] == "CLOSED" for f in east.json("wal", "list") if f["file"] in files), timeout_s=400
    )
    assert "west is paused, with" in east.shell("drain", "west", code=4)
    with west.connect() as there:
        assert ids(there, a) == list(range(10)), "nothing arrived"
    listed = {file["file"]: file for file in east.json("wal", "list")}
    assert all(listed[file]["on_disk"] for file in files), "nothing was deleted"
    assert at_west(east, a)["state"] == "paused"
    east.shell("throttle", "west", "50MB")
    east.shell("resume", "west")
    drained = east.json("drain", "west", "--table", a, "--timeout", "120")
    assert drained["peer"] == "west" and drained["table"] == a
    with west.connect() as there:
        wait_until(lambda: ids(there, a) == list(range(20)), timeout_s=400)
    (sending,) = east.json("status")["sending"]
    assert sending["state"] == "sending" and sending["rate"] == 50_000_000
    east.shell("throttle", "west", "off")


def test_a_peer_that_was_removed_and_is_added_again_lacks_the_gap_and_that_is_said(sites, tables):  # scenario 5
    east, west = sites
    b = tables[1]
    with east.connect() as here, west.connect() as there:
        here.wait(here.upsert(b, rows(0, 10)), cluster="west", timeout_s=400)
        east.shell("deletecluster", "west")
        here.wait(here.upsert(b, rows(10, 10)), timeout_s=400)
        east.shell("definecluster", "west", f"{west.config.zookeeper_servers}{west.config.zookeeper_root}")
        made = east.json("enablereplication", "-t", b, "-t", tables[0], "-t", tables[2], "west", "--from-now")
        gaps = {rule["remote_table"]: rule["gaps"] for rule in made}
        assert len(gaps[b]) == 1 and gaps[b][0]["frames"] >= 1 and 0 < gaps[b][0]["begin"] < gaps[b][0]["end"]
        assert gaps[tables[0]] == []
        position = here.upsert(b, rows(20, 10))
        for cluster in (None, "west"):
            here.wait(position, cluster=cluster, timeout_s=400)
        assert ids(there, b) == [*range(10), *range(20, 30)]
        assert ids(here, b) == list(range(30))
    assert [gap["frames"] for gap in at_west(east, b)["gaps"]] == [gap["frames"] for gap in gaps[b]]


def test_a_table_dropped_on_both_sides_is_held_and_with_skip_let_go_and_stops_no_other(sites, tables):  # scenario 15
    east, west = sites
    a, gone = tables[0], tables[2]
    with east.connect() as here, west.connect() as there:
        here.wait(here.upsert(gone, rows(0, 1)), cluster="west", timeout_s=400)
        east.shell("pause", "west")
        here.upsert(gone, rows(1, 10))
        position = here.upsert(a, rows(100, 10))
        here.wait(position, timeout_s=400)
        for site in (east, west):
            site.shell("droptable", gone)
        east.shell("resume", "west")
        here.wait(position, cluster="west", until="durable", timeout_s=400)
    wait_until(lambda: (at_west(east, gone) or {}).get("state") == "held", timeout_s=400)
    row = at_west(east, gone)
    assert row["dropped"] and "was dropped on west" in row["last_error"] and "dropped_tables" in row["last_error"]
    assert "bytes are held" in east.shell("drain", "west", code=6)
    text = east.file.read_text()
    line = next(line for line in text.splitlines() if "dropped_tables" in line)
    east.file.write_text(text.replace(line, 'dropped_tables = "skip"'))
    try:
        killed = east.kill("worker")
        wait_until(lambda: east.ready("worker", other_than=killed), timeout_s=400)
        wait_until(lambda: at_west(east, gone) is None, timeout_s=400, what="the rule of the dropped table to end")
        assert east.json("drain", "west", "--timeout", "120")["peer"] == "west"
        with west.connect() as there:
            wait_until(lambda: set(range(100, 110)) <= set(ids(there, a)), timeout_s=400)
    finally:
        east.file.write_text(text)


def acked_by_a_killed_writer(site, table):
    """How many rows were acked to a process that was killed while it wrote."""
    command = [sys.executable, "-c", WRITER, str(site.file), table]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        acked = 0
        try:
            while acked < 2000:
                acked = int(writer.stdout.readline())
        finally:
            os.kill(writer.pid, signal.SIGKILL)
        rest = writer.stdout.read()
    return max([acked, *(int(line) for line in rest.splitlines() if line.strip().isdigit())])


def test_with_all_writers_dead_master_and_worker_bring_the_peer_up_to_the_last_acked_row(sites, tables):
    """Scenarios 16 and 20."""
    east, west = sites
    a = tables[0]
    west.stop()
    before = ids_of(east, a)
    acked = acked_by_a_killed_writer(east, a)
    killed = east.kill("worker")  # scenario 20: the target is down and the source starts again
    wait_until(lambda: east.ready("worker", other_than=killed), timeout_s=400)

    def lags():
        status = east.json("status")
        row = next(row for row in status["peers"] if row["table"] == a)
        (sending,) = [each for each in status["sending"] if each["peer"] == "west"]
        return row["lag_bytes"] > 0 and row["lag_s"] > 0 and sending["retries"] > 0 and (row, sending)

    row, sending = wait_until(lags, timeout_s=400, what="status to show the lag of what was recovered")
    assert sending["state"] == "failing" and sending["last_error"] and row["state"] in ("failing", "behind")
    east.stop()
    with plugged_in():
        west.start()
    west.await_roles()
    east.start("--roles", "master,worker")
    east.await_roles("zookeeper", "master", "worker")
    assert not any(east.is_up(role) for role in ("receiver", "replay"))
    try:
        wanted = set(before) | set(range(acked))
        with west.connect() as there:
            try:
                wait_until(lambda: wanted <= set(ids(there, a)), timeout_s=400, what="the last acked row at west")
            except AssertionError as error:
                lacking, elsewhere = sorted(wanted - set(ids(there, a))), sorted(wanted - set(ids_of(west, a)))
                error.add_note(f"acked {acked}, {len(before)} before; lacks {len(lacking)}: {lacking[:5]}")
                error.add_note(f"another handle lacks {elsewhere[:5]}; west: {west.json('status')}")
                raise
    finally:
        east.stop()
        with plugged_in():
            east.start()
        east.await_roles()
    assert all(east.is_up(role) for role in ROLES) and Path(east.config.data_dir).exists()


def ids_of(site, table):
    with site.connect() as cluster:
        return ids(cluster, table)
