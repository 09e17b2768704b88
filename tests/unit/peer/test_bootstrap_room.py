"""A bootstrap that cannot fit is refused with figures."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from peer.bootstrap.room import Room, room
from peer.status import folder_bytes
from replication import config as configuration
from replication.core.ids import ClusterId
from replication.errors import RequestError
from replication.ledger.base import FileKind
from replication.ledger.memory import MemoryLedger
from tests.sites import table

MIB = 1 << 20


def test_what_does_not_fit_is_refused_with_figures() -> None:
    Room(10 * MIB, 5 * MIB, 115 * MIB, 100 * MIB).check("ops.t")
    with pytest.raises(
        RequestError, match=r"15\.0 MiB here: 10\.0 MiB for a copy, 5\.0 MiB of WAL.*114\.0 MiB are free"
    ):
        Room(10 * MIB, 5 * MIB, 114 * MIB, 100 * MIB).check("ops.t")


def test_the_estimate_grows_with_the_table_and_with_what_is_written(tmp_path: Path) -> None:
    config = configuration.load(None, {"cluster": {"name": "east", "data_dir": str(tmp_path)}}, {})
    ledger, spec = MemoryLedger(ClusterId("east", uuid4())), table()
    assert (room(config, ledger, spec).copy_bytes, room(config, ledger, spec).wal_bytes) == (0, 0)
    folder = config.warehouse_dir / "ops" / "flights" / "data"
    folder.mkdir(parents=True)
    (folder / "file.parquet").write_bytes(bytes(MIB))
    alone = room(config, ledger, spec)
    assert alone.copy_bytes >= 2 * MIB and alone.wal_bytes == 0 and alone.free_bytes > 0
    file = ledger.files.allocate("h0", FileKind.WAL, str(tmp_path), "boot", "w").file
    ledger.files.close(file, 600 * MIB)
    ledger.landing.register_own(file, 256, 600 * MIB, [])
    assert room(config, ledger, spec).wal_bytes > MIB
    ledger.close()


def test_a_folder_that_cannot_be_looked_at_takes_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "file").write_bytes(b"12345")
    (tmp_path / "broken").symlink_to("nowhere")
    assert folder_bytes(tmp_path) - (tmp_path / "broken").lstat().st_size == 5
    assert folder_bytes(tmp_path / "gone") == folder_bytes(tmp_path / ("x" * 300)) == 0
