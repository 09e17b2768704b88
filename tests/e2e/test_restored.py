"""Backups put back by hand, as the cookbook says: a whole data directory, a ledger beside newer files, or nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from replication.errors import ReplicationError
from tests.e2e.conftest import ROLES, START_TIMEOUT_S, Site, await_ready, define, launched, start

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
TABLE = "ops.kept"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Site]]:
    """East, and a backup of it from when it had the first 1,000 rows; west has 2,000, and east's WALs 500 more."""
    folder = tmp_path_factory.mktemp("restored")
    made = {name: start(folder / name, name) for name in ("east", "west")}
    try:
        await_ready([*made.values()], START_TIMEOUT_S)
        with made["east"].connect() as cluster:
            cluster.create_table(TABLE, SCHEMA, ["id"])
        define(made["east"], made["west"])
        made["east"].shell("enablereplication", "-t", TABLE, "west")
        write(made, 0)
        made["east"].stop()
        shutil.copytree(folder / "east", folder / "backup")
        again(made, "east")
        write(made, 1000)
        made["east"].shell("pause", "west")
        with made["east"].connect() as cluster:
            cluster.upsert(TABLE, rows(2000, 500))
        made["east"].stop()
        yield made
    finally:
        for site in made.values():
            site.stop()


def again(sites: dict[str, Site], name: str) -> None:
    sites[name] = launched(name, sites[name].file, ROLES)
    await_ready([sites[name]], START_TIMEOUT_S)


def rows(first: int, count: int) -> list[dict[str, object]]:
    return [{"id": first + i, "text": f"{first + i}"} for i in range(count)]


def write(sites: dict[str, Site], first: int) -> None:
    """1,000 rows at east; back when west shows them."""
    with sites["east"].connect() as here:
        position = here.upsert(TABLE, rows(first, 1000))
        for cluster in (None, "west"):
            here.wait(position, cluster=cluster, until="visible", timeout_s=400)


def refilled(sites: dict[str, Site]) -> list[list[int]]:
    """West defines east anew and sends it what it has, and the other way round; the keys that both have then."""
    east, west = sites["east"], sites["west"]
    peers = [each["name"] for each in east.json("listclusters")]
    with ThreadPoolExecutor(2) as threads:
        if "east" in [each["name"] for each in west.json("listclusters")]:
            west.shell("deletecluster", "east")
        done = threads.submit(define, west, east)
        if "west" not in peers:
            define(east, west)
        done.result()
    west.shell("enablereplication", "-t", TABLE, "--bootstrap", "--wait", "400", "east")
    if "west" not in peers:
        east.shell("enablereplication", "-t", TABLE, "--bootstrap", "--wait", "400", "west")
    west.shell("verify", str(east.file), TABLE)
    found = []
    for site in (east, west):
        with site.connect() as cluster:
            found.append(sorted(cluster.read(TABLE, columns=["id"]).read_all().column(0).to_pylist()))
    return found


def test_a_ledger_put_back_from_a_copy_is_refused_and_made_anew(both: dict[str, Site]) -> None:
    home = both["east"].file.parent
    for newer in home.glob("ledger.db*"):
        newer.unlink()
    for old in (home.parent / "backup").glob("ledger.db*"):
        shutil.copy(old, home / old.name)
    kept = {file: file.read_bytes() for file in home.glob("wal/*.wal")}
    with pytest.raises(ReplicationError, match="older than the files beside it") as refused:
        again(both, "east")
    assert "rebuildledger" in refused.value.hint
    assert {file: file.read_bytes() for file in home.glob("wal/*.wal")} == kept
    (home / "lost").mkdir()
    for ledger in home.glob("ledger.db*"):
        ledger.rename(home / "lost" / ledger.name)
    both["east"].shell("rebuildledger", "--yes")
    again(both, "east")
    assert refilled(both) == [[*range(2500)]] * 2
    write(both, 2500)
    both["east"].stop()


def test_a_cluster_restored_from_an_old_backup_gets_its_own_rows_back(both: dict[str, Site]) -> None:
    home = both["east"].file.parent
    shutil.rmtree(home)
    shutil.copytree(home.parent / "backup", home)
    both["east"].shell("reincarnate", "--yes")
    again(both, "east")
    assert refilled(both) == [[*range(3500)]] * 2
    write(both, 3500)


def test_a_cluster_that_was_wiped_is_refilled_by_its_peer(both: dict[str, Site]) -> None:
    if both["east"].process.poll() is not None:
        again(both, "east")
    east, home, gone = both["east"], both["west"].file.parent, both["west"].json("listtables")
    both["west"].stop()
    shutil.rmtree(home)
    both["west"] = west = start(home, "west")
    await_ready([west], START_TIMEOUT_S)
    assert west.json("listtables") == [] != gone
    east.shell("deletecluster", "west")
    define(east, west)
    east.shell("enablereplication", "-t", TABLE, "--bootstrap", "--wait", "400", "west")
    east.shell("verify", "west", TABLE)
    write(both, 5000)
    with east.connect() as here, west.connect() as there:
        kept, found = (sorted(c.read(TABLE).read_all().to_pylist(), key=lambda r: r["id"]) for c in (here, there))
    assert len(kept) >= 3500 and found == kept
    assert not [row for row in west.json("status")["origins"] if row["held_by"]]
