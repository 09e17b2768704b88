"""Any store that fsspec has a driver for, below one address."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import ROOT, RelativePath
from replication.datasets.stores.base import Entry, EntryKind, FileWriter, SmallFile, TreeChanges, Uploads, read_whole
from replication.datasets.stores.drivers import Driver, MemoryDriver, ObjectDriver, SftpDriver, WholeObject
from replication.error_text import one_line
from replication.errors import ChangedFileError, ReplicationError, RequestError, StorageError, UnsafeNameError
from replication.log import get, redact

_log = get(__name__)
_OBJECTS = {"gs", "gcs", "abfs", "az", "oss"}


class FsspecStore:
    """Files below one address. ``options`` of fsspec's driver, such as a user and a password, are never shown.

    Raises:
        RequestError: the address of one store has ``::`` in it.
        StorageError: the driver is missing, or the store does not answer.
    """

    def __init__(self, url: str, options: dict[str, Any] | None = None) -> None:
        import fsspec  # deferred: most commands use no store

        self.url = redact(url.rstrip("/"))
        protocol = fsspec.utils.get_protocol(url)
        if "::" in url and type(driver_of(protocol)) is not Driver:  # it would be opened as the folder before that
            what = f"{self.url} has :: in it, where fsspec ends an address"
            raise RequestError(what, "Name a folder without it, and a host by its name or an IPv6 address in full")
        try:
            self._driver = driver_of(protocol)
            given = dict(options or {})
            if not self._driver.is_shared:
                given["skip_instance_cache"] = True  # an instance of fsspec's cache may be closed by another store
            self._first, self._root = self._driver.opened(url, given)
            self._driver.begin(self._first)
        except ReplicationError:
            raise
        except Exception as error:  # each driver has its own errors
            raise StorageError(
                f"the store at {self.url} cannot be opened: {redact(one_line(error))}"[:500],
                "Check the address, the credentials, and that the driver is installed: an extra such as walship[s3]",
            ) from None
        self.traits = self._driver.traits
        self._root = self._root.rstrip("/")
        self._opened_by = (url, dict(options or {}))
        self._local = threading.local()
        self._local.fs = self._first
        self._lock = threading.Lock()
        self._made = [self._first]
        self._owners = {id(self._first): threading.current_thread()}

    def __reduce__(self) -> tuple[type[FsspecStore], tuple[str, dict[str, Any]]]:
        """Pickled by its address, with the credentials; it opens connections of its own where it is loaded."""
        url, options = self._opened_by
        return FsspecStore, (url, {**options, "skip_instance_cache": True})

    def boot(self) -> str:
        return self._driver.boot(self._fs, self._root)

    @property
    def uploads(self) -> Uploads | None:
        return self._driver.uploads(self._fs, self.address)

    @property
    def _fs(self) -> Any:
        """The connection of this thread; a new one if the server has ended it, or it failed."""
        if self._driver.is_shared:
            return self._first
        fs = self._local.fs = getattr(self._local, "fs", None) or self._left()
        if fs is None or not self._driver.is_alive(fs):
            self._local.fs = self._renewed(fs)
        return self._local.fs

    def _left(self) -> Any:
        """The connection of a thread that has ended, which is this thread's from now on; None if there is none."""
        with self._lock:
            for fs in self._made:
                if not self._owners[id(fs)].is_alive():
                    self._owners[id(fs)] = threading.current_thread()
                    return fs
        return None

    def _renewed(self, lost: Any) -> Any:
        """A new connection, in place of one that is lost."""
        first = self._first
        made = type(first)(*first.storage_args, **{**first.storage_options, "skip_instance_cache": True})
        self._driver.begin(made)
        with self._lock:
            self._made = [*(fs for fs in self._made if fs is not lost), made]
            self._owners.pop(id(lost), None)
            self._owners[id(made)] = threading.current_thread()
        if lost is not None:
            _log.info("connection_renewed", store=self.url)
            with suppress(Exception):
                self._driver.drop(lost)
        return made

    def address(self, path: RelativePath) -> str:
        """A path as the driver takes it."""
        return f"{self._root}/{self._driver.named(path)}" if path else self._root or "/"

    def scan(self, folder: RelativePath) -> Iterator[Entry]:
        at = self.address(folder)
        for info in self._driver.entries(self._fs, at):
            told = str(info["name"])
            has_name = not told.endswith("//")  # as objects in S3 need not
            name = told.rstrip("/").rpartition("/")[2] if has_name else ""
            if has_name and (not name or told.rstrip("/") == at):
                continue  # an object that stands for the folder
            try:
                path = folder.child(name)
            except UnsafeNameError as error:
                yield Entry(EntryKind.OTHER, None, error.what, folder.shown_child(name))
                continue
            yield self._driver.entry(path, info)

    def status(self, path: RelativePath) -> Entry | None:
        try:
            return self._driver.entry(path, self._driver.info(self._fs, self.address(path)))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def changes_since(self, snapshot: str) -> TreeChanges:
        return TreeChanges.of(self._driver.changed(self._fs, self.address(ROOT), snapshot))

    def open(self, file: FileAttributes) -> _FsspecReader:
        """Open a file for reading, by the thread that will read."""
        return _FsspecReader(self, file, self._driver.open_reader(self._fs, self.address(file.path), file.size))

    def create(self, path: RelativePath, file: CopyableFile, size: int) -> FileWriter:
        """A new file, written front to back by this thread, or in ranges where the store takes them."""
        if size >= 0 and self.traits.writes_ranges:
            return self._driver.open_ranges(self._fs, self.address(path), file, size)
        opened = self._driver.open_writer(self._fs, self.address(path), file)
        return _FsspecWriter(opened, lambda: self._driver.give(self._fs, self.address(path), file))

    def write_small(self, path: RelativePath, file: CopyableFile, data: bytes) -> None:
        self._driver.write(self._fs, self.address(path), file, data)
        self._driver.give(self._fs, self.address(path), file)

    def write_batch(self, files: Sequence[SmallFile]) -> None:
        if self.traits.batch_bytes:
            self._driver.write_batch(self._fs, [(self.address(path), file, data) for path, file, data in files])
            return
        for each in files:
            self.write_small(*each)

    def read_batch(self, files: Sequence[FileAttributes]) -> list[bytes]:
        if self.traits.batch_bytes:
            return self._driver.read_batch(self._fs, [(self.address(file.path), file) for file in files])
        return [read_whole(self, file) for file in files]

    def make_folder(self, path: RelativePath) -> None:
        self._driver.make_folder(self._fs, self.address(path))

    def move(self, origin: RelativePath, destination: RelativePath) -> None:
        self._driver.move(self._fs, self.address(origin), self.address(destination))

    def keep(self, path: RelativePath, kept: RelativePath) -> None:
        self._driver.keep(self._fs, self.address(path), self.address(kept))

    def give_folder(self, path: RelativePath, like: FileAttributes) -> None:
        self._driver.give_folder(self._fs, self.address(path), like)

    def remove_files(self, paths: Sequence[RelativePath]) -> None:
        there = paths if self._driver.removes_absent else [path for path in paths if self.status(path) is not None]
        self._driver.remove(self._fs, [self.address(path) for path in there])

    def remove_folder(self, path: RelativePath) -> None:
        assert path, "the root is never removed"
        with suppress(FileNotFoundError):
            entries = [(entry.kind, entry.attributes.path) for entry in self.scan(path) if entry.attributes is not None]
            for kind, found in entries:
                if kind is EntryKind.FOLDER:
                    self.remove_folder(found)
            files = [self.address(found) for kind, found in entries if kind is not EntryKind.FOLDER]
            self._driver.remove(self._fs, files)
            self._driver.remove_folder(self._fs, self.address(path))

    def remove_folder_if_empty(self, path: RelativePath) -> None:
        with suppress(Exception):  # each driver has its own error for a folder that is not empty
            if next(self.scan(path), None) is None:
                self._driver.remove_folder(self._fs, self.address(path))

    def sync(self, paths: Iterable[RelativePath]) -> None:
        self._driver.sync(self._fs, [self.address(path) for path in paths])

    def sync_all(self) -> None:
        self._driver.sync_all(self._fs, self._root)

    def reread(self, path: RelativePath, begin: int, size: int) -> bytes:
        return self._driver.reread(self._fs, self.address(path), begin, size)

    def close(self) -> None:
        for fs in self._made:
            with suppress(Exception):  # the connection may be broken
                self._driver.close(fs)

    def __enter__(self) -> FsspecStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _FsspecReader:
    def __init__(self, store: FsspecStore, file: FileAttributes, opened: Any) -> None:
        self._store, self._file, self._opened = store, file, opened
        self._at = 0

    def read(self, begin: int, size: int) -> bytes:
        if begin != self._at:
            self._opened.seek(begin)
        parts, have = [], 0
        while have < size:  # some drivers return less than they have
            part = self._opened.read(size - have)
            if not part:
                break
            parts.append(part)
            have += len(part)
        self._at = begin + have
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, begin: int, view: memoryview) -> int:
        data = self.read(begin, len(view))
        view[: len(data)] = data
        return len(data)

    def check_unchanged(self) -> None:
        if isinstance(self._opened, WholeObject) and len(self._opened.getbuffer()) == self._file.size:
            return  # one answer of the store is of one version
        self.close()  # a connection answers only after the transfer
        found = self._store.status(self._file.path)
        if found is None or found.attributes is None or not self._file.is_same_content_as(found.attributes):
            raise ChangedFileError(f"{self._file.path} changed while it was copied", "It is copied by the next run")

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None


