"""Files kept in a store that fsspec knows (``s3://…``, ``file://…``, ``hdfs://…``) instead of on the host's disk.

An object is whole or not there: it is written beside its name, compared in size, and then moved. On a local file system
it is durable, name included, when ``put`` returns; elsewhere as the store promises.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from replication.errors import MissingFileError, StorageError

_PIECE = 8 << 20


def is_stored(path: str) -> bool:
    """Whether a path is an object's address rather than a file of this host."""
    return "://" in path


class RemoteStore:
    """Objects below one address. Safe for threads as far as fsspec's driver is."""

    def __init__(self, url: str) -> None:
        import fsspec  # deferred: most processes never spill

        self.url = url.rstrip("/")
        with _translated(url):
            self._fs: Any
            self._fs, self._root = fsspec.core.url_to_fs(self.url)
        self._is_local = "file" in self._protocols()

    def put(self, path: str, name: str) -> str:
        """Copy a file of this host to ``name``, in the place of any that is there; the object's address.

        Raises:
            StorageError: it is not there whole.
        """
        target = f"{self._root}/{name}"
        part = f"{target}.part"
        with _translated(f"{self.url}/{name}"):
            self._fs.makedirs(os.path.dirname(target), exist_ok=True)
            size = 0
            with open(path, "rb") as source, self._fs.open(part, "wb") as copy:
                while piece := source.read(_PIECE):
                    copy.write(piece)
                    size += len(piece)
            self._sync(part)
            written = int(self._fs.size(part))
            if written != size:
                raise StorageError(f"{self.url}/{name} has {written} of {size} bytes", "Look at the store")
            self._fs.mv(part, target)
            self._sync(os.path.dirname(target))
        return f"{self.url}/{name}"

    def get(self, address: str, path: str, sync: Callable[[int], None] = os.fsync) -> None:
        """Bring an object back to a file of this host, durably but for its name."""
        with _translated(address), self._fs.open(self._path(address), "rb") as source, open(path, "wb") as copy:
            while piece := source.read(_PIECE):
                copy.write(piece)
            copy.flush()
            sync(copy.fileno())

    def read(self, address: str, begin: int, end: int) -> bytes:
        """The bytes ``[begin, end)`` of an object, fewer where it ends before."""
        with _translated(address):
            try:
                return bytes(self._fs.cat_file(self._path(address), start=begin, end=end))
            except OSError:  # some stores refuse a range that begins past the end
                if begin < int(self._fs.size(self._path(address))):
                    raise
                return b""

    def size(self, address: str) -> int:
        """Length of an object in bytes."""
        with _translated(address):
            return int(self._fs.size(self._path(address)))

    def names(self, below: str) -> list[str]:
        """Names of the objects directly below a prefix, relative to the store; none when there is no such prefix."""
        with _translated(f"{self.url}/{below}"):
            self._fs.invalidate_cache()
            try:
                found = self._fs.ls(f"{self._root}/{below}", detail=False)
            except FileNotFoundError:
                return []
        return sorted(f"{below}/{os.path.basename(path)}" for path in found)

    def remove(self, address: str) -> None:
        """Delete an object; nothing happens when it is gone."""
        with _translated(address):
            try:
                self._fs.rm_file(self._path(address))
            except FileNotFoundError:
                return

    def address(self, name: str) -> str:
        """Where ``name`` is or would be."""
        return f"{self.url}/{name}"

    def _path(self, address: str) -> str:
        return str(self._fs._strip_protocol(address))

    def _protocols(self) -> tuple[str, ...]:
        protocol = self._fs.protocol
        return (protocol,) if isinstance(protocol, str) else tuple(protocol)

    def _sync(self, path: str) -> None:
        if self._is_local:
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


def store_of(address: str) -> RemoteStore:
    """The store that an object's address is in, for reading and removing it."""
    return RemoteStore(address.rpartition("/")[0])


@contextmanager
def _translated(address: str) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except FileNotFoundError:
        remedy = "Restore it there, or salvage the file: walship wal salvage"
        raise MissingFileError(f"{address} is not there, though the ledger knows it", remedy) from None
    except Exception as error:  # each driver raises what it likes
        raise StorageError(
            f"the store at {address} failed: {type(error).__name__}: {error}"[:500],
            "Is it reachable, and are its driver and credentials there? See walship's extras",
        ) from error
