"""The cluster's credential in a data directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replication.coordination.access import FILE_NAME, keep_access, read_access


def test_roles_that_start_together_never_read_half_a_credential_nor_does_who_starts_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, synced, seen = os.fsync, list[int](), list[object]()

    def fsync(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        seen.append(read_access(tmp_path, "/walship/east"))  # another role reads
        sync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    made = keep_access(tmp_path, "/walship/east", "east", lambda given: given)
    assert seen == [None, made] and read_access(tmp_path, "/walship/east") == made
    assert synced == [path.stat().st_ino for path in (tmp_path / FILE_NAME, tmp_path)], "content, then name"
    assert [file.name for file in tmp_path.iterdir()] == [FILE_NAME]
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
