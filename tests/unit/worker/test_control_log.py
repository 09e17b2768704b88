"""Control files: on a full disk nothing is left behind, however often one is tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from replication.core.frame import Kind
from replication.errors import NoSpaceError
from replication.files.memory import MemoryFiles
from replication.worker.control_log import ControlLog
from tests.contract.ledger_stores import at


def test_a_control_file_that_could_not_be_made_is_tried_again_under_its_number(tmp_path: Path) -> None:
    files = MemoryFiles()
    files.faults.capacity_bytes = 8
    with at(f"sqlite:///{tmp_path}/ledger.db") as stores:
        control = ControlLog(stores.ledger, files, "/data/wal", "h0", "boot")
        for _ in range(3):
            with pytest.raises(NoSpaceError):
                control.append(Kind.CLOSED, b"x", 1, 1)
            assert files.names("/data/wal") == []
        files.faults.capacity_bytes = None
        control.append(Kind.CLOSED, b"x", 2, 1)
        assert [row.file.number for row in stores.ledger.files.all("h0", open_only=True)] == [0]
        assert files.names("/data/wal") == ["000000000000.len", "000000000000.wal"]
        control.close()
