"""Copies of a cluster that speak under its id: another one's, or what it was itself before it was restored."""

from __future__ import annotations

import shutil
from pathlib import Path

from peer.repair.reincarnate import reincarnate
from replication.core.definition.schema import TableSpec
from tests.fakes.tables import MemoryTables
from tests.integration.test_restored import sites
from tests.replaying import TableSite
from tests.sites import Wal, rows
from tests.waiting import wait_until

__all__ = ["sites"]


def gone_back(site: TableSite, folder: Path, tables: MemoryTables) -> TableSite:
    """The site as it was when it was backed up to ``folder/backup``, under its old id."""
    site.close()
    shutil.rmtree(site.config.data_dir)
    shutil.copytree(folder / "backup", site.config.data_dir)
    return TableSite(folder, site.cluster.name, cluster=site.cluster, tables=tables)


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
            wait_until(lambda: west.ledger.landing.coverage(spec.uuid))
        with copy.worker():
            copy.assign(west.cluster, receiver.port)
            errors = wait_until(
                lambda: [p.error for p in copy.ledger.files.progress("west") if p.error], what="a refusal"
            )
            assert "two ledgers have had term 2" in errors[0] and "walship reincarnate" in errors[0]
    west.send_to(original, spec)
    with original.receiver() as receiver, west.worker():
        west.assign(original.cluster, receiver.port)
        wait_until(lambda: original.ledger.landing.routes())
    with copy.receiver() as receiver, west.worker():
        Wal(west, "w9").append(spec, rows(7, 1))
        west.assign(original.cluster, receiver.port)
        wait_until(lambda: any("one a copy of the other" in p.error for p in west.ledger.files.progress("east")))
    for each in (original, copy):
        each.close()


def test_what_a_backup_wrote_under_its_old_id_is_told_by_peers_that_had_another_file_of_that_name(
    sites: tuple[TableSite, TableSite, TableSpec], tmp_path: Path
) -> None:
    east, west, spec = sites
    east.send_to(west, spec)
    backup = MemoryTables()
    east.back_up(tmp_path / "backup", backup)
    with west.receiver() as receiver:
        with east.worker():
            Wal(east, "w0").append(spec, rows(0, 1))
            east.assign(west.cluster, receiver.port)
            wait_until(lambda: west.ledger.landing.coverage(spec.uuid), what="the row at west")
        copy = gone_back(east, tmp_path, backup)
        Wal(copy, "w0").append(spec, rows(100, 1))
        copy.register()
        copy.ledger.time.register_writer("w0", "h0", 1, copy.boot, 1)
        copy.close()
        back = TableSite(tmp_path, "east", cluster=reincarnate(east.config).now, tables=backup)
        with back.worker():
            back.assign(west.cluster, receiver.port)
            (kept,) = wait_until(lambda: west.ledger.replay.quarantined(), what="the other history to be told")
    assert kept.table == spec.uuid and "claimed with another hash" in kept.reason
    back.close()


def test_a_backup_that_goes_on_under_its_old_id_is_told_although_its_peer_knows_no_other_mark(
    sites: tuple[TableSite, TableSite, TableSpec], tmp_path: Path
) -> None:
    east, west, spec = sites
    east.send_to(west, spec)
    backup = MemoryTables()
    east.back_up(tmp_path / "backup", backup)
    with west.receiver() as receiver:
        with east.worker():
            Wal(east, "w0").append(spec, rows(0, 1))
            east.assign(west.cluster, receiver.port)
            wait_until(lambda: west.ledger.landing.coverage(spec.uuid), what="the row at west")
        (newest,) = west.ledger.landing.newest(east.cluster)
        assert newest.number >= max(row.file.number for row in east.ledger.files.all())
        copy = gone_back(east, tmp_path, backup)
        with copy.worker():
            copy.assign(west.cluster, receiver.port)
            (error,) = wait_until(
                lambda: [p.error for p in copy.ledger.files.progress("west") if p.error], what="a refusal"
            )
    assert f"west knew file {newest.local}" in error and "walship reincarnate" in error
    Wal(copy, "w0").append(spec, rows(100, 1))
    assert copy.ledger.files.overtaken(west.cluster) == newest  # also when its number has been given
    copy.close()


def test_a_peer_that_goes_on_from_a_backup_is_told_by_who_sends_to_it(
    sites: tuple[TableSite, TableSite, TableSpec], tmp_path: Path
) -> None:
    """What it acked since would be missing there for good: the sender has no reason to send it again."""
    east, west, spec = sites
    east.send_to(west, spec)
    backup = MemoryTables()
    with east.worker():
        with west.receiver() as receiver:
            east.assign(west.cluster, receiver.port)
            west.back_up(tmp_path / "backup", backup)
            Wal(east, "w0").append(spec, rows(0, 1))
            wait_until(lambda: west.ledger.landing.coverage(spec.uuid), what="the row at west")
            wait_until(lambda: east.ledger.files.last_seen_by(west.cluster), what="its ack in the ledger")
        copy = gone_back(west, tmp_path, backup)
        with copy.receiver() as receiver:
            east.assign(west.cluster, receiver.port)

            def told() -> str:
                return next((p.error for p in east.ledger.files.progress("west") if "one a copy" in p.error), "")

            error = wait_until(told, what="a refusal")
            (acked,) = east.ledger.files.last_seen_by(west.cluster)
            assert f"it acked bytes of file {acked.local} but no longer knows that file" in error
            assert "on it: walship reincarnate" in error
            assert not copy.ledger.landing.coverage(spec.uuid)
    copy.close()