class _FsspecWriter:
    def __init__(self, opened: Any, give: Any) -> None:
        self._opened, self._give = opened, give

    def write(self, begin: int, data: bytes | memoryview) -> None:
        self._opened.write(data)

    def finish(self) -> None:
        if hasattr(self._opened, "finish"):
            self._opened.finish()
        self.close()
        self._give()

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()


def driver_of(protocol: str) -> Driver:
    """What stores of a protocol do otherwise than fsspec."""
    if protocol == "ftp":
        from replication.datasets.stores.ftp import FtpDriver  # deferred: rarely used

        return FtpDriver()
    if protocol in ("http", "https"):
        from replication.datasets.stores.http import HttpDriver  # likewise

        return HttpDriver(is_secure=protocol == "https")
    if protocol in ("s3", "s3a"):
        from replication.datasets.stores.s3 import S3Driver  # likewise

        return S3Driver()
    if protocol == "walship":
        from replication.datasets.stores.peer import PeerDriver  # likewise

        return PeerDriver()
    if protocol == "webhdfs":
        from replication.datasets.stores.hdfs import WebHdfsDriver  # likewise

        return WebHdfsDriver()
    if protocol in _OBJECTS:
        return ObjectDriver()
    known: dict[str, type[Driver]] = {"memory": MemoryDriver, "sftp": SftpDriver, "ssh": SftpDriver}
    return known.get(protocol, Driver)()
