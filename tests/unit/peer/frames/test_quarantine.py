"""The copy of a quarantined frame is durable before the ledger counts the frame as applied."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID, uuid4

import pytest

from peer.frames.decode import FrameRef
from peer.frames.hosts import HostReader, Hosts
from peer.frames.quarantine import Quarantine
from replication.core.ids import ClusterId, FileId
from replication.files.local import LocalFiles
from tests.fakes.ledger import MemoryLedger

EAST = ClusterId("east", UUID(int=1))


def test_the_folder_of_copies_is_durable_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut would take a folder that is not, with all copies, while their files may be retired."""
    ledger = MemoryLedger(EAST)
    synced: list[str] = []
    real = LocalFiles.sync_directory

    def sync(files: LocalFiles, path: str) -> None:
        real(files, path)
        synced.append(path)

    def record(call: str) -> None:
        if call == "replay.quarantine":
            assert {str(tmp_path), str(tmp_path / "quarantine")} <= {*synced}

    monkeypatch.setattr(LocalFiles, "sync_directory", sync)
    (tmp_path / "1.wal").write_bytes(b"0123456789")
    file = FileId(EAST, "h0", 1)
    frame = FrameRef(str(tmp_path / "1.wal"), file, 2, 7, uuid4(), file, "default", 0, b"")
    quarantine = Quarantine(tmp_path / "quarantine", ledger.replay)
    ledger.fault = record
    for _ in range(2):  # again after a crash between copy and ledger
        quarantine.add(frame, "why", HostReader(Hosts()))
    (kept,) = ledger.replay.quarantined()
    assert Path(kept.copy).read_bytes() == b"23456" and quarantine.holds(file, 2)
