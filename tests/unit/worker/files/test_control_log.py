"""Control files: on a full disk nothing is left behind, and the ledger hears in the end which are closed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import ClusterId
from replication.errors import CoordinationError, NoSpaceError, StorageError
from replication.worker.files.control_log import ControlLog
from replication.writer.wal.durable_length import DurableLength
from tests.contract.ledger_stores import at
from tests.fakes.files import MemoryFiles
from tests.fakes.ledger import MemoryLedger


def test_a_control_file_that_could_not_be_made_is_tried_again_under_its_number(tmp_path: Path) -> None:
    files = MemoryFiles()
    files.faults.capacity_bytes = 8
    with at(f"sqlite:///{tmp_path}/ledger.db") as stores:
        control = ControlLog(stores.ledger, files, "/data/wal", "h0", "boot")
        for _ in range(3):
            with pytest.raises(NoSpaceError):
                control.append(b"x", 1, 1)
            assert files.names("/data/wal") == []
        files.faults.capacity_bytes = None
        control.append(b"x", 2, 1)
        assert [row.file.number for row in stores.ledger.files.all("h0", open_only=True)] == [0]
        assert files.names("/data/wal") == ["000000000000.len", "000000000000.wal"]
        control.close()


def test_frames_for_which_a_full_disk_has_no_space_take_no_file_each(tmp_path: Path) -> None:
    files = MemoryFiles()
    files.faults.capacity_bytes = FILE_HEADER_BYTES + 8
    with at(f"sqlite:///{tmp_path}/ledger.db") as stores:
        control = ControlLog(stores.ledger, files, "/data/wal", "h0", "boot")
        for _ in range(3):
            with pytest.raises(NoSpaceError):
                control.append(b"x", 1, 1)
        files.faults.capacity_bytes = None
        control.append(b"x", 2, 1)
        (row,) = stores.ledger.files.all("h0")
        assert not row.closed
        control.close()


@pytest.fixture
def ledger() -> Iterator[MemoryLedger]:
    made = MemoryLedger(ClusterId("east", UUID(int=1)))
    yield made
    made.close()


def away(name: str) -> None:
    if name == "files.close":
        raise CoordinationError("the ledger is away")


def test_a_file_that_the_ledger_could_not_be_told_is_closed_is_so_before_the_next_frame(ledger: MemoryLedger) -> None:
    control = ControlLog(ledger, MemoryFiles(), "/data/wal", "h0", "boot")
    control.roll_bytes = 1
    ledger.fault = away
    control.append(b"x", 1, 1)
    (row,) = ledger.files.all("h0")
    assert not row.closed
    ledger.fault = None
    control.append(b"x", 2, 1)
    assert all(row.closed for row in ledger.files.all("h0")) and len(ledger.files.all("h0")) == 2


@pytest.mark.parametrize("at_roll", [False, True])
def test_a_file_that_failed_while_the_ledger_was_away_is_closed_at_its_published_length(
    ledger: MemoryLedger, at_roll: bool
) -> None:
    files = MemoryFiles()
    control = ControlLog(ledger, files, "/data/wal", "h0", "boot")
    control.append(b"x", 1, 1)
    (row,) = ledger.files.all("h0")
    counters = DurableLength.open(row.path, "boot", files)
    assert counters is not None
    published = counters.length
    ledger.fault = away
    files.faults.sync_failures = 1
    if at_roll:
        control.roll()
    else:
        with pytest.raises(StorageError):
            control.append(b"x", 2, 1)
    assert counters.poisoned
    counters.close()
    ledger.fault = None
    control.append(b"x", 3, 1)
    row, after = ledger.files.all("h0")
    assert row.closed_length == published and not after.closed
    control.close()
    assert all(row.closed for row in ledger.files.all("h0"))


def test_a_year_while_a_peer_is_away_leaves_some_hundred_files(ledger: MemoryLedger) -> None:
    control, day_bytes = ControlLog(ledger, MemoryFiles(), "/data/wal", "h0", "boot"), 26_000_000
    for commit in range(1, 27):
        control.append(bytes(day_bytes // 26), commit, 1)
    control.close()
    assert 365 * len(ledger.files.all("h0")) <= 800
