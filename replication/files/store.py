"""Remote stores: files in any store that fsspec supports (``s3://…``, ``file://…``, ``hdfs://…``).

An object is whole or does not exist: it is written under another name, checked by size, and moved. On a local file
system an object and its name are durable when ``put`` returns. Elsewhere the store determines the durability.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from replication.errors import LockedFileError, MissingFileError, NoSpaceError, StorageError
from replication.files.local import FULL, LocalFiles, path_errors, write_whole
from replication.log import redact

_PIECE = 8 << 20
_LOCK_S = 30.0
_LOCK_ASK_S = 0.02
_in_process = threading.Lock()  # drivers whose exclusive creation is atomic only among processes


def is_stored(path: str) -> bool:
    """Whether a path is the address of an object, not a file of this host."""
    return "://" in path


def direct(url: str) -> dict[str, Any]:
    """What fsspec's driver of an address is opened with: S3 follows no redirect, a server of SFTP must be known."""
    if url.startswith(("sftp://", "ssh://")):
        from replication.files.known_hosts import KNOWN_HOSTS  # deferred: paramiko may be missing

        return {"host_key_policy": KNOWN_HOSTS}
    if not url.startswith(("s3://", "s3a://")):
        return {}
    from replication.files.s3_direct import DirectSession  # deferred: s3fs may be missing

    return {"config_kwargs": {"http_session_cls": DirectSession}}


class RemoteStore:
    """Objects below one address. Safe for threads if fsspec's driver is."""

    def __init__(self, url: str) -> None:
        import fsspec.implementations.local  # deferred: most processes use no store

        self.url = url.rstrip("/")
        with _store_errors(url):
            self._fs: Any
            self._fs, self._root = fsspec.implementations.local.LocalFileSystem(), os.path.abspath(self.url)
            if self.url.startswith(("file://", "local://")):
                self._root = self._path(self.url)  # url_to_fs takes :: for the end of an address
            elif is_stored(url):
                self._fs, self._root = fsspec.core.url_to_fs(self.url, **direct(self.url))
        self._is_local = isinstance(self._fs, fsspec.implementations.local.LocalFileSystem)

    def put(self, path: str, name: str) -> str:
        """Copy a file of this host to ``name``, replacing any object there; return the object's address.

        Raises:
            MissingFileError: the host has no such file.
            StorageError: the object was not written whole.
        """
        address = self.address(name)
        with path_errors(path, "read"), open(path, "rb") as source, self._placed(name, ".part") as part:
            with self._fs.open(part, "wb") as copy:
                for piece in _pieces(source, path_errors(path, "read")):
                    copy.write(piece)
                size = source.tell()
            written = int(self._fs.size(part))
            if written != size:
                raise StorageError(f"{address} has {written} of {size} bytes", "Check the store")
        return address

    def write(self, name: str, content: bytes) -> None:
        """Write ``content`` to ``name``, replacing any object there. The object is whole or as it was."""
        if self._is_local:
            self._write_local(name, content, os.replace)
            return
        with self._placed(name, f".{uuid4().hex}.part") as part:
            self._fs.pipe_file(part, content)

    def create(self, name: str, content: bytes) -> bool:
        """Write an object whole; False, and nothing changed, if the name is taken. Only local files and S3 are sure."""
        if self._is_local:
            return self._write_local(name, content, os.link)
        target = f"{self._root}/{name}"
        with _store_errors(self.address(name)), _in_process:
            try:
                self._fs.makedirs(os.path.dirname(target), exist_ok=True)
                self._fs.pipe_file(target, content, mode="create")
            except Exception as error:
                if not _is_taken(error):
                    raise
                return False
        return True

    def _write_local(self, name: str, content: bytes, place: Callable[[Path, Path], None]) -> bool:
        file = Path(f"{self._root}/{name}")
        self._make_folder_of(str(file))
        with path_errors(str(file), "write"):
            try:
                write_whole(file, content, place=place)
            except FileExistsError:
                return False
        return True

    @contextmanager
    def _placed(self, name: str, suffix: str) -> Iterator[str]:
        """The path at which an object is written; afterwards it is moved to its name, durably."""
        target = f"{self._root}/{name}"
        with _store_errors(self.address(name)):
            self._make_folder_of(target)
            yield target + suffix
            self._sync(target + suffix)
            self._fs.mv(target + suffix, target)
            self._sync(os.path.dirname(target))

    def load(self, name: str) -> bytes | None:
        """Return an object's content; None when there is none."""
        try:
            with _store_errors(self.address(name)):
                self._fs.invalidate_cache()
                return bytes(self._fs.cat_file(f"{self._root}/{name}"))
        except MissingFileError:
            return None

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold the lock ``name`` during the block: among processes of a shared file system, or by an object elsewhere.

        Raises:
            LockedFileError: the lock's object stayed there for ``_LOCK_S``.
        """
        target = f"{self._root}/{name}"
        if self._is_local:
            with _store_errors(target):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                lock = open(target, "ab")  # noqa: SIM115  closed below, outside the translation of its errors
            with lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
            return
        deadline = time.monotonic() + _LOCK_S
        while not self.create(name, b""):
            if time.monotonic() >= deadline:
                raise LockedFileError(
                    f"{self.address(name)} stayed locked for {_LOCK_S:g} s",
                    "Another process is writing there; if none is, one was killed while it wrote: delete that object",
                )
            threading.Event().wait(_LOCK_ASK_S)
        try:
            yield
        finally:
            self.remove(self.address(name))

    def get(self, address: str, path: str) -> None:
        """Copy an object to a file of this host. Its content is durable on return; its name is not.

        Raises:
            MissingFileError: the object is not in the store.
            NoSpaceError: this host's disk is full.
        """
        with _store_errors(address):
            source = self._fs.open(self._path(address), "rb")
        with source, path_errors(path, "write"), open(path, "wb") as copy:
            for piece in _pieces(source, _store_errors(address)):
                copy.write(piece)
            copy.flush()
            os.fsync(copy.fileno())

    def read(self, address: str, begin: int, end: int) -> bytes:
        """Return the bytes ``[begin, end)`` of an object; fewer if it ends before ``end``."""
        with _store_errors(address):
            try:
                return bytes(self._fs.cat_file(self._path(address), start=begin, end=end))
            except OSError:  # some stores refuse a range that begins past the end
                if begin < int(self._fs.size(self._path(address))):
                    raise
                return b""

    def size(self, address: str) -> int:
        """Return the length of an object in bytes."""
        with _store_errors(address):
            return int(self._fs.size(self._path(address)))

    def names(self, below: str) -> list[str]:
        """Return the names, relative to the store, of the objects directly below a prefix; empty if it is missing."""
        with _store_errors(f"{self.url}/{below}"):
            self._fs.invalidate_cache()
            try:
                paths = self._fs.ls(f"{self._root}/{below}", detail=False)
            except FileNotFoundError:
                return []
        return sorted(f"{below}/{os.path.basename(path)}" for path in paths)

    def remove(self, *addresses: str) -> None:
        """Delete objects, those that exist."""
        folders = set[str]()
        with _store_errors(self.url):
            for address in addresses:
                with suppress(FileNotFoundError):
                    self._fs.rm_file(self._path(address))
                    folders.add(os.path.dirname(self._path(address)))
            for folder in folders:
                self._sync(folder)

    def address(self, name: str) -> str:
        """Return the address of the object ``name``."""
        return f"{self.url}/{name}"

    def _path(self, address: str) -> str:
        return str(self._fs._strip_protocol(address))

    def _make_folder_of(self, target: str) -> None:
        folder = os.path.dirname(target)
        if self._is_local:
            LocalFiles().make_directory(folder)
        else:
            self._fs.makedirs(folder, exist_ok=True)

    def _sync(self, path: str) -> None:
        if self._is_local:
            LocalFiles().sync_directory(path)


def store_of(address: str) -> RemoteStore:
    """Return the store of an object's address, to read and remove the object."""
    return RemoteStore(address.rpartition("/")[0])


