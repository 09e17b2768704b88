"""A landing file never takes the place of another file."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from peer.receive.landing_file import LandingFile
from replication.core.frame import FILE_HEADER_BYTES
from replication.errors import StorageError
from replication.files.local import LocalFiles
from replication.ledger.sql import initialise, open_ledger
from tests.contract.ledger_stores import WEST, wal


def test_a_landing_file_of_a_newer_ledger_is_not_removed(tmp_path: Path) -> None:
    def land(name: str) -> LandingFile:
        initialise(url := f"sqlite:///{tmp_path}/{name}.db", WEST)
        with closing(open_ledger(url)) as ledger:
            return LandingFile.create(ledger, LocalFiles(), str(tmp_path / "landing"), "h0", "boot", wal(), 0.0)

    first = land("first")
    path = Path(first.row.path)
    land("begun anew")  # nothing had landed in it
    path.write_bytes(path.read_bytes() + b"a frame")
    with pytest.raises(StorageError, match="older than the files beside it"):
        land("begun anew again")
    assert path.stat().st_size == FILE_HEADER_BYTES + len(b"a frame")
