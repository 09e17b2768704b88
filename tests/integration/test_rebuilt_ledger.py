"""Ledgers that were lost, and are made anew from tables and files."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pyarrow as pa
import pytest

from peer.repair import on_disk
from peer.repair import rebuild as rebuilt
from peer.repair.quarantine_actions import retry
from peer.repair.rebuild import damage_lines, rebuild_ledger
from replication.core.definition.alter import add_column, add_group
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId, StreamId
from replication.core.routes.freshness import ClosedNotice
from replication.core.succession import Succession
from replication.errors import NoSpaceError, RequestError
from replication.files.frames import save_frame
from replication.files.local import LocalFiles
from replication.ledger.base import Quarantined
from replication.tables.catalog.catalog import IcebergCatalog, catalog_properties
from replication.tables.spark.iceberg import IcebergTables
from replication.wall_clock import now_us
from tests.fakes.tables import MemoryTables
from tests.integration.test_restored import connect, send, settle, sites
from tests.noted import note_closed
from tests.replaying import TableSite
from tests.sites import Wal, rows, table
from tests.tables_made import SIMPLE, keyed

__all__ = ["sites"]


def lose_ledger(site: TableSite) -> None:
    site.close()
    for left in site.config.data_dir.glob("ledger.db*"):
        left.unlink()


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


def test_after_a_lost_catalog_tables_have_what_files_have_and_are_not_held(
    sites: tuple[TableSite, TableSite, TableSpec], tmp_path: Path
) -> None:
    east, _, spec = sites
    Wal(east, "w0").append(spec, rows(0, 10))
    east.register()
    east.replay()
    lose_ledger(east)
    made = rebuild_ledger(east.config, MemoryTables(), LocalFiles())
    back = TableSite(tmp_path, "east", cluster=made.cluster, tables=MemoryTables())
    assert back.replay().held == {}
    assert len(back.shown(spec)) == 10
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
    assert back.ledger.time.register_writer("w1", "h0", 1, back.boot, 1) >= ahead
    note_closed(back.ledger, east.cluster, ClosedNotice(1, ()))
    listed = back.ledger.successions.coverage_after(east.cluster, 0)
    assert listed == back.ledger.landing.coverage() != {}, "nobody knows how new the frames of the lost file were"
    back.close()


@pytest.mark.parametrize("is_retired", [False, True])
def test_quarantined_frames_and_lost_writes_are_not_applied_by_a_ledger_made_anew_and_not_forgotten(
    sites: tuple[TableSite, TableSite, TableSpec], tmp_path: Path, is_retired: bool
) -> None:
    """The successions that left lost writes out are known again only once a peer tells them."""
    east, _, spec = sites
    Wal(east, "w0").append(spec, rows(0, 3))
    east.register()
    east.replay()
    late = Wal(east, "w1")
    late.append(spec, rows(10, 2))
    east.register()
    copies = east.config.data_dir / "quarantine"
    copy = save_frame(LocalFiles(), str(copies), late.row.file, 256, Path(late.path).read_bytes()[256 : late.length])
    kept = Quarantined(late.row.file, 256, late.length, spec.uuid, "late", copy, 5, succession="east -> west, epoch 2")
    east.ledger.replay.quarantine(kept, (StreamId(late.row.file, spec.uuid, "default"), 0))
    lose_ledger(east)
    if is_retired:
        Path(late.path).unlink()
    made = rebuild_ledger(east.config, east.tables, LocalFiles())
    (line,) = damage_lines(made)
    back = TableSite(tmp_path, "east", cluster=made.cluster, tables=east.tables)
    back.replay()
    assert sorted(row["id"] for row in back.shown(spec)) == [0, 1, 2]
    again = back.ledger.replay.quarantined()
    if is_retired:
        assert not again and line.startswith("the folder quarantine has copies of 1 frame whose files are gone")
    else:
        assert "stay in quarantine: once the peers are defined again, walship quarantine retry" in line
        retry(back.config, back.ledger, LocalFiles(), *again)
        back.replay()
        assert sorted(row["id"] for row in back.shown(spec)) == [0, 1, 2, 10, 11]
    back.close()


def test_rows_from_after_an_old_failover_do_not_count_as_left_out_by_it_in_a_ledger_made_anew(
    sites: tuple[TableSite, TableSite, TableSpec], tmp_path: Path
) -> None:
    """East was ACTIVE again by the time that it wrote them."""
    east, west, spec = sites
    Wal(east, "w0").append(spec, rows(0, 3))
    east.register()
    east.replay()
    failed_over = now_us()
    lose_ledger(east)
    made = rebuild_ledger(east.config, east.tables, LocalFiles())
    back = TableSite(tmp_path, "east", cluster=made.cluster, tables=east.tables)
    for epoch, at, count in ((2, failed_over, 0), (4, now_us(), 1)):
        told = Succession(east.cluster, west.cluster, epoch, at, is_planned=False)
        assert back.ledger.successions.landed_beyond(back.ledger.successions.record(told)) == count
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
    name = {"rebuild": "rebuild", "saved": "keep_damaged", "move": "move_database"}[at]
    module = on_disk if at == "saved" else rebuilt
    real = getattr(module, name)

    def broken(*given: Any) -> None:
        if at == "rebuild":
            real(*given)
        raise NoSpaceError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(module, name, broken)
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


@pytest.mark.parametrize("name", ["ops.flights", "ops.Flights"])
def test_a_ledger_made_anew_has_the_table_that_took_the_name_of_a_dropped_one(
    sites: tuple[TableSite, TableSite, TableSpec], tmp_path: Path, name: str
) -> None:
    east, _, spec = sites
    other = keyed("ops.other", SIMPLE)
    east.ledger.tables.create(other)
    old, new = Wal(east, "w0"), Wal(east, "w1")
    old.append(spec, rows(0, 10))
    east.register()
    east.replay()
    old.append(spec, rows(10, 10))  # of the dropped table alone, and not replayed
    east.ledger.tables.drop(spec.uuid)
    fresh = table(name)
    east.ledger.tables.create(fresh)
    new.append(fresh, rows(50, 3))
    new.append(other, pa.table({"k": ["a"], "v": [1]}))
    lose_ledger(east)
    made = rebuild_ledger(east.config, east.tables, LocalFiles())
    assert set(made.tables) == {name, other.name} and not made.unsure and not made.damaged
    back = TableSite(tmp_path, "east", cluster=made.cluster, tables=east.tables)
    assert back.replay().held == {}
    assert [row["id"] for row in back.shown(fresh)] == [50, 51, 52]
    assert [row["k"] for row in back.shown(other)] == ["a"]
    assert {row.file.number for row in back.ledger.files.retirable("h0")} == {old.file.number, new.file.number}
    back.close()


def test_what_a_ledger_made_anew_cannot_know_is_told_and_no_frame_of_it_counts_as_applied(
    sites: tuple[TableSite, TableSite, TableSpec], tmp_path: Path
) -> None:
    """A table that only the catalog has may have been dropped; frames of one without a definition wait for it."""
    east, _, spec = sites
    new, undefined = keyed("ops.new", SIMPLE), keyed("ops.undefined", SIMPLE)
    wal = Wal(east, "w0")
    wal.append(spec, rows(0, 10))
    east.register()
    east.replay()
    east.ledger.tables.drop(spec.uuid)
    for made_last in (new, undefined):
        east.ledger.tables.create(made_last)
        wal.append(made_last, pa.table({"k": ["a"], "v": [1]}))
    (east.config.data_dir / "schemas" / f"{undefined.uuid}.table").unlink()
    content = Path(wal.path).read_bytes()
    lose_ledger(east)
    made = rebuild_ledger(east.config, east.tables, LocalFiles())
    assert set(made.tables) == {spec.name, new.name} and made.unsure == (spec.name,)
    (told,) = made.damaged
    assert "frames of a table that is not defined any more" in told and "2 of 3 frames saved" in told
    assert any(path.read_bytes() == content for path in (east.config.data_dir / "quarantine").iterdir())
    assert any("walship droptable ops.flights" in line for line in damage_lines(made))
    back = TableSite(tmp_path, "east", cluster=made.cluster, tables=east.tables)
    back.replay()
    assert [row["k"] for row in back.shown(new)] == ["a"] and len(back.shown(spec)) == 10
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


def test_a_ledger_is_made_anew_beside_rows_of_another_engine_and_a_group_that_tables_do_not_have_yet(
    tmp_path: Path,
) -> None:
    catalog = IcebergCatalog(catalog_properties(tmp_path / "tables"))
    east = TableSite(tmp_path, "east", tables=IcebergTables(catalog, cast(Any, None)))
    spec, log = table(), keyed("ops.log", SIMPLE, ())
    for each in (spec, log):
        east.ledger.tables.create(each)
    wal = Wal(east, "w0")
    wal.append(spec, rows(0, 3))
    wal.append(log, pa.table({"k": ["a"], "v": [1]}))
    east.register()
    east.replay()
    shape = catalog.load(log.name).schema().as_arrow()
    catalog.load(log.name).append(pa.Table.from_pylist([{"k": "by another engine", "v": 2}], shape))
    east.ledger.tables.alter(spec.uuid, partial(add_group, name="more", columns=[("m", pa.int64(), uuid4())], now=5))
    lose_ledger(east)
    made = rebuild_ledger(east.config, catalog, LocalFiles())
    assert made.tables == ("ops.flights", "ops.log") and made.sequences == 2 and not made.damaged
    catalog.close()


def test_a_stream_of_many_frames_is_a_few_spans_when_a_ledger_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    east, spec = TableSite(tmp_path, "east"), table()
    east.ledger.tables.create(spec)
    wals = [Wal(east, writer) for writer in ("w0", "w1")]
    for at in range(40):
        wals[at % 2].append(spec, rows(at, 1))
    wals[0].append(spec, rows(0, 40))  # replaces all rows that are folded
    east.register()
    east.replay()
    east.fold(spec)
    lose_ledger(east)
    parsed: list[str] = []
    parse = ClusterId.parse
    monkeypatch.setattr(ClusterId, "parse", lambda text: (parsed.append(text), parse(text))[1])
    made = rebuild_ledger(east.config, east.tables, LocalFiles())
    assert made.sequences == 41 and len(parsed) < 20
