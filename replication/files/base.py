"""What walship asks of a file system: files that grow at their end, and say when that is durable.

Implemented for POSIX (``local.py``) and in memory with the paths a disk fails (``memory.py``). A path is text.
Everything
that fails raises StorageError: NoSpaceError for a full disk or quota, MissingFileError and LockedFileError by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from replication.errors import NoSpaceError, StorageError

Buffer = bytes | bytearray | memoryview


class AppendFile(Protocol):
    """An open file. Not safe for threads, but for ``read``."""

    path: str

    def write(self, parts: Sequence[Buffer]) -> int:
        """Write ``parts`` at the position, move it, and return how many bytes were taken: maybe not all, never 0."""

    def position(self) -> int:
        """Where the next write goes."""

    def seek(self, position: int) -> None:
        """Write there next."""

    def read(self, begin: int, end: int) -> bytes:
        """The bytes ``[begin, end)``, fewer where the file ends before."""

    def size(self) -> int:
        """Length of the file in bytes, reserved ones included."""

    def reserve(self, end: int) -> None:
        """Have disk blocks ready up to ``end``, read as zeros until written; does nothing where that cannot be done."""

    def truncate(self, length: int) -> None:
        """Cut (or fill with zeros) to ``length`` and write there next. Durable after ``sync``."""

    def sync(self) -> None:
        """What was written is on the disk when this returns. After a failure, believe nothing of unsynced bytes."""

    def lock(self) -> None:
        """Hold the file against other holders until ``close`` or the process ends; LockedFileError when it is held."""

    def close(self) -> None:
        """Close the file and release its lock. Idempotent."""


class Files(Protocol):
    """A file system."""

    def create(self, path: str) -> AppendFile:
        """A new, empty file; StorageError when one is there. Its name is durable after ``sync_directory``."""

    def open(self, path: str) -> AppendFile:
        """An existing file for reading and writing, positioned at 0; MissingFileError when there is none."""

    def exists(self, path: str) -> bool:
        """Whether a file or directory is there."""

    def names(self, directory: str) -> list[str]:
        """Names in a directory, sorted; empty when there is no such directory."""

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents, durably; nothing happens when it is there."""

    def rename(self, old: str, new: str) -> None:
        """Replace ``new`` by ``old`` in one step. Durable after ``sync_directory``."""

    def remove(self, path: str) -> None:
        """Delete a file; nothing happens when there is none. Durable after ``sync_directory``."""

    def sync_directory(self, path: str) -> None:
        """Names made, renamed and removed in the directory are on the disk when this returns."""

    def map_words(self, path: str, count: int, *, create: bool) -> memoryview:
        """``count`` unsigned 64-bit words of a file, shared by all who map it; a store of one is never seen torn.

        ``create`` makes the file anew, all zeros. Release the view when done.
        Where the disk is read-only, those of a file that is there can be read only.

        Raises:
            MissingFileError: there is no such file, or it is shorter.
        """

    def sync_words(self, path: str, words: memoryview) -> None:
        """What was stored in words that ``map_words`` gave of ``path`` is on the disk when this returns."""


def reserve(file: AppendFile, written: int, end: int, ahead: int) -> int:
    """Have the disk keep room for a file up to ``end``, and ``ahead`` bytes more if it has them; how far it does.

    Raises:
        NoSpaceError: it has no room up to ``end``; what may lie past ``written`` is cut.
    """
    try:
        file.reserve(end + ahead)
        return end + ahead
    except NoSpaceError:  # the last bytes of a disk can be used too
        file.truncate(written)
        file.reserve(end)
        return end


def append(file: AppendFile, parts: Sequence[Buffer]) -> int:
    """Write all of ``parts`` at the position, however few bytes each write takes; returns how many that were.

    Raises:
        StorageError: a write failed; some bytes may have been written past the position before.
    """
    total = sum(len(part) for part in parts)
    written = file.write(parts)
    if written == total:
        return total
    rest = [memoryview(part) for part in parts]
    done = written
    while True:
        while rest and written >= len(rest[0]):
            written -= len(rest.pop(0))
        if not rest:
            return total
        rest[0] = rest[0][written:]
        written = file.write(rest)
        if written <= 0:
            raise StorageError(f"{file.path} takes no more bytes after {done} of {total}")
        done += written
