"""Clusters that come back from a backup, or with nothing."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from peer.repair import newer_files, on_disk
from peer.repair import reincarnate as reincarnating
from peer.repair.reincarnate import reincarnate
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId
from replication.core.routes.freshness import ClosedNotice
from replication.errors import ConfigError, RequestError
from replication.ledger.base import FileKind, FileRow, Phase
from replication.ledger.sql.ledger import open_ledger
from replication.ledger.sql.parts.commits import SqlCommitSteps
from replication.ledger.sql.parts.registration import SqlRegistration
from replication.worker.files.control_log import ControlLog
from shell.processes.preflight import check_ledger_age
from tests.fakes.tables import MemoryTables
from tests.replaying import TableSite
from tests.sites import Wal, rows, table
from tests.tables_made import SIMPLE, keyed
from tests.waiting import wait_until


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
        source.keeper.run_once()
        target.replay()
        live = all(phase is Phase.LIVE for phase in source.phases(target.cluster.name))
        return live and target.tables.exists(spec.name) and len(target.shown(spec)) == count

    wait_until(done, what=f"{count} rows at {target.cluster.name}")


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[tuple[TableSite, TableSite, TableSpec]]:
    east, west, spec = TableSite(tmp_path, "east"), TableSite(tmp_path, "west"), table()
    east.ledger.tables.create(spec)
    yield east, west, spec
    west.close()


def restored(east: TableSite, tmp_path: Path, backup: MemoryTables) -> tuple[ClusterId, TableSite]:
    """East as it was when it was backed up, under a new id; its id before, and the new site."""
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
    return old, back


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
    old, back = restored(east, tmp_path, backup)
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
            wait_until(
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


class Killed(BaseException):
    """The process ends here."""


def kill_at(patched: pytest.MonkeyPatch, place: str, after: bool) -> None:
    """End the process before or after the first call of a function that takes newer files up."""
    owners = {
        "adopt": newer_files,
        "save_whole": newer_files,
        "keep_damaged": on_disk,
        "register_own": SqlRegistration,
        "finish": SqlCommitSteps,
        "change_id": reincarnating,
    }
    real = getattr(owners[place], place)

    def killed(*args: Any, **named: Any) -> None:
        if after:
            real(*args, **named)
        raise Killed(place)

    patched.setattr(owners[place], place, killed)


def restore_only_the_ledger(east: TableSite, spec: TableSpec, log: TableSpec) -> tuple[FileRow, Wal, Wal]:
    """Write while a backup of the ledger is taken and after, then restore it.

    Return the control log of the backup, a WAL with a table of after the backup, and one with a torn end.
    """
    late = table("ops.late")
    east.ledger.tables.create(log)
    Wal(east, "w0").append(spec, rows(0, 10))
    control = ControlLog(east.ledger, east.files, str(east.config.wal_dir), "h0", east.boot)
    control.append(ClosedNotice(1, ()).encode(), 1, 0)
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
    return open_then, mixed, torn


@pytest.mark.parametrize("place", ["", "adopt", "save_whole", "keep_damaged", "register_own", "finish", "change_id"])
@pytest.mark.parametrize("after", [False, True])
def test_a_ledger_restored_beside_newer_files_takes_them_up(
    sites: tuple[TableSite, TableSite, TableSpec],
    tmp_path: Path,
    place: str,
    after: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As PostgreSQL's backup is: the database is old, the hosts' disks are not. Killed anywhere, it is run again."""
    east, _, spec = sites
    log = keyed("ops.log", SIMPLE, ())
    open_then, mixed, torn = restore_only_the_ledger(east, spec, log)
    east.close()
    with (
        closing(open_ledger(east.config.ledger_url)) as ledger,
        pytest.raises(ConfigError, match="older than the files"),
    ):
        check_ledger_age(east.config, ledger)
    if place:
        with monkeypatch.context() as patched, pytest.raises(Killed):
            kill_at(patched, place, after)
            reincarnate(east.config)
        with closing(open_ledger(east.config.ledger_url)) as ledger:
            for stored in ledger.steps.sequences():  # the killed process is seen to be gone
                ledger.steps.release(stored.owner, [stored.id])
    done = reincarnate(east.config)
    saved_before = after and place in ("save_whole", "keep_damaged") or place in ("finish", "change_id")
    if place not in ("finish", "change_id") or place == "finish" and not after:
        assert done.taken_up == 2
    assert len(done.kept_beside) == (0 if saved_before else 1)
    for line in done.kept_beside:
        assert "table that is younger than the ledger" in line and "1 of 2 frames saved" in line
        assert str(east.config.data_dir / "quarantine") in line
    back = TableSite(tmp_path, "east", cluster=done.now, tables=east.tables)
    check_ledger_age(back.config, back.ledger)
    assert back.ledger.files.get(open_then.file) is None
    back.replay()
    assert not back.ledger.replay.pending()
    assert sorted(row["id"] for row in back.shown(spec)) == [*range(15), *range(20, 25)]
    assert [row["k"] for row in back.shown(log)] == ["a", "a", "b"]
    assert not Path(mixed.path).exists() and len(list((back.config.data_dir / "quarantine").iterdir())) == 1
    assert back.ledger.steps.sequences() == []
    assert {row.kind for row in back.ledger.files.all()} == {FileKind.LANDING}
    assert Wal(back, "w9").file.number > torn.file.number
    back.close()
