"""How bytes reach the disk on macOS, whose calls are replaced by fakes here."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from replication.errors import StorageError
from replication.files import local
from replication.files.base import append

FULL_SYNC = 51  # F_FULLFSYNC in <sys/fcntl.h> there


class Drive:
    """Notes what was flushed how, and fails as told."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.flushed: list[str] = []
        self.synced: list[str] = []
        self.fails_with = 0
        patch.setattr("replication.files.local.sys.platform", "darwin")
        patch.setattr("replication.files.local.fcntl.fcntl", self.fcntl)
        patch.setattr("replication.files.local.os.fsync", lambda fd: self.synced.append(self.name(fd)))
        patch.setattr("replication.files.local.os.fdatasync", lambda fd: pytest.fail("macOS has no fdatasync"))

    @staticmethod
    def name(fd: int) -> str:
        return os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))

    def fcntl(self, fd: int, command: int) -> int:
        assert command == FULL_SYNC
        if self.fails_with:
            raise OSError(self.fails_with, os.strerror(self.fails_with))
        self.flushed.append(self.name(fd))
        return 0


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="descriptors are named by Linux's /proc")
def test_files_and_folders_are_flushed_out_of_the_drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drive, files, path = Drive(monkeypatch), local.LocalFiles(), f"{tmp_path}/1.wal"
    handle = files.create(path)
    append(handle, [b"bytes"])
    handle.sync()
    files.sync_directory(str(tmp_path))
    assert drive.flushed == ["1.wal", tmp_path.name] and not drive.synced
    drive.fails_with = errno.ENOTSUP
    handle.sync()
    assert drive.synced == ["1.wal"], "a share that knows no such call has what it has"
    drive.fails_with = errno.EIO
    with pytest.raises(StorageError):
        handle.sync()
    handle.close()
