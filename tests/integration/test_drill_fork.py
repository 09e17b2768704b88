"""A fork of real Iceberg tables: all at one commit time, written to by probes, and gone without a trace."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from peer.drill import forking
from peer.drill.fork import Fork
from peer.drill.forking import make_fork, remove_fork
from peer.drill.instant import pin
from peer.drill.session import OpenFork
from peer.tables.maintenance import drop_scratch, tidy
from peer.tables.read import read
from replication.core.definition.schema import TableSpec
from replication.errors import NullKeyError, RequestError, SchemaError, UnknownTableError
from replication.files.owner import owner_name
from replication.tables.catalog.catalog import IcebergCatalog, configured_catalog
from replication.tables.layout import iceberg_names, layouts
from tests.drilling import HOUR_US, ForkSite
from tests.tables_made import keyed

HOSTILE = pa.schema([("from", pa.string()), ("where", pa.int64()), ("c0", pa.int64())])


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ForkSite]:
    made = ForkSite(tmp_path)
    yield made
    made.close()


def rows_of(fork: OpenFork, spec: TableSpec) -> dict[str, Any]:
    return {row["k"]: row["v"] for row in fork.read(spec.name).read_all().to_pylist()}


def one(fork: OpenFork, query: str) -> Any:
    return next(iter(fork.sql(query).read_all().to_pylist()[0].values()))


def test_every_table_is_forked_at_one_time_while_replay_and_folds_go_on(site: ForkSite) -> None:  # scenario 28
    folded, changed, empty = (site.table(keyed(name)) for name in ("ops.folded", "ops.changed", "ops.empty"))
    log = site.table(keyed("ops.log", key=()))
    for n in range(3):
        site.put(folded, {"k": "a", "v": n}, {"k": f"f{n}", "v": n})
        site.put(changed, {"k": "a", "v": n})
    site.put(log, {"k": "a", "v": 1})
    site.wal.delete(folded, [{"k": "f0"}])
    site.put(changed, {"k": "b", "v": 7})
    site.replay()
    site.fold(folded)
    with site.fork() as fork:
        before = rows_of(fork, folded), rows_of(fork, changed)
        assert before == ({"a": 2, "f1": 1, "f2": 2}, {"a": 2, "b": 7})
        assert (rows_of(fork, empty), rows_of(fork, log)) == ({}, {"a": 1})
        site.put(folded, {"k": "a", "v": 100}, {"k": "late", "v": 1})
        site.put(changed, {"k": "b", "v": 200})
        site.put(log, {"k": "z", "v": 1})
        site.replay()
        site.fold(folded)
        site.fold(changed)
        assert read(site.tables, changed).read_all().num_rows == 2
        assert (rows_of(fork, folded), rows_of(fork, changed), rows_of(fork, log)) == (*before, {"a": 1})
    assert {row["v"] for row in read(site.tables, folded).read_all().to_pylist()} >= {100}


@pytest.mark.parametrize("times", [4, 5])
def test_a_fork_is_tried_again_when_snapshots_expire_while_it_is_made(
    site: ForkSite, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    spec = site.table(keyed("ops.t"))
    site.put(spec, {"k": "a", "v": 1})
    site.replay()
    gone = iter(range(times))
    monkeypatch.setattr(forking, "pin", lambda *given: pin(*given) if next(gone, None) is None else None)
    if times == 5:
        with pytest.raises(RequestError, match=r"changed 5 times while they were forked: .* have expired"):
            site.fork()
        return
    with site.fork() as fork:
        assert rows_of(fork, spec) == {"a": 1}


def test_a_probe_changes_rows_in_sql_and_nobody_else_sees_it(site: ForkSite) -> None:  # scenario 28
    spec = site.table(keyed("ops.t"))
    site.put(spec, {"k": "a", "v": 1}, {"k": "b", "v": 2}, {"k": "c", "v": 3})
    site.replay()
    site.fold(spec)
    snapshots = {name: len(site.catalog.history(name).snapshots) for name in iceberg_names(spec)}
    with site.fork() as fork:
        assert one(fork, "insert into ops.t values ('d', 4), ('a', 10)") == 2
        assert one(fork, "update ops.t set v = v * 2 where k in (select k from ops.t where v >= 4)") == 2
        assert one(fork, "delete from ops.t where v = 2") == 1
        assert rows_of(fork, spec) == {"a": 20, "c": 3, "d": 8}
        assert (
            one(fork, "update ops.t as o set k = o.k || '!', v = n.v from ops.t n where o.k = n.k and n.k = 'c'") == 1
        )
        assert rows_of(fork, spec) == {"a": 20, "c!": 3, "d": 8}
        assert one(fork, "with gone as (select 'd' as k) delete from ops.t using gone where t.k = gone.k") == 1
        assert one(fork, "truncate ops.t") == 2
        assert one(fork, "select count(*) from ops.t__latest") == 0
        assert one(fork, "insert into ops.t (k) select 'x' from range(3)") == 3
        assert rows_of(fork, spec) == {"x": None}
        assert {row["k"] for row in read(site.tables, spec).read_all().to_pylist()} == {"a", "b", "c"}
    assert {name: len(site.catalog.history(name).snapshots) for name in iceberg_names(spec)} == snapshots


def test_rows_are_written_from_python_and_another_process_sees_them(site: ForkSite) -> None:
    spec, log = site.table(keyed("ops.t")), site.table(keyed("ops.log", key=()))
    site.put(spec, {"k": "a", "v": 1})
    site.put(log, {"k": "a", "v": 1})
    site.replay()
    drill = site.drill()
    with site.fork(drill) as fork:
        fork.fork.save(site.folder / drill.id)
        other = OpenFork(IcebergCatalog(configured_catalog(site.config)), Fork.load(site.folder / drill.id))
        assert other.upsert("ops.t", [{"k": "b", "v": 2}, {"k": "b", "v": 3}]) == 2
        assert other.upsert("ops.log", {"k": "a", "v": 2}) == 1
        assert other.delete("ops.t", {"k": "a"}) == 1
        other.close()
        assert rows_of(fork, spec) == {"b": 3}
        assert sorted(row["v"] for row in fork.read("ops.log").read_all().to_pylist()) == [1, 2]
        with pytest.raises(NullKeyError, match="key column 'k'"):
            fork.upsert("ops.t", {"k": None, "v": 1})
        with pytest.raises(SchemaError, match="takes the columns"):
            fork.upsert("ops.t", {"k": "a", "w": 1})
        with pytest.raises(UnknownTableError, match="no table ops.u"):
            fork.read("ops.u")
    with pytest.raises(RequestError, match="does not run here"):
        Fork.load(site.folder / "another")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("begin", "no transactions"),
        ("merge into ops.t using ops.t s on (t.k = s.k) when matched then delete", "MERGE is not possible"),
        ("delete from ops.t returning k", "RETURNING is not possible"),
        ("update ops.log set v = 1", "has no key"),
        ("update ops.t set nothing = 1", "nothing"),
        ("insert into ops.t values (1)", "column"),
        ("selec 1", "syntax error"),
        ("select 1; select 2", "2 statements"),
    ],
)
def test_what_a_fork_cannot_do_is_said(site: ForkSite, query: str, message: str) -> None:
    for spec in (keyed("ops.t"), keyed("ops.log", key=())):
        site.table(spec)
        site.put(spec, {"k": "a", "v": 1})
    site.replay()
    with site.fork() as fork, pytest.raises(RequestError, match=message):
        fork.sql(query).read_all()


def test_a_probe_that_writes_much_is_stopped(site: ForkSite) -> None:
    spec = site.table(keyed("ops.t"))
    site.put(spec, {"k": "a", "v": 1})
    site.replay()
    with site.fork(write_bytes_max=100_000) as fork:
        fork.upsert("ops.t", [{"k": str(n), "v": n} for n in range(1_000)])
        with pytest.raises(RequestError, match="more than 100,000 bytes"):
            for _ in range(100):
                fork.upsert("ops.t", [{"k": str(n), "v": n} for n in range(1_000)])


@pytest.mark.parametrize("name", ["select.from", "default.group", "system.t", "temp.main", "main.walship", "ops.base"])
def test_tables_with_hostile_names_are_forked(site: ForkSite, name: str) -> None:
    spec = site.table(keyed(name, schema=HOSTILE, key=["from"]))
    site.put(spec, {"from": "a", "c0": 1, "where": 1})
    site.replay()
    quoted = ".".join(f'"{part}"' for part in ("walship", *name.split(".")))
    with site.fork() as fork:
        assert one(fork, f'insert into {quoted} ("from", "where") values (\'b\', 2)') == 1
        assert one(fork, f'update {quoted} set "where" = 5, c0 = "where" where "from" = \'a\'') == 1
        assert one(fork, f'select sum("where") + sum(c0) from {quoted}') == 8


def test_a_table_that_is_dropped_during_a_drill_is_said_to_be(site: ForkSite) -> None:
    spec, other = site.table(keyed("ops.t")), site.table(keyed("ops.u"))
    for each in (spec, other):
        site.put(each, {"k": "a", "v": 1})
    site.replay()
    with site.fork() as fork:
        site.ledger.tables.drop(spec.uuid)
        for layout in layouts(spec):
            site.catalog._catalog.purge_table(layout.name)
        with pytest.raises(RequestError, match=r"ops\.t was dropped while the drill ran"):
            fork.sql("select * from ops.t").read_all()
        assert rows_of(fork, other) == {"a": 1}


def test_a_fork_is_removed_without_a_trace_beside_another_one(site: ForkSite) -> None:
    spec = site.table(keyed("ops.t"))
    site.put(spec, {"k": "a", "v": 1})
    site.replay()
    site.fold(spec)
    first, second = site.drill(), site.drill()
    with site.fork(first) as one_fork, site.fork(second) as other:
        one_fork.upsert("ops.t", {"k": "b", "v": 2})
        other.upsert("ops.t", {"k": "c", "v": 3})
        remove_fork(site.catalog, site.ledger, first, keep_tags=False)
        remove_fork(site.catalog, site.ledger, first, keep_tags=False)
        assert rows_of(other, spec) == {"a": 1, "c": 3}
        remove_fork(site.catalog, site.ledger, second, keep_tags=False)
    assert site.traces() == []


def test_housekeeping_removes_what_a_killed_drill_left(site: ForkSite) -> None:
    spec = site.table(keyed("ops.t"))
    site.put(spec, {"k": "a", "v": 1})
    site.replay()
    gone = owner_name().split("/")
    gone[1], gone[3] = "4194304", "1.00"  # a process of this machine that does not exist
    killed, running, over = site.drill("/".join(gone)), site.drill(), site.drill(until=1)
    for drill in (killed, running, over):
        with_fork = site.fork(drill)
        with_fork.upsert("ops.t", {"k": drill.id, "v": 1})
    tidy(site.tables, site.ledger, spec, time.time_ns() // 1000)
    drop_scratch(site.tables, site.ledger, time.time_ns() // 1000)
    assert site.catalog.history("ops.t__changes").tags.keys() == {running.tag}
    assert site.catalog.drop_scratch("walship_drill_", ()) == [running.tag]


def test_housekeeping_lets_go_of_drills_that_ended_and_never_of_one_that_runs(site: ForkSite) -> None:
    spec = site.table(keyed("ops.t"))
    site.put(spec, {"k": "a", "v": 1})
    site.replay()
    site.fold(spec)
    now = time.time_ns() // 1000
    running, kept, ended = (site.drill() for _ in range(3))
    for drill in (running, kept, ended):
        make_fork(site.catalog, site.ledger, drill, 1)
    site.ledger.drills.put(dataclasses.replace(kept, ended=now, kept_until=now + HOUR_US))
    site.ledger.drills.put(dataclasses.replace(ended, ended=now, kept_until=now + 1))
    tidy(site.tables, site.ledger, spec, now + 1)
    for name in ("ops.t", "ops.t__changes"):
        assert {tag for tag in site.catalog.history(name).tags if "drill" in tag} == {running.tag, kept.tag}
    tidy(site.tables, site.ledger, spec, now + 2 * HOUR_US)
    assert site.traces() == [], "a drill holds history until its time is up"
