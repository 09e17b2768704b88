"""Groups end to end: only enabled ones leave, in no file of the peer; rows live while any received group does.

Scenario 14.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from uuid import uuid4

import pyarrow as pa
import pytest

from peer.client.cluster import Cluster
from peer.client.comparison import compare_clusters
from replication.core.rows.mutation import Mutation
from replication.errors import UnknownPeerError
from replication.ledger.base import FileKind
from tests.e2e.conftest import Site, await_fold
from tests.frames_on_disk import registered

SCHEMA = pa.schema([("id", pa.int64()), ("open", pa.string()), ("hidden", pa.string())])
SEARCH = """
import json, sys
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq

def holds(path, marker):
    try:
        if marker.encode() in path.read_bytes():
            return True
        return path.suffix == ".parquet" and marker in repr(pq.read_table(path).to_pydict())
    except (OSError, pa.ArrowException):  # expired or rewritten meanwhile
        return False

def held(folder, marker):
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file() and "zookeeper" not in path.parts)
    return [str(path) for path in files if holds(path, marker)]

print(json.dumps([held(*each) for each in json.loads(sys.argv[1])]))
"""
GROUPS = {"shown": ["open"], "kept": ["hidden"]}


def traces(*wanted: tuple[Site, str]) -> list[list[str]]:
    """For each cluster and marker, files under its folder that hold it: as bytes, or as a value of a Parquet file.

    Read by another process: to close a file of SQLite's is to let go of all locks that this process has on it.
    """
    asked = json.dumps([(str(site.config.data_dir), marker) for site, marker in wanted])
    done = subprocess.run([sys.executable, "-c", SEARCH, asked], capture_output=True, text=True, check=True)
    found: list[list[str]] = json.loads(done.stdout)
    return found


def landed_groups(site: Site, table: str) -> set[str]:
    """The groups of all of a table's frames in a cluster's landing files."""
    found = set()
    with site.connect() as cluster:
        uuid = cluster.table(table).uuid
        for row in cluster.ledger.files.all():
            if row.kind is FileKind.LANDING:
                found |= {frame.header.group for frame in registered(row)[1] if frame.header.table == uuid}
    return found


def shown(cluster: Cluster, table: str) -> list[dict[str, object]]:
    return sorted(cluster.read(table).read_all().to_pylist(), key=repr)


@pytest.fixture(scope="module")
def both(sites: tuple[Site, Site]) -> Iterator[tuple[Cluster, Cluster]]:
    east, west = sites
    with east.connect() as here, west.connect() as there:
        yield here, there


@pytest.fixture(scope="module")
def typed(sites: tuple[Site, Site], both: tuple[Cluster, Cluster]) -> str:
    """A table of two groups of which one goes to west."""
    name = f"e2e.groups{uuid4().hex[:8]}"
    both[0].create_table(name, SCHEMA, ["id"], groups=GROUPS)
    sites[0].shell("enablereplication", "-t", name, "-lg", "shown", "west")
    return name


def test_only_the_enabled_group_of_a_typed_table_is_at_the_peer(
    sites: tuple[Site, Site], both: tuple[Cluster, Cluster], typed: str
) -> None:  # 004-28
    here, there = both
    go, stay = f"go{uuid4().hex}", f"stay{uuid4().hex}"
    positions = [
        here.upsert(typed, [{"id": 1, "open": go, "hidden": stay}, {"id": 2, "open": go}]),
        here.upsert(typed, pa.Table.from_pylist([{"id": 4, "open": go, "hidden": stay}] * 2000, schema=SCHEMA)),
        here.upsert(typed, [{"id": 5, "open": go, "hidden": stay}], batch_id="once"),
        here.delete(typed, [{"id": 2}]),
    ]
    unsent = here.upsert(typed, [{"id": 3, "hidden": stay}])
    here.wait(unsent, timeout_s=400)
    with pytest.raises(UnknownPeerError, match="group kept.* does not go to west"):
        here.wait(unsent, cluster="west")
    for position in positions:
        here.wait(position, timeout_s=400)
        here.wait(position, cluster="west", timeout_s=400)
    one = {"id": 1, "open": go, "hidden": None}
    assert shown(there, typed) == [one, one | {"id": 4}, one | {"id": 5}]
    assert [row["id"] for row in shown(here, typed)] == [1, 3, 4, 5]
    await_fold(there, typed)
    assert shown(there, typed) == [one, one | {"id": 4}, one | {"id": 5}]
    assert landed_groups(sites[1], typed) == {"shown"}
    arrived, stayed, left = traces((sites[1], go), (sites[0], stay), (sites[1], stay))
    assert arrived and stayed, "the search finds what is there"
    assert left == []
    verdict = compare_clusters(here, there, [typed], 60)[0]
    assert verdict.same and verdict.left.rows == verdict.right.rows == 3
    [told] = json.loads(sites[0].shell("verify", "west", typed, "--json"))
    assert told["differing"] == 0


def test_a_group_enabled_later_brings_what_is_written_from_then_on_and_one_disabled_stands_still(
    sites: tuple[Site, Site], both: tuple[Cluster, Cluster], typed: str
) -> None:
    here, there = both
    first = here.upsert(typed, [{"id": 10, "open": "a", "hidden": "before"}, {"id": 11, "hidden": "before"}])
    here.wait(first, cluster="west", timeout_s=400)
    sites[0].shell("enablereplication", "-t", typed, "-lg", "kept", "west", "--from-now")
    second = here.upsert(typed, [{"id": 11, "hidden": "since"}, {"id": 12, "hidden": "since"}])
    here.wait(second, cluster="west", timeout_s=400)
    found = {row["id"]: row for row in shown(there, typed)}
    assert found[10] == {"id": 10, "open": "a", "hidden": None}, "the gap is absent"
    assert [found[at]["hidden"] for at in (11, 12)] == ["since", "since"]
    gone = here.delete(typed, [{"id": 10}, {"id": 12}])
    here.wait(gone, cluster="west", timeout_s=400)
    assert {row["id"] for row in shown(there, typed)}.isdisjoint({10, 12})
    sites[0].shell("disablereplication", "-t", typed, "-lg", "shown", "west")
    third = here.upsert(typed, [{"id": 11, "open": "unsent", "hidden": "sent"}, {"id": 13, "open": "unsent"}])
    here.wait(third, cluster="west", timeout_s=400)
    found = {row["id"]: row for row in shown(there, typed)}
    assert found[11] == {"id": 11, "open": None, "hidden": "sent"} and 13 not in found
    here.wait(third, timeout_s=400)
    assert {row["open"] for row in shown(here, typed) if row["id"] in (11, 13)} == {"unsent"}
    last = here.delete(typed, [{"id": 11}])
    here.wait(last, cluster="west", timeout_s=400)
    assert 11 not in {row["id"] for row in shown(there, typed)}, "its last live group is gone"


def test_only_the_enabled_families_of_a_cell_table_are_at_the_peer(
    sites: tuple[Site, Site], both: tuple[Cluster, Cluster]
) -> None:
    here, there = both
    table = f"e2e.families{uuid4().hex[:8]}"
    here.create_table(table, kind="cell", groups={"shown": ["open", "meta"], "kept": ["hidden"]})
    sites[0].shell("enablereplication", "-t", table, "-lg", "shown", "west")
    go, stay = f"go{uuid4().hex}", f"stay{uuid4().hex}"
    cell = {"row": b"r2", "qualifier": "q", "visibility": ""}
    positions = [
        here.apply(table, Mutation("r").put("open", "q", go).put("hidden", "q", stay).put("other", stay, stay)),
        here.upsert(table, [cell | {"family": "meta", "value": go}, cell | {"family": "hidden", "value": stay}]),
        here.upsert(
            table, pa.table({"row": [stay.encode()], "family": ["hidden"], "qualifier": ["q"], "visibility": [""]})
        ),
        here.delete(table, [{"row": stay.encode(), "family": "hidden", "qualifier": "q", "visibility": ""}]),
        here.apply(table, Mutation(stay).delete("other", stay)),
        here.apply(table, Mutation("r").put("open", "last", go)),
    ]
    for position in (positions[0], positions[1], positions[-1]):
        here.wait(position, cluster="west", timeout_s=400)
    found = {(row["row"], row["family"], row["qualifier"]): row["value"] for row in shown(there, table)}
    wanted = {(b"r", "open", "q"), (b"r2", "meta", "q"), (b"r", "open", "last")}
    assert found == dict.fromkeys(wanted, go.encode())
    assert landed_groups(sites[1], table) == {"shown"}
    arrived, stayed, left = traces((sites[1], go), (sites[0], stay), (sites[1], stay))
    assert arrived and stayed
    assert left == []
    here.wait(positions[-1], timeout_s=400)
    verdict = compare_clusters(here, there, [table], 60)[0]
    assert verdict.same and verdict.left.rows == verdict.right.rows == 3
