"""Clusters that come back from a backup, or with nothing."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from peer import rebuilt
from peer.rebuilt import rebuild_ledger
from peer.restored import reincarnate
from replication.core.alter import add_column
from replication.core.frame import Kind
from replication.core.freshness import ClosedNotice
from replication.core.schema import TableSpec
from replication.errors import ConfigError, NoSpaceError, RequestError
from replication.files.local import LocalFiles
from replication.ledger.base import FileKind, Phase
from replication.ledger.sql import open_ledger
from replication.tables.memory import MemoryTables
from replication.worker.control_log import ControlLog
from shell.preflight import check_ledger_age
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


def lose_ledger(site: TableSite) -> None:
    site.close()
    for left in site.config.data_dir.glob("ledger.db*"):
        left.unlink()


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
    done = reincarnate(east.config)
    old, new = done.was, done.now
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
    new = reincarnate(east.config).now
    back = TableSite(tmp_path, "east", cluster=new, tables=east.tables)
    back.replay()
    assert len(back.shown(spec)) == 10
    back.close()


def test_a_ledger_restored_beside_newer_files_takes_them_up(
    sites: tuple[TableSite, TableSite, TableSpec], tmp_path: Path
) -> None:
    """As PostgreSQL's backup is: the database is old, the hosts' disks are not."""
    east, _, spec = sites
    log, late = keyed("ops.log", SIMPLE, ()), table("ops.late")
    east.ledger.tables.create(log)
    Wal(east, "w0").append(spec, rows(0, 10))
    control = ControlLog(east.ledger, east.files, str(east.config.wal_dir), "h0", east.boot)
    control.append(Kind.CLOSED, ClosedNotice(1, ()).encode(), 1, 0)
    east.register()
    east.replay()
    east.ledger.time.register_writer("w0", "h0", 1, east.boot, 1)
    (open_then,) = (row for row in east.ledger.files.all() if row.kind is FileKind.CONTROL)
    with (
        closing(sqlite3.connect(east.config.data_dir / "ledger.db")) as now,
        closing(sqlite3.connect(":memory:")) as old,
    ):
        now.backup(old)
        newer, mixed = Wal(east, "w1"), Wal(east, "w2")
        newer.append(log, pa.table({"k": ["a", "a"], "v": [1, 1]}))
        east.register()
        east.replay()  # so the tables are newer, too
        newer.append(log, pa.table({"k": ["b"], "v": [2]}), batch_id="b")  # acked, and in no ledger
        east.ledger.tables.create(late)
        mixed.append(spec, rows(10, 5))
        mixed.append(late, rows(0, 3))
        torn = Wal(east, "w3")
        whole = torn.append(spec, rows(20, 5))
        torn.append(spec, rows(30, 5))
        with open(torn.path, "r+b") as cut:
            cut.truncate(whole + 50)
        control.close()
        Path(open_then.path).unlink()  # retired since
        old.backup(now)
    east.close()
    with (
        closing(open_ledger(east.config.ledger_url)) as ledger,
        pytest.raises(ConfigError, match="older than the files"),
    ):
        check_ledger_age(east.config, ledger)
    done = reincarnate(east.config)
    assert done.taken_up == 2 and len(done.kept_aside) == 1
    assert "table that is younger than the ledger" in done.kept_aside[0] and "1 of 2 frames saved" in done.kept_aside[0]
    back = TableSite(tmp_path, "east", cluster=done.now, tables=east.tables)
    check_ledger_age(back.config, back.ledger)
    assert back.ledger.files.get(open_then.file) is None
    back.replay()
    assert not back.ledger.replay.pending()
    assert sorted(row["id"] for row in back.shown(spec)) == [*range(15), *range(20, 25)]
    assert [row["k"] for row in back.shown(log)] == ["a", "a", "b"]
    assert not Path(mixed.path).exists() and str(back.config.data_dir / "quarantine") in done.kept_aside[0]
    assert {row.kind for row in back.ledger.files.all()} == {FileKind.LANDING}
    assert Wal(back, "w9").file.number > torn.file.number
    back.close()


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
    lose_ledger(east)
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


@pytest.mark.parametrize("newest", ["change", "folded", "deleted", "keyless"])
def test_writers_go_on_above_every_commit_time_in_the_tables_of_a_ledger_made_anew(
    sites: tuple[TableSite, TableSite, TableSpec], tmp_path: Path, newest: str
) -> None:
    """Else what is written over a row of a clock that is ahead would be acked and lose."""
    east, _, spec = sites
    log = keyed("ops.log", SIMPLE, ())
    east.ledger.tables.create(log)
    wal = Wal(east, "w0")
    wal.append(spec, rows(0, 3))
    wal.ahead_us = 3_600_000_000
    ahead = time.time_ns() // 1000 + wal.ahead_us
    if newest == "keyless":
        wal.append(log, pa.table({"k": ["a"], "v": [1]}))
    elif newest == "deleted":
        wal.delete(spec, [{"id": 1}])
    else:
        wal.append(spec, rows(1, 1))
    east.register()
    east.replay()
    if newest in ("folded", "deleted"):
        east.fold(spec)
    lose_ledger(east)
    Path(wal.path).unlink()  # it was retired
    made = rebuild_ledger(east.config, east.tables, LocalFiles())
    back = TableSite(tmp_path, "east", cluster=made.cluster, tables=east.tables)
    assert ahead <= back.ledger.time.seen() < ahead + 600_000_000
    assert back.ledger.time.register_writer("w1", "h0", 1, back.boot, 1).closed >= ahead
    back.close()


@pytest.mark.parametrize("offset", [20, None], ids=["header", "frame"])
def test_a_ledger_made_anew_has_every_whole_frame_of_damaged_files(
    sites: tuple[TableSite, TableSite, TableSpec], tmp_path: Path, offset: int | None
) -> None:
    east, _, spec = sites
    wal = Wal(east, "w0")
    wal.append(spec, rows(0, 10))
    east.register()
    east.replay()
    begin = wal.length
    wal.append(spec, rows(10, 10))
    wal.append(spec, rows(20, 10))
    lose_ledger(east)
    path = Path(wal.row.path)
    content = bytearray(path.read_bytes())
    content[begin + 200 if offset is None else offset] ^= 1
    path.write_bytes(content)
    made = rebuild_ledger(east.config, east.tables, LocalFiles())
    (told,) = made.damaged
    saved = 3 if offset else 2
    assert f"{saved} frames saved" in told and not path.exists()
    assert (east.config.data_dir / "quarantine" / f"h0-{path.name}").read_bytes() == bytes(content)
    back = TableSite(tmp_path, "east", cluster=made.cluster, tables=east.tables)
    back.replay()
    there = [*range(10), *([] if offset is None else range(10, 20)), *range(20, 30)]
    assert sorted(row["id"] for row in back.shown(spec)) == there
    (row,) = back.ledger.files.all("h0")
    assert row.file.number == wal.row.file.number + 1 and row.closed
    back.close()


@pytest.mark.parametrize("at", ["rebuild", "saved", "move"])
def test_a_ledger_that_was_being_made_anew_is_none_and_is_made_again(
    sites: tuple[TableSite, TableSite, TableSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    east, _, spec = sites
    wal = Wal(east, "w0")
    wal.append(spec, rows(0, 10))
    wal.append(spec, rows(10, 10))
    east.register()
    lose_ledger(east)
    path = Path(wal.row.path)
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    name = {"rebuild": "rebuild", "saved": "keep_remains", "move": "move_database"}[at]
    real = getattr(rebuilt, name)

    def broken(*given: Any) -> None:
        if at == "rebuild":
            real(*given)
        raise NoSpaceError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(rebuilt, name, broken)
        with pytest.raises(NoSpaceError):
            rebuild_ledger(east.config, east.tables, LocalFiles())
    assert not (east.config.data_dir / "ledger.db").exists()
    made = rebuild_ledger(east.config, east.tables, LocalFiles())
    back = TableSite(tmp_path, "east", cluster=made.cluster, tables=east.tables)
    back.replay()
    assert sorted(row["id"] for row in back.shown(spec)) == [*range(10)]
    assert all(row.closed and row.length > 256 for row in back.ledger.files.all("h0"))
    assert not [*east.config.data_dir.glob("ledger.db.part*")]
    back.close()


def test_frames_of_every_schema_version_are_replayed_by_a_ledger_made_anew(
    sites: tuple[TableSite, TableSite, TableSpec], tmp_path: Path
) -> None:
    east, _, spec = sites
    wal = Wal(east, "w0")
    wal.append(spec, rows(0, 3))
    east.register()
    east.replay()
    wal.append(spec, rows(3, 3))
    spec = east.ledger.tables.alter(spec.uuid, lambda own: add_column(own, "more", pa.string(), "", uuid4(), 1))
    wal.append(spec, rows(6, 3).append_column("more", pa.array(["x"] * 3)))
    new, gone = keyed("ops.new", SIMPLE), keyed("ops.gone", SIMPLE)
    for made_last in (new, gone):
        east.ledger.tables.create(made_last)
    east.ledger.tables.drop(gone.uuid)
    wal.append(new, pa.table({"k": ["a"], "v": [1]}))
    lose_ledger(east)
    made = rebuild_ledger(east.config, east.tables, LocalFiles())
    assert set(made.tables) == {spec.name, "ops.new"}
    back = TableSite(tmp_path, "east", cluster=made.cluster, tables=east.tables)
    assert {version.hash for version in back.ledger.tables.schemas(spec.uuid)} >= {
        version.hash for version in spec.versions.values()
    }
    back.replay()
    assert not back.ledger.replay.quarantined()
    assert [(row["id"], row["more"]) for row in back.shown(back.ledger.tables.get(spec.name))] == [
        *((n, None) for n in range(6)),
        *((n, "x") for n in range(6, 9)),
    ]
    assert [row["k"] for row in back.shown(new)] == ["a"]
    back.close()
