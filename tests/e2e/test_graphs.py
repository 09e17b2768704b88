"""Three whole clusters in chains, rings, diamonds and as two masters: black-box scenarios 1, 3, 7 to 9 and 11 to 13."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count, pairwise
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from replication.core.position import Position
from tests.e2e.commands import ROOT
from tests.e2e.conftest import ROLES, Site, define, second_host, start
from tests.e2e.graph_rows import (
    SCHEMA,
    WAIT_S,
    Handles,
    agree,
    change_log,
    content,
    everywhere,
    loading,
    rows,
    versions_of,
)
from tests.waiting import wait_until

ROUTES = {  # in the order they are opened: each table is made at its first cluster, and by its routes at the others
    "east>west": ("chain", "masters", "ring", "killed", "moving"),
    "west>north": ("chain", "ring", "killed", "moving"),
    "north>east": ("ring", "killed", "moving", "diamond"),
    "north>west": ("diamond",),
    "west>east": ("masters",),
    "east>west again": ("diamond",),
}
WRITER = """
import sys, time, walship
with walship.connect(sys.argv[1]) as cluster:
    first = int(sys.argv[3])
    while True:
        cluster.upsert(sys.argv[2], [{"id": first + n, "text": "of the writer"} for n in range(50)])
        first += 50
        print(first, flush=True)
        time.sleep(0.005)
"""


@pytest.fixture(scope="module")
def graph(sites: tuple[Site, Site], north: Site) -> dict[str, Site]:
    return {site.name: site for site in (*sites, north)}


@pytest.fixture(scope="module")
def handles(graph: dict[str, Site]) -> Iterator[Handles]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(site.connect()) for name, site in graph.items()}


@pytest.fixture(scope="module")
def tables(graph: dict[str, Site], handles: Handles) -> dict[str, str]:
    """The tables of all tests by their short names, with all their routes open."""
    space = f"graph{uuid4().hex[:8]}"
    names = {short: f"{space}.{short}" for of_route in ROUTES.values() for short in of_route}
    for short, name in names.items():
        handles["north" if short == "diamond" else "east"].create_table(name, SCHEMA, ["id"])
    for route, shorts in ROUTES.items():
        source, peer = route.split()[0].split(">")
        graph[source].shell("enablereplication", *(part for short in shorts for part in ("-t", names[short])), peer)
    return names


def test_a_put_and_its_delete_go_along_a_chain(
    graph: dict[str, Site], handles: Handles, tables: dict[str, str]
) -> None:
    """Scenario 1, waiting for a cluster that is not a peer."""
    table = tables["chain"]
    handles["east"].wait(handles["east"].upsert(table, rows(k1="one", k2="two")), cluster="north", timeout_s=WAIT_S)
    shown = [json.loads(line) for line in graph["north"].shell("read", table, "--json").splitlines()]
    assert sorted(row["text"] for row in shown) == ["one", "two"]
    gone = handles["east"].delete(table, [{"id": 1}])
    for name in ("north", "west"):  # who passes on what has landed may apply it later than the next one
        handles["east"].wait(gone, cluster=name, timeout_s=WAIT_S)
    assert content(handles["west"], table) == content(handles["north"], table) == {2: "two"}
    newest, first = graph["north"].json("trace", table, "1")["versions"]
    assert newest["is_delete"] and newest["is_winner"] and not first["is_delete"]
    assert newest["path"] == ["east", "west", "north"] and newest["applied"] > newest["commit"] > first["commit"]


def test_each_edit_of_two_masters_is_once_in_each_change_log(handles: Handles, tables: dict[str, str]) -> None:  # 004-2
    """Scenarios 7 and 9: both edit the same keys, and edit what came from the other beside keys of their own."""
    table, both = tables["masters"], "east west"
    one = handles["east"].upsert(table, rows(k1="of east", k2="of east"))
    two = handles["west"].upsert(table, rows(k1="of west", k3="of west"))
    everywhere(handles, one, two, names=both)
    later = content(handles["east"], table)[1]
    agree(handles, table, {1: later, 2: "of east", 3: "of west"}, both)
    batch = handles["west"].upsert(table, rows(k2="changed at west", k4="local at west"))
    gone = handles["west"].delete(table, [{"id": 1}])
    everywhere(handles, batch, gone, names=both)
    agree(handles, table, {2: "changed at west", 3: "of west", 4: "local at west"}, both)
    assert len(change_log(handles["east"], table)) == 7


def test_in_a_ring_every_edit_is_once_on_each_and_a_key_can_be_traced(
    graph: dict[str, Site], handles: Handles, tables: dict[str, str]
) -> None:  # 004-2
    """Scenario 8, and verify between clusters of which one is not the other's peer."""
    table = tables["ring"]
    far = handles["east"].upsert(table, rows(k1="of east", k9="of east"))
    handles["east"].wait(far, cluster="north", timeout_s=WAIT_S)
    positions = [
        handles[name].upsert(table, rows(k1=f"of {name}", **{f"k{n}": name})) for n, name in enumerate(handles, 2)
    ]
    everywhere(handles, far, *positions)
    agree(handles, table, {1: "of north", 2: "east", 3: "west", 4: "north", 9: "of east"})
    found = graph["north"].json("trace", table, "1")["versions"]
    assert [v["values"]["text"] for v in found] == ["of north", "of west", "of east", "of east"]
    assert [v["is_winner"] for v in found] == [True, False, False, False]
    assert [v["path"] for v in found] == [["north"], ["west", "north"], *[["east", "west", "north"]] * 2]
    assert "east → west → north" in graph["north"].shell("trace", table, "id=1")
    [verdict] = graph["east"].json("verify", str(graph["north"].file), table)
    assert verdict["differing"] == 0 and verdict["left"]["rows"] == 5


