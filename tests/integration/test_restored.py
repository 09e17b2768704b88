"""Clusters that come back from a backup, or with nothing, and copies that speak under one id."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from peer.rebuilt import rebuild_ledger
from peer.restored import reincarnate
from replication.core.schema import TableSpec
from replication.errors import RequestError
from replication.files.local import LocalFiles
from replication.ledger.base import FileKind, Phase
from replication.ledger.sql import open_ledger
from replication.tables.memory import MemoryTables
from tests.replaying import TableSite
from tests.sites import Wal, rows, table, until
from tests.tables_made import SIMPLE, keyed


def send(source: TableSite, target: TableSite, spec: TableSpec) -> None:
    """definecluster and enablereplication --bootstrap."""
    source.send_to(target)
    groups = [group.name for group in spec.groups]
    source.ledger.rules.enable(target.cluster.name, spec.uuid, groups, spec.name, source.term, bootstrap=True)


def connect(stack: ExitStack, source: TableSite, target: TableSite) -> None:
    receiver = stack.enter_context(target.receiver())
    stack.enter_context(source.worker())
    source.assign(target.cluster, receiver.port)


def settle(source: TableSite, target: TableSite, spec: TableSpec, count: int) -> None:
    def done() -> bool:
        source.register()
        source.replay()
        source.keeper.turn()
        target.replay()
        live = all(phase is Phase.LIVE for phase in source.phases(target.cluster.name))
        return live and target.tables.exists(spec.name) and len(target.shown(spec)) == count

    until(done, 30, f"{count} rows at {target.cluster.name}")


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[tuple[TableSite, TableSite, TableSpec]]:
    east, west, spec = TableSite(tmp_path, "east"), TableSite(tmp_path, "west"), table()
    east.ledger.tables.create(spec)
    yield east, west, spec
    west.close()


def test_a_cluster_restored_from_an_old_backup_gets_its_own_rows_back(
    sites: tuple[TableSite, TableSite, TableSpec], tmp_path: Path
) -> None:
    east, west, spec = sites
    wal = Wal(east, "w0")
    wal.append(spec, rows(0, 10))
    send(east, west, spec)
    backup = MemoryTables()
    with ExitStack() as running:
        connect(running, east, west)
        settle(east, west, spec, 10)
        east.back_up(tmp_path / "backup", backup)
        wal.append(spec, rows(5, 15))
        wal.delete(spec, [{"id": 0}])
        settle(east, west, spec, 19)
    east.close()
    shutil.rmtree(east.config.data_dir)
    shutil.copytree(tmp_path / "backup", east.config.data_dir)
    ledger = open_ledger(east.config.ledger_url)
    ledger.time.register_writer("w0", "h0", 1, east.boot, 1)
    ledger.close()
    old, new = reincarnate(east.config)
    assert old == east.cluster and new.name == "east" and new != old
    back = TableSite(tmp_path, "east", cluster=new, tables=backup)
    assert back.ledger.former == (old,)
    assert {row.kind for row in back.ledger.files.all()} <= {FileKind.LANDING, FileKind.BOOTSTRAP}
    assert len(back.shown(spec)) == 10
    send(west, back, spec)
    with ExitStack() as running:
        connect(running, west, back)
        settle(west, back, spec, 19)
        assert back.shown(spec) == west.shown(spec)
        assert len(back.versions(spec)) == len(set(back.versions(spec)))
        assert {origin for origin, *_ in back.versions(spec)} == {str(old)}
        fresh = Wal(back, "w1")
        fresh.append(spec, rows(100, 5))
        back.register()
        back.replay()
        back.ledger.rules.delete("west", back.term)
        send(back, west, spec)
        assert old in west.ledger.time.replicated(spec.uuid)
        connect(running, back, west)
        settle(back, west, spec, 24)
        for site in (west, back):  # it sends nothing any more, and nobody waits for it
            until(
                lambda at=site: old not in at.ledger.time.replicated(spec.uuid),
                what=f"{site.cluster.name} to forget it",
            )
        assert back.shown(spec) == west.shown(spec)
        assert len(west.versions(spec)) == len(set(west.versions(spec)))
    back.close()


def test_a_cluster_that_was_wiped_is_filled_again_from_a_peer(
    sites: tuple[TableSite, TableSite, TableSpec], tmp_path: Path
) -> None:
    east, west, spec = sites
    wal = Wal(east, "w0")
    wal.append(spec, rows(0, 10))
    send(east, west, spec)
    with ExitStack() as running:
        connect(running, east, west)
        settle(east, west, spec, 10)
    east.close()
    shutil.rmtree(east.config.data_dir)
    anew = TableSite(tmp_path, "east")
    send(west, anew, spec)
    with ExitStack() as running:
        connect(running, west, anew)
        settle(west, anew, spec, 10)
        assert anew.versions(spec) == west.versions(spec)
    anew.close()


def test_what_was_written_must_be_registered_before_a_cluster_is_another(
    sites: tuple[TableSite, TableSite, TableSpec], tmp_path: Path
) -> None:
    east, _, spec = sites
    wal = Wal(east, "w0")
    wal.append(spec, rows(0, 10))
    east.close()
    with pytest.raises(RequestError, match="not closed and registered"):
        reincarnate(east.config)  # nobody is registered as its writer, so nobody may close it
    again = TableSite(tmp_path, "east", cluster=east.cluster, tables=east.tables)
    again.ledger.time.register_writer("w0", "h0", 1, again.boot, 1)
    again.close()
    _, new = reincarnate(east.config)
    back = TableSite(tmp_path, "east", cluster=new, tables=east.tables)
    back.replay()
    assert len(back.shown(spec)) == 10
    back.close()


def test_of_two_copies_of_a_cluster_the_second_is_refused_on_both_sides(
    sites: tuple[TableSite, TableSite, TableSpec], tmp_path: Path
) -> None:
    east, west, spec = sites
    east.close()
    shutil.copytree(east.config.data_dir, tmp_path / "copies" / "east")
    original = TableSite(tmp_path, "east", cluster=east.cluster, tables=east.tables)
    copy = TableSite(tmp_path / "copies", "east", cluster=east.cluster)
    for each in (original, copy):
        each.send_to(west, spec)
        Wal(each, "w0").append(spec, rows(0, 1))
    with west.receiver() as receiver:
        with original.worker():
            original.assign(west.cluster, receiver.port)
            until(lambda: west.ledger.landing.coverage(spec.uuid))
        with copy.worker():
            copy.assign(west.cluster, receiver.port)
            errors = until(lambda: [p.error for p in copy.ledger.files.progress("west") if p.error], what="a refusal")
            assert "two ledgers have had term 2" in errors[0] and "walship reincarnate" in errors[0]
    west.send_to(original, spec)
    with original.receiver() as receiver, west.worker():
        west.assign(original.cluster, receiver.port)
        until(lambda: original.ledger.landing.roads())
    with copy.receiver() as receiver, west.worker():
        Wal(west, "w9").append(spec, rows(7, 1))
        west.assign(original.cluster, receiver.port)
        until(lambda: any("one a copy of the other" in p.error for p in west.ledger.files.progress("east")))
    for each in (original, copy):
        each.close()


def test_a_lost_ledger_is_made_anew_from_tables_and_files(
    sites: tuple[TableSite, TableSite, TableSpec], tmp_path: Path
) -> None:
    east, west, spec = sites
    log = keyed("ops.log", SIMPLE, ())
    east.ledger.tables.create(log)
    wal = Wal(east, "w0")
    wal.append(spec, rows(0, 10))
    wal.append(log, pa.table({"k": ["a", "a"], "v": [1, 1]}))
    east.register()
    east.replay()
    east.fold(spec)
    wal.delete(spec, [{"id": 3}])
    wal.append(spec, rows(10, 5))
    east.register()
    east.replay()
    wal.append(spec, rows(20, 5))  # durable and acked, but not registered, let alone replayed
    wal.append(log, pa.table({"k": ["b"], "v": [2]}))
    shown, versions = east.shown(spec), east.versions(spec)
    east.close()
    for left in east.config.data_dir.glob("ledger.db*"):
        left.unlink()
    made = rebuild_ledger(east.config, east.tables, LocalFiles())
    assert made.former == (east.cluster,) and made.tables == ("ops.flights", "ops.log") and not made.damaged
    with pytest.raises(RequestError, match="there is a ledger"):
        rebuild_ledger(east.config, east.tables, LocalFiles())
    back = TableSite(tmp_path, "east", cluster=made.cluster, tables=east.tables)
    assert back.shown(spec) == shown
    back.replay()
    assert not back.ledger.replay.pending()
    assert sorted(row["id"] for row in back.shown(spec)) == [*range(3), *range(4, 15), *range(20, 25)]
    assert len(back.versions(spec)) == len(versions) + 5
    assert [row["k"] for row in back.shown(log)] == ["a", "a", "b"]
    send(back, west, spec)
    with ExitStack() as running:
        connect(running, back, west)
        settle(back, west, spec, 19)
        Wal(back, "w1").append(spec, rows(50, 5))
        settle(back, west, spec, 24)
        assert west.shown(spec) == back.shown(spec)
    back.close()
