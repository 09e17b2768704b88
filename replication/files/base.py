"""The protocols of a file system: files that grow at their end, with explicit durability.

Implemented over POSIX (``local.py``), and in memory with the faults of a disk (``memory.py``). A path is text. Every
failure raises StorageError or a subclass: NoSpaceError for a full disk or quota, MissingFileError, LockedFileError.
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
        """Write ``parts`` at the position and move it; how many bytes were written: maybe not all, never 0."""

    def position(self) -> int:
        """Where the next write goes."""

    def seek(self, position: int) -> None:
        """Write there next."""

    def read(self, begin: int, end: int) -> bytes:
        """The bytes ``[begin, end)``; fewer if the file ends before."""

    def size(self) -> int:
        """Length of the file in bytes, with reserved bytes."""

    def reserve(self, end: int) -> None:
        """Reserve disk blocks up to ``end``, which read as zeros; does nothing where the system cannot do that."""

    def truncate(self, length: int) -> None:
        """Cut (or fill with zeros) to ``length`` and write there next. Durable after ``sync``."""

    def sync(self) -> None:
        """Everything written is durable on return. After a failure, nothing is known of the unsynced bytes."""

    def lock(self) -> None:
        """Lock the file until ``close`` or the end of the process; LockedFileError when another holds the lock."""

    def close(self) -> None:
        """Close the file and release its lock. Idempotent."""


class Files(Protocol):
    """A file system."""

    def create(self, path: str) -> AppendFile:
        """A new, empty file; StorageError when it exists. Its name is durable after ``sync_directory``."""

    def open(self, path: str) -> AppendFile:
        """An existing file for reading and writing, positioned at 0; MissingFileError when there is none."""

    def exists(self, path: str) -> bool:
        """Whether a file or directory exists."""

    def names(self, directory: str) -> list[str]:
        """Names in a directory, sorted; empty when there is no such directory."""

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents, durably. Does nothing when it exists."""

    def rename(self, old: str, new: str) -> None:
        """Replace ``new`` by ``old`` in one step. Durable after ``sync_directory``."""

    def remove(self, path: str) -> None:
        """Delete a file. Does nothing when there is none. Durable after ``sync_directory``."""

    def sync_directory(self, path: str) -> None:
        """Names made, renamed and removed in the directory are durable on return."""

    def map_words(self, path: str, count: int, *, create: bool) -> memoryview:
        """``count`` unsigned 64-bit words of a file, shared by every process that maps it.

        A store of one word is never seen torn. ``create`` makes the file, or fills it with zeros. On a read-only disk
        the words can only be read. Release the view when done.

        Raises:
            MissingFileError: there is no such file, or it is shorter.
        """

    def sync_words(self, path: str, words: memoryview) -> None:
        """What was stored in ``words``, which ``map_words`` gave for ``path``, is durable on return."""


def reserve(file: AppendFile, written: int, end: int, ahead: int) -> int:
    """Reserve room for a file up to ``end``, and ``ahead`` bytes more if the disk has them; the end of the reservation.

    Raises:
        NoSpaceError: there is no room up to ``end``. The file is then cut to ``written``.
    """
    try:
        file.reserve(end + ahead)
        return end + ahead
    except NoSpaceError:  # without ``ahead``, the last bytes of a disk can be used too
        file.truncate(written)
        file.reserve(end)
        return end


def append(file: AppendFile, parts: Sequence[Buffer]) -> int:
    """Write all of ``parts`` at the position, in as many writes as it takes; how many bytes that were.

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