def _pieces(source: Any, errors: AbstractContextManager[None]) -> Iterator[bytes]:
    """The content of an open file; ``errors`` translates those of reading it."""
    with errors:
        while piece := source.read(_PIECE):
            yield piece


def _is_taken(error: BaseException | None) -> bool:
    """Whether a driver, or S3 somewhere in a chain of errors, says that the object exists."""
    while error is not None:
        taken = ("PreconditionFailed", "ConditionalRequestConflict")
        if isinstance(error, FileExistsError) or any(word in str(error) for word in taken):
            return True
        error = error.__cause__
    return False


@contextmanager
def driver_errors(store: str) -> Iterator[None]:
    """Raise what a driver of fsspec raises as StorageError: each driver has its own errors."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        what = redact(f"{store} failed: {type(error).__name__}: {error}")[:500]
        if getattr(error, "errno", None) in FULL:
            raise NoSpaceError(what, "Make room and run it again") from error
        hint = "Check the connection, the credentials, and that the driver is installed: an extra such as walship[s3]"
        raise StorageError(what, hint if is_stored(store) else "Check the folder and its permissions") from error


@contextmanager
def _store_errors(address: str) -> Iterator[None]:
    with driver_errors(f"the store at {address}"):
        try:
            yield
        except FileNotFoundError:
            remedy = "Restore it in the store, or salvage the file: walship wal salvage"
            raise MissingFileError(f"{redact(address)} is in the ledger, but not in the store", remedy) from None
