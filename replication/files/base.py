"""The protocols of a file system: files that grow at their end, with explicit durability.

Implemented over POSIX (``local.py``). Paths are strings. Every failure raises StorageError or a subclass: NoSpaceError
for a full disk or quota, MissingFileError, LockedFileError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from replication.errors import NoSpaceError, StorageError

Buffer = bytes | bytearray | memoryview


class AppendFile(Protocol):
    """An open file. Only ``read`` is safe for threads."""

    path: str

    def write(self, parts: Sequence[Buffer]) -> int:
        """Write ``parts`` at the position and move it. Return the bytes written: possibly not all, never 0."""

    def seek(self, position: int) -> None:
        """Set the offset of the next write."""

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes ``[begin, end)``; fewer if the file ends before ``end``."""

    def size(self) -> int:
        """Return the length of the file in bytes, reserved bytes included."""

    def reserve(self, end: int) -> None:
        """Reserve disk blocks up to ``end``; they read as zeros. Does nothing on systems that cannot reserve."""

    def truncate(self, length: int) -> None:
        """Cut, or extend with zeros, to ``length``; the next write goes there. Durable after ``sync``."""

    def sync(self) -> None:
        """Make everything written durable. After a failure, unsynced bytes may or may not be durable."""

    def lock(self) -> None:
        """Lock the file until ``close`` or the end of the process; LockedFileError when another holds the lock."""

    def close(self) -> None:
        """Close the file and release its lock. Idempotent."""


class Files(Protocol):
    """A file system."""

    def create(self, path: str) -> AppendFile:
        """Create an empty file. Raises StorageError when it exists. Its name is durable after ``sync_directory``."""

    def open(self, path: str) -> AppendFile:
        """Open an existing file for reading and writing, at position 0. Raises MissingFileError when it is missing."""

    def exists(self, path: str) -> bool:
        """Whether a file or directory exists."""

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted; empty when the directory does not exist."""

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents, durably. Does nothing when it exists."""

    def rename(self, old: str, new: str) -> None:
        """Rename ``old`` to ``new``, atomically; replace ``new`` if it exists. Durable after ``sync_directory``."""

    def link(self, old: str, new: str) -> None:
        """Give a file the name ``new``, too. Raises StorageError when that name exists. Durable as ``rename``."""

    def remove(self, path: str) -> None:
        """Delete a file, if it exists. Durable after ``sync_directory``."""

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in the directory durable."""

    def map_words(self, path: str, count: int, *, create: bool) -> memoryview:
        """Map ``count`` unsigned 64-bit words of a file, shared by every process that maps it.

        A store of one word is atomic. ``create`` creates the file, or fills it with zeros. On a read-only disk the
        words are read-only. Release the view when done.

        Raises:
            MissingFileError: the file does not exist, or is shorter.
        """

    def sync_words(self, path: str, words: memoryview) -> None:
        """Make the stored ``words`` durable; ``map_words`` returned them for ``path``."""


def reserve(file: AppendFile, written: int, end: int, ahead: int) -> int:
    """Reserve space up to ``end``, and ``ahead`` bytes more if the disk has them; return the end of the reservation.

    Raises:
        NoSpaceError: there is no space up to ``end``. The file was cut to ``written``.
    """
    try:
        file.reserve(end + ahead)
        return end + ahead
    except NoSpaceError:  # retry without ``ahead``, to use the last bytes of a disk
        file.truncate(written)
        file.reserve(end)
        return end


def append(file: AppendFile, parts: Sequence[Buffer]) -> int:
    """Write all of ``parts`` at the position, in several writes if needed; return the number of bytes.

    Raises:
        StorageError: a write failed. Some bytes may be written past the earlier position.
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
