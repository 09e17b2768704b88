"""Files on a real disk whose machine can die: what was never synced is lost, and syncs fail when told."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

from replication.errors import StorageError
from replication.files.base import Buffer
from replication.files.local import LocalFile, LocalFiles


class FaultyFile(LocalFile):
    """A file that tells ``FaultyFiles`` what was synced of it."""

    def __init__(self, files: FaultyFiles, path: str, fd: int) -> None:
        super().__init__(path, fd)
        self._files = files

    def write(self, parts: Sequence[Buffer]) -> int:
        """Now and then short."""
        if len(parts) > 1 and self._files.chance.random() < 0.05:
            parts = parts[:1]
        return super().write(parts)

    def reserve(self, end: int) -> None:
        """Disks of simulations are large enough."""

    def sync(self) -> None:
        """Nothing is asked of the disk: the simulated machine decides what it keeps."""
        if self._files.chance.random() < self._files.sync_failures:
            raise StorageError(f"cannot sync {self.path}: Input/output error")
        self._files.synced[os.fstat(self._fd).st_ino] = os.lseek(self._fd, 0, os.SEEK_CUR)

    def close(self) -> None:
        """Let go."""
        self._files.handles.discard(self)
        super().close()


class FaultyFiles(LocalFiles):
    """One process's view of a machine's files; ``crash`` ends the process, ``lose`` what the machine's death takes.

    Args:
        chance: where the faults come from.
        synced: the machine's, shared by its processes: bytes synced by inode.
    """

    def __init__(self, chance: random.Random, synced: dict[int, int]) -> None:
        self.chance = chance
        self.synced = synced
        self.sync_failures = 0.0
        self.handles: set[FaultyFile] = set()

    def create(self, path: str) -> FaultyFile:
        """As ``LocalFiles``."""
        return self._faulty(super().create(path))

    def open(self, path: str) -> FaultyFile:
        """As ``LocalFiles``."""
        return self._faulty(super().open(path))

    def sync_directory(self, path: str) -> None:
        """Names are kept."""

    def crash(self) -> None:
        """The process is gone, and with it its locks."""
        for handle in list(self.handles):
            handle.close()

    def _faulty(self, handle: LocalFile) -> FaultyFile:
        made = FaultyFile(self, handle.path, handle._fd)
        self.handles.add(made)
        return made


def lose(directory: str, synced: dict[int, int], chance: random.Random) -> None:
    """What a machine's death takes from a directory: unsynced tails, all or in part, sometimes with rubbish."""
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        if not name.endswith(".wal"):
            continue
        status: Any = os.stat(path)
        kept = min(synced.get(status.st_ino, 0), status.st_size)
        torn = chance.randrange(status.st_size - kept + 1)
        with open(path, "r+b") as file:
            if torn and chance.random() < 0.5:
                file.seek(kept + torn // 2)
                file.write(chance.randbytes(torn - torn // 2))
            file.truncate(kept + torn)