def test_what_comes_by_two_routes_is_there_once_over_many_rolls(
    graph: dict[str, Site], handles: Handles, tables: dict[str, str]
) -> None:
    """Scenario 3 on a diamond: from north to west directly and by east, where its trace tells both routes."""
    table = tables["diamond"]
    position: Position | None = None
    for n in range(12):
        ids = pa.array(range(n * 2000, (n + 1) * 2000), pa.int64())
        batch = pa.table({"id": ids, "text": [secrets.token_hex(64) for _ in range(2000)]}, SCHEMA)
        reached = handles["north"].upsert(table, batch)
        position = reached if position is None else position.join(reached)
    assert position is not None and len(position.ends) > 2, "it went into several WALs"
    everywhere(handles, position)
    logs = [change_log(handles[name], table) for name in handles]
    assert logs[0] == logs[1] == logs[2] and set(logs[0].values()) == {1} and len(logs[0]) == 24_000
    contents = [content(handles[name], table) for name in handles]
    assert contents[0] == contents[1] == contents[2] and len(contents[0]) == 24_000

    def routes() -> set[tuple[str, ...]]:
        (version,) = graph["west"].json("trace", table, "23999")["versions"]
        return {tuple(version["path"]), *map(tuple, version["other_paths"])}

    wait_until(
        lambda: routes() == {("north", "west"), ("north", "east", "west")},
        timeout_s=400,
        what="both routes in the trace",
    )


