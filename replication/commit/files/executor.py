"""Does steps over files; each may be repeated. On a local disk the names are durable on return."""

from __future__ import annotations

import os
from typing import Any

from replication.commit.files.checker import FileChecker
from replication.errors import MissingFileError, StorageError


class FileExecutor:
    """Changes an fsspec file system."""

    def __init__(self, fs: Any) -> None:
        self._fs = fs

    def rename(self, source: str, target: str, length: int, digest: str, *, replace: bool) -> None:
        """Move the file of that length and hash from ``source`` to ``target``.

        Raises:
            MissingFileError: it is not at the source.
            StorageError: another file is at the source, or at the target and is not to be replaced.
        """
        if not self._fs.exists(source):
            raise MissingFileError(f"{source} is neither there nor at {target}", "Write it again, with a new sequence")
        if not FileChecker(self._fs).rename(source, length, digest):
            raise StorageError(
                f"{source} is not the file that was to be published: its length or hash differs",
                "Write it again, with a new sequence",
            )
        if not replace and self._fs.exists(target):
            raise StorageError(f"another file is at {target}", "Move it away, then: walship ops retry")
        made = self._made_directories(os.path.dirname(target))
        self._fs.mv(source, target)
        self._sync(*made, os.path.dirname(source))

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with everything in it; nothing happens when it does not exist."""
        if self._fs.exists(path):
            self._fs.rm(path, recursive=True)
            self._sync(os.path.dirname(path.rstrip("/")))

    def _made_directories(self, path: str) -> list[str]:
        """Make a directory; return it and those above it up to the first that existed."""
        above = [path]
        while not self._fs.exists(above[-1]) and os.path.dirname(above[-1]) != above[-1]:
            above.append(os.path.dirname(above[-1]))
        self._fs.makedirs(path, exist_ok=True)
        return above

    def _sync(self, *directories: str) -> None:
        from fsspec.implementations.local import LocalFileSystem

        if isinstance(self._fs, LocalFileSystem):
            for directory in directories:
                fd = os.open(self._fs._strip_protocol(directory) or ".", os.O_RDONLY)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
