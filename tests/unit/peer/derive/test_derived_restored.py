"""Derived tables of a cluster that was restored, and gets back from a peer what it wrote after the backup."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from peer.repair.reincarnate import reincarnate
from peer.repair.saved_copy import copied
from replication.core.definition.schema import TableSpec
from replication.core.frame import FILE_HEADER_BYTES, FrameView
from replication.ledger.base import BatchPart, FileKind, Landed, LandedPart
from replication.ledger.sql.ledger import open_ledger
from tests.deriving import DerivingSite
from tests.fakes.tables import MemoryTables
from tests.frames_on_disk import registered
from tests.unit.peer.derive.test_derived import PUBLIC, people, rows, shown

pytestmark = pytest.mark.heavy


def derived_frames(site: DerivingSite, spec: TableSpec) -> list[tuple[FrameView, bytes]]:
    """The frames of a derived table, as a peer has them."""
    found: list[tuple[FrameView, bytes]] = []
    for row in site.ledger.files.all():
        if row.kind is FileKind.WAL:
            content, frames = registered(row)
            found += [(each, content[each.begin : each.end]) for each in frames if each.header.table == spec.uuid]
    return found


def land(site: DerivingSite, frames: list[tuple[FrameView, bytes]]) -> None:
    """A peer sends them back."""
    wal = frames[0][0].header.wal
    with copied(site.config, site.ledger, site.files, wal, frames) as made:
        end = made.claims[-1].end
        headers = [view.header for view, _ in frames]
        parts = [LandedPart(h.table, h.batch_id, BatchPart.of(h), h.role_epoch, h.commit_hi) for h in headers]
        place = (FILE_HEADER_BYTES, end, wal, FILE_HEADER_BYTES, end)
        site.ledger.registration.register([Landed(made.row.file, *place, made.claims, parts=tuple(parts))])
        site.ledger.files.close(made.row.file, end)


def test_batches_from_after_the_backup_take_no_place_of_later_ones(tmp_path: Path) -> None:
    with ExitStack() as stack:
        east = DerivingSite(tmp_path, "east", stack)
        east.ledger.tables.create(spec := people())
        wal = east.wal()
        public = east.define("ops.public", "ops.people", "select", PUBLIC)
        wal.append(spec, rows((1, "ann", 5)))
        east.derive(public)
        east.back_up(tmp_path / "backup", backup := MemoryTables())
        east.define("ops.public", options={"where": "n < 1000"})
        for number in (2, 3, 4):
            wal.append(spec, rows((number, "bob", 6)))
            east.derive(public)
        at_peer = derived_frames(east, public)[1:]
        shutil.rmtree(east.config.data_dir)
        shutil.copytree(tmp_path / "backup", east.config.data_dir)
        ledger = open_ledger(east.config.ledger_url)
        ledger.time.register_writer("w0", "h0", 1, east.boot, 1)
        ledger.close()
        new = reincarnate(east.config).now
        back = DerivingSite(tmp_path, "east", stack, cluster=new, tables=backup)
        land(back, at_peer)
        back.wal("w9").append(spec, rows((5, "eve", 7)))
        back.derive(public)
        assert shown(back, public) == [(1, None, 5), (5, None, 7)]