def test_writer_worker_and_receivers_of_a_ring_are_killed_during_a_load_and_no_row_is_missing_or_twice(
    graph: dict[str, Site], handles: Handles, tables: dict[str, str]
) -> None:
    """Scenarios 11 and 12: the source's writer and worker, then the receivers behind and before it."""
    table = tables["killed"]
    acked: set[int] = set()
    with loading(handles, table, ["west", "north"]) as load:
        for first in (1_000_000, 2_000_000):
            command = [sys.executable, "-c", WRITER, str(graph["east"].file), table, str(first)]
            with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
                assert writer.stdout is not None
                try:
                    while (upto := int(writer.stdout.readline())) < first + 500:
                        pass
                    killed = [(name, role, graph[name].kill(role)) for name, role in _victims(first)]
                    while upto < first + 1000:
                        upto = int(writer.stdout.readline())
                finally:
                    os.kill(writer.pid, signal.SIGKILL)
                told = [int(line) for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
            acked |= set(range(first, max([upto, *told])))
            for name, role, old in killed:
                wait_until(
                    lambda n=name, r=role, o=old: graph[n].ready(r, other_than=o),
                    timeout_s=400,
                    what=f"{name}'s {role} again",
                )
        assert load.grows() is True
        everywhere(handles, *load.finish())
    wanted = set(load.rows) | acked
    for name in handles:
        wait_until(
            lambda n=name: wanted <= set(content(handles[n], table)),
            timeout_s=WAIT_S,
            what=f"every acked row at {name}",
        )
    last = handles["east"].upsert(table, rows(k0="the end"))
    everywhere(handles, last)
    agree(handles, table, content(handles["east"], table))
    for site in graph.values():
        assert not site.json("status")["quarantined"]


def _victims(first: int) -> tuple[tuple[str, str], ...]:
    return (("east", "worker"),) if first == 1_000_000 else (("west", "receiver"), ("east", "receiver"))


@pytest.mark.slow
def test_receivers_come_and_go_and_data_flows_on(
    graph: dict[str, Site], handles: Handles, tables: dict[str, str], tmp_path: Path
) -> None:
    """Scenarios 13 and 17: north, which passes on what west sends, gains a second host, loses it, and gets it back."""
    table, north, versions = tables["moving"], graph["north"], count()

    def receivers(number: int) -> bool:
        for _ in range(5):
            handles["west"].upsert(table, rows(k900000=str(next(versions))))
        return len(north.json("status")["members"]["receivers"]) == number

    with loading(handles, table, ["west"]) as load:
        other = second_host(north, tmp_path / "north-h1")
        try:
            wait_until(
                lambda: other.ready("receiver") and other.ready("worker"), timeout_s=400, what="north's second host"
            )
            wait_until(lambda: receivers(2), timeout_s=400, what="two receivers")
            old = north.kill("receiver")
            wait_until(
                lambda: any((tmp_path / "north-h1/landing").glob("*")),
                timeout_s=400,
                what="the second host lands something",
            )
            wait_until(
                lambda: north.ready("receiver", other_than=old),
                timeout_s=400,
                what="north's first receiver at another port",
            )
            assert load.grows() is True
            other.stop()
            wait_until(lambda: receivers(1), timeout_s=400, what="one receiver")
            assert load.grows() is True
            handles["north"].wait(load.positions["west"], until="visible", timeout_s=WAIT_S)
            other.start("--roles", "worker,receiver")
            wait_until(lambda: other.is_up("receiver") and receivers(2), timeout_s=400, what="two receivers again")
            assert load.grows() is True
            everywhere(handles, *load.finish())
            agree(handles, table, load.rows | {900000: str(next(versions) - 1)})
            for name in ("east", "north"):
                found = versions_of(handles[name], table, 900000)
                assert found == sorted(found, key=int), f"the versions of one key, in order at {name}"
        finally:
            other.stop()


@pytest.mark.slow
def test_a_broken_route_is_told_and_data_takes_the_other(
    graph: dict[str, Site], handles: Handles, tables: dict[str, str]
) -> None:
    """East's worker is frozen: north's diamond goes on to west directly, and what has the ring only stands."""
    west = graph["west"]

    def paths(origin: str) -> dict[tuple[str, ...], bool]:
        """Whether each way of an origin to west is heard."""
        found = {o["origin"].partition(":")[0]: o["paths"] for o in west.json("status")["origins"]}
        return {tuple(way["path"]): way["silent_s"] is None for way in found.get(origin, ())}

    direct, around = ("north", "west"), ("north", "east", "west")
    wait_until(
        lambda: paths("north") == {direct: True, around: True} and paths("east") == {("east", "west"): True},
        timeout_s=400,
    )
    with graph["east"].frozen("worker"):
        wait_until(
            lambda: paths("north") == {direct: True, around: False} and paths("east") == {("east", "west"): False},
            timeout_s=400,
        )
        position = handles["north"].upsert(tables["diamond"], rows(k50000="by the other route"))
        handles["north"].wait(position, cluster="west", timeout_s=WAIT_S)
        told = " ".join(_notes(west).split())
        assert "east no longer comes by east → west: silent for" in told
        assert "north no longer comes by north → east → west: silent for" in told
        stranded = ", ".join(sorted(tables[short] for short in ("killed", "moving", "ring")))
        rest = "so replicated time stands still there; the rest comes by north → west"
        assert f"there is no other route for {stranded}, {rest}" in told
    wait_until(
        lambda: paths("north") == {direct: True, around: True} and paths("east") == {("east", "west"): True},
        timeout_s=400,
    )
    everywhere(handles, position, handles["north"].upsert(tables["ring"], rows(k60000="around again")))


@pytest.mark.slow
def test_a_ring_of_five_goes_on_when_two_of_it_are_killed(
    graph: dict[str, Site], handles: Handles, tmp_path: Path
) -> None:
    """East → west → north → south → middle → east, edits of one key at all five and of keys of their own."""
    small = {"wal_bytes_max": 1 << 20}
    with ExitStack() as stack:
        ring = dict(graph)
        for name in ("south", "middle"):
            ring[name] = start(tmp_path / name, name, writer=small)
            stack.callback(ring[name].stop)
        for name in ("south", "middle"):
            ring[name].await_roles(*ROLES)
        all_five = handles | {name: stack.enter_context(ring[name].connect()) for name in ("south", "middle")}
        names, table = list(ring), f"five{uuid4().hex[:8]}.edits"
        for source, peer in (("north", "south"), ("south", "middle"), ("middle", "east")):
            define(ring[source], ring[peer])
        all_five["east"].create_table(table, SCHEMA, ["id"])
        for source, peer in pairwise([*names, "east"]):
            ring[source].shell("enablereplication", "-t", table, peer)
        wanted: dict[int, str] = {}
        for turn in range(2):
            done = []
            for n, name in enumerate(names):
                own = {f"k{10 * turn + n + 1}": name}
                done.append(all_five[name].upsert(table, rows(k0=f"{turn} of {name}", **own)))
                wanted |= {0: f"{turn} of {name}", 10 * turn + n + 1: name}
                if turn and name == "west":
                    ring["north"].kill("receiver")
                    ring["middle"].kill("worker")
            everywhere(all_five, *done, names=" ".join(names))
            agree(all_five, table, wanted, " ".join(names))
        far = next(v for v in ring["east"].json("trace", table, "12")["versions"])
        assert far["path"] == ["west", "north", "south", "middle", "east"]
        ring["middle"].shell("deletecluster", "east")
        ring["north"].shell("deletecluster", "south")


def _notes(site: Site) -> str:
    """What ``walship status`` tells on standard error."""
    command = [sys.executable, "-m", "shell.main", "--cluster", str(site.file), "status"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=600).stderr
