"""What ``status`` says of what holds a time, and of files that are not where they were."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from peer.status.unreadable import unreadable
from replication.core.routes.freshness import named
from tests.origin import OriginWal, new_ledger
from tests.tables_made import keyed


def test_what_holds_a_time_names_its_table() -> None:
    table, other = uuid4(), uuid4()
    held_by = f"landed but not applied: sequences [0, 3) of WAL east/h0/0, table {table}, group 'default'"
    told = named(held_by, {other: "ops.other", table: "ops.flights"})
    assert told == "landed but not applied: sequences [0, 3) of WAL east/h0/0, table ops.flights, group 'default'"


def test_files_of_a_moved_data_directory_are_not_to_be_given_up(tmp_path: Path) -> None:
    was, now = tmp_path / "east", tmp_path / "elsewhere"
    was.mkdir()
    ledger = new_ledger(tmp_path)
    spec = keyed("ops.one")
    ledger.tables.create(spec)
    wal = OriginWal(ledger, was / "wal")
    wal.frame(spec.uuid, "default", bytes(32), b"x", 1)
    wal.register()
    rows = ledger.files.all()
    assert unreadable(ledger, rows, rows[0].host, was, None) == []
    was.rename(now)
    (moved,) = unreadable(ledger, rows, rows[0].host, now, None)
    assert f"It is {now / wal.path.relative_to(was)} now" in moved.remedy and "salvage" not in moved.remedy
    (now / wal.path.relative_to(was)).unlink()
    (gone,) = unreadable(ledger, rows, rows[0].host, now, None)
    assert "salvage" in gone.remedy
