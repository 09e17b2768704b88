"""Files in memory with the faults of a disk. Safe for threads.

A crash loses bytes and names that were not synced. A sync can fail, a write can be short, and the disk can be full. As
on Linux, after a failed sync the dirty bytes stay readable, a later sync does not write them, and a crash loses them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from posixpath import dirname

from replication.errors import LockedFileError, MissingFileError, NoSpaceError, StorageError
from replication.files.base import Buffer


@dataclass(slots=True, eq=False)
class _Inode:
    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    dirty: list[tuple[int, int]] = field(default_factory=list)
    holder: MemoryFile | None = None


@dataclass(slots=True)
class FileFaults:
    """The faults of the next calls; tests set them."""

    sync_failures: int = 0  # so many next syncs fail
    write_bytes_max: int | None = None  # of one write
    capacity_bytes: int | None = None  # of the disk
    sync_gate: threading.Event | None = None  # a sync waits until it is set, as on a slow disk


class MemoryFile:
    """An AppendFile over an inode in memory."""

    def __init__(self, files: MemoryFiles, path: str, inode: _Inode) -> None:
        self.path = path
        self._files = files
        self._inode: _Inode | None = inode
        self._at = 0

    def write(self, parts: Sequence[Buffer]) -> int:
        content = b"".join(bytes(memoryview(part).cast("B")) for part in parts)
        with self._files.lock:
            inode = self._open()
            limit = self._files.faults.write_bytes_max
            content = content[: limit if limit is not None else len(content)]
            room = self._files.room() + max(0, len(inode.content) - self._at)
            if content and room <= 0:
                raise NoSpaceError(f"no space to write {self.path}")
            content = content[:room]
            end = self._at + len(content)
            if len(inode.content) < end:
                inode.content.extend(bytes(end - len(inode.content)))
            inode.content[self._at : end] = content
            inode.dirty.append((self._at, end))
            self._at = end
            return len(content)

    def seek(self, position: int) -> None:
        self._at = position

    def read(self, begin: int, end: int) -> bytes:
        with self._files.lock:
            return bytes(self._open().content[begin:end])

    def size(self) -> int:
        with self._files.lock:
            return len(self._open().content)

    def reserve(self, end: int) -> None:
        with self._files.lock:
            inode = self._open()
            more = end - len(inode.content)
            if more > self._files.room():
                raise NoSpaceError(f"no space to reserve {self.path}")
            if more > 0:
                inode.content.extend(bytes(more))

    def truncate(self, length: int) -> None:
        with self._files.lock:
            inode = self._open()
            del inode.content[length:]
            inode.content.extend(bytes(length - len(inode.content)))
            self._at = length

    def sync(self) -> None:
        """Make dirty bytes durable. After a failed sync they no longer count as dirty."""
        gate = self._files.faults.sync_gate
        if gate is not None:
            gate.wait()
        with self._files.lock:
            inode = self._open()
            dirty, inode.dirty = inode.dirty, []
            if self._files.faults.sync_failures > 0:
                self._files.faults.sync_failures -= 1
                raise StorageError(f"cannot sync {self.path}: Input/output error")
            size = len(inode.content)
            del inode.durable[size:]
            inode.durable.extend(bytes(size - len(inode.durable)))
            for begin, end in dirty:
                inode.durable[begin : min(end, size)] = inode.content[begin:end]

    def lock(self) -> None:
        with self._files.lock:
            inode = self._open()
            if inode.holder not in (None, self):
                raise LockedFileError(f"{self.path} is held by another process")
            inode.holder = self

    def close(self) -> None:
        with self._files.lock:
            if self._inode is not None and self._inode.holder is self:
                self._inode.holder = None
            self._inode = None

    def _open(self) -> _Inode:
        if self._inode is None:
            raise StorageError(f"{self.path} is closed")
        return self._inode


class MemoryFiles:
    """Files in memory; ``crash`` drops unsynced bytes and names."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.faults = FileFaults()
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._directories: set[str] = {"", "/"}
        self._words: dict[str, bytearray] = {}
        self._durable_words: dict[str, bytes] = {}
        self._handles: list[MemoryFile] = []

    def crash(self, *, machine: bool = True, keep_bytes: int = 0) -> None:
        """End every process. With ``machine``, drop unsynced bytes, except ``keep_bytes`` of each unsynced tail.

        When only processes die, their bytes stay readable and their locks are released.
        """
        with self.lock:
            for handle in self._handles:
                handle.close()
            self._handles.clear()
            self._words = {path: bytearray(words) for path, words in self._words.items()}  # detached from old views
            if not machine:
                return
            self._names = dict(self._durable_names)
            self._words = {path: bytearray(words) for path, words in self._durable_words.items()}
            for inode in self._names.values():
                kept = inode.content[len(inode.durable) : len(inode.durable) + keep_bytes]
                inode.content = bytearray(inode.durable + kept)
                inode.durable = bytearray(inode.content)
                inode.dirty.clear()

    def room(self) -> int:
        """Return the free bytes of the disk."""
        capacity = self.faults.capacity_bytes
        return (1 << 62) if capacity is None else capacity - sum(len(inode.content) for inode in self._names.values())

    def create(self, path: str) -> MemoryFile:
        with self.lock:
            if path in self._names:
                raise StorageError(f"cannot create {path}: File exists")
            if dirname(path) not in self._directories:
                raise MissingFileError(f"cannot create {path}: there is no such directory")
            self._names[path] = _Inode()
            return self.open(path)

    def open(self, path: str) -> MemoryFile:
        with self.lock:
            inode = self._names.get(path)
            if inode is None:
                raise MissingFileError(f"cannot open {path}: it does not exist")
            handle = MemoryFile(self, path, inode)
            self._handles.append(handle)
            return handle

    def exists(self, path: str) -> bool:
        return path in self._names or path in self._directories or path in self._words

    def names(self, directory: str) -> list[str]:
        with self.lock:
            paths = [*self._names, *self._words]
        return sorted(path.rpartition("/")[2] for path in paths if dirname(path) == directory)

    def make_directory(self, path: str) -> None:
        while path not in self._directories:
            self._directories.add(path)
            path = dirname(path)

    def rename(self, old: str, new: str) -> None:
        with self.lock:
            if old not in self._names:
                raise MissingFileError(f"cannot rename {old}: it does not exist")
            self._names[new] = self._names.pop(old)

    def link(self, old: str, new: str) -> None:
        with self.lock:
            if old not in self._names:
                raise MissingFileError(f"cannot link {old}: it does not exist")
            if new in self._names:
                raise StorageError(f"cannot link {old}: {new} exists")
            self._names[new] = self._names[old]

    def remove(self, path: str) -> None:
        with self.lock:
            self._names.pop(path, None)
            self._words.pop(path, None)
            self._durable_words.pop(path, None)

    def sync_directory(self, path: str) -> None:
        with self.lock:
            kept = {p: inode for p, inode in self._durable_names.items() if dirname(p) != path}
            self._durable_names = kept | {p: inode for p, inode in self._names.items() if dirname(p) == path}

    def map_words(self, path: str, count: int, *, create: bool) -> memoryview:
        """Return a shared array. A crash of the machine loses stores since the last sync."""
        with self.lock:
            if create:
                self._words[path] = bytearray(count * 8)
            elif len(self._words.get(path, b"")) < count * 8:
                raise MissingFileError(f"cannot map {path}: it does not exist")
            return memoryview(self._words[path]).cast("Q")

    def sync_words(self, path: str, words: memoryview) -> None:
        with self.lock:
            if self.faults.sync_failures > 0:
                self.faults.sync_failures -= 1
                raise StorageError(f"cannot sync {path}: Input/output error")
            self._durable_words[path] = bytes(words)
