"""Identifies a file during its import: the SHA-256 of its bytes, and a fingerprint that detects a change."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from replication.errors import RequestError

_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class FileFingerprint:
    """A file's size in bytes, and the attributes that change when it is written or replaced."""

    size: int
    modified_ns: int
    inode: int

    @staticmethod
    def of(opened: int) -> FileFingerprint:
        """Return the current fingerprint of the file open as descriptor ``opened``."""
        stat = os.fstat(opened)
        return FileFingerprint(stat.st_size, stat.st_mtime_ns, stat.st_ino)

    def check(self, path: Path) -> None:
        """Raise RequestError when the file at ``path`` was changed or replaced."""
        try:
            now = os.stat(path)
        except OSError as error:
            raise RequestError(f"{path} cannot be read: {error.strerror}", "Check the path") from None
        if FileFingerprint(now.st_size, now.st_mtime_ns, now.st_ino) != self:
            raise RequestError(
                f"{path} changed during its import; none of it was kept", "Import it when it no longer changes"
            )


def check_regular(path: str | Path) -> None:
    """Raise RequestError for a pipe or a device: of its bytes, rows and hash would each get a part."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise RequestError(
            f"{path} is a pipe or a device, and an import reads its file twice",
            "Save it as a file first; or: walship write, which reads once",
        )


class FileDigest:
    """Hashes a file in its own thread. A context manager; leaving it stops and joins the thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._leaving = threading.Event()
        self._thread = ThreadPoolExecutor(1, "import-digest")
        self._batch_id = self._thread.submit(self._hash)

    def __enter__(self) -> FileDigest:
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        self._thread.shutdown()

    @property
    def is_ready(self) -> bool:
        """Whether ``batch_id`` returns without waiting."""
        return self._batch_id.done()

    def batch_id(self) -> str:
        """Wait for the hash; return the batch id: ``sha256:`` and 64 hexadecimal digits.

        Raises:
            RequestError: the file could not be read to its end.
        """
        return self._batch_id.result()

    def _hash(self) -> str:
        digest = sha256()
        try:
            with open(self._path, "rb", buffering=0) as file:
                while (piece := file.read(_READ_BYTES)) and not self._leaving.is_set():
                    digest.update(piece)
        except OSError as error:
            raise RequestError(f"{self._path} cannot be read: {error.strerror or error}", "Check the file") from None
        return f"sha256:{digest.hexdigest()}"
