"""What differs between fsspec's drivers: attributes, times, permissions, renames. ``remote.py`` uses one per store."""

from __future__ import annotations

import errno
import io
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.difference import within_sftp
from replication.core.copying.names import RelativePath
from replication.datasets.stores.base import Entry, EntryKind, FileWriter, StoreTraits, Uploads
from replication.datasets.stores.sftp_session import listed, watch
from replication.error_text import one_line
from replication.errors import RequestError
from replication.files.boot import boot_id
from replication.files.store import direct

_SECOND = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FOLDERS = {"directory", "dir"}
_BLOCK = 8 << 20
_AHEAD = 64 << 20


class Driver:
    """Any store, as fsspec's common calls have it.

    Attributes:
        traits: of its stores.
        is_shared: one connection serves several threads.
        removes_absent: a file that is not there may be removed, too.
    """

    traits = StoreTraits(is_secure=False)
    is_shared = True
    removes_absent = False
    options: dict[str, Any] = {}

    def opening(self, url: str, options: dict[str, Any]) -> dict[str, Any]:
        """What fsspec's driver is opened with, for an address with the user's options."""
        return {**self.options, **options}

    def opened(self, url: str, options: dict[str, Any]) -> tuple[Any, str]:
        """What fsspec has for an address with the user's options, and the path there."""
        import fsspec  # deferred: most commands use no store

        fs, path = fsspec.core.url_to_fs(url, **self.opening(url, options))
        return fs, str(path)

    def named(self, path: RelativePath) -> str:
        """A path as addresses have it."""
        return str(path)

    def boot(self, fs: Any, path: str) -> str:
        """See ``Store``. Most stores keep what they have taken."""
        return boot_id()

    def entries(self, fs: Any, path: str) -> Iterator[dict[str, Any]]:
        """What fsspec tells of each name in a folder."""
        fs.invalidate_cache(path)
        yield from fs.ls(path, detail=True)

    def info(self, fs: Any, path: str) -> dict[str, Any]:
        """What fsspec tells of one path; FileNotFoundError if nothing is there."""
        fs.invalidate_cache(fs._parent(path))
        return dict(fs.info(path))

    def entry(self, path: RelativePath, info: dict[str, Any]) -> Entry:
        """The entry in walship's words."""
        kind = str(info.get("type", "file"))
        if kind in ("link", "symlink") or info.get("islink"):
            return Entry(EntryKind.LINK, None, path=path)
        if kind not in _FOLDERS | {"file"}:
            return Entry(EntryKind.OTHER, None, path=path)
        is_file = kind == "file"
        attributes = FileAttributes(
            path,
            int(info.get("size") or 0) if is_file else 0,
            self.timestamp_ns(info),
            str(info.get("owner", "")),
            str(info.get("group", "")),
            self.permission(info),
            self.checksum(info) if is_file else "",
            info.get("replication") or None,
            info.get("blockSize") or None,
        )
        return Entry(EntryKind.FILE if is_file else EntryKind.FOLDER, attributes)

    def timestamp_ns(self, info: dict[str, Any]) -> int | None:
        """When the content last changed."""
        for name in ("mtime", "LastModified", "last_modified", "modified", "updated", "created"):
            found = info.get(name)
            if isinstance(found, datetime):
                found = found if found.tzinfo else found.replace(tzinfo=UTC)
                return (found - _EPOCH) // timedelta(microseconds=1) * 1000
            if isinstance(found, int | float):
                return int(found * _SECOND)
        return None

    def permission(self, info: dict[str, Any]) -> int | None:
        """The mode bits."""
        mode = info.get("mode")
        return mode & 0o7777 if isinstance(mode, int) else None

    def checksum(self, info: dict[str, Any]) -> str:
        """What identifies the content."""
        etag = info.get("ETag") or info.get("etag") or info.get("md5Hash")
        return f"etag:{str(etag).strip(chr(34))}" if etag else ""

    def changed(self, fs: Any, path: str, snapshot: str) -> Iterator[tuple[str, bool]]:
        """Paths below one that differ from a snapshot's, and whether each is new. RequestError if that is not known."""
        raise RequestError("this store has no snapshots", "Copy without --since-snapshot")

    def open_reader(self, fs: Any, path: str, size: int) -> Any:
        """A file object to read from."""
        return fs.open(path, "rb", block_size=_BLOCK, cache_type="readahead")

    def open_writer(self, fs: Any, path: str, file: CopyableFile) -> Any:
        """A file object to write to, front to back; if it has a ``finish``, there is no file before that."""
        return fs.open(path, "wb", block_size=_BLOCK)

    def open_ranges(self, fs: Any, path: str, file: CopyableFile, size: int) -> FileWriter:
        """A file whose ranges are written in any order, where the traits say so."""
        raise NotImplementedError

    def reread(self, fs: Any, path: str, begin: int, size: int) -> bytes:
        """What the store has of a file."""
        with closing(self.open_reader(fs, path, begin + size)) as opened:
            opened.seek(begin)
            return bytes(opened.read(size))

    def write(self, fs: Any, path: str, file: CopyableFile, data: bytes) -> None:
        """A whole small file."""
        fs.pipe_file(path, data)

    def write_batch(self, fs: Any, files: Sequence[tuple[str, CopyableFile, bytes]]) -> None:
        """Several whole small files, where the traits say so."""
        raise NotImplementedError

    def read_batch(self, fs: Any, files: Sequence[tuple[str, FileAttributes]]) -> list[bytes]:
        """Their contents, likewise; an error if one is not as it was listed."""
        raise NotImplementedError

    def make_folder(self, fs: Any, path: str) -> None:
        """Make a folder, and those above it."""
        fs.makedirs(path, exist_ok=True)

    def move(self, fs: Any, origin: str, destination: str) -> None:
        """Move a file, replacing another. fsspec's own move would take a name with * in it for a pattern."""
        if getattr(fs.mv, "__qualname__", "") == "AbstractFileSystem.mv":
            fs.cp_file(origin, destination)
            fs.rm_file(origin)
        else:
            fs.mv(origin, destination)

    def keep(self, fs: Any, path: str, kept: str) -> None:
        """Have a file under another name before it is replaced."""
        self.move(fs, path, kept)

    def uploads(self, fs: Any, address: Callable[[RelativePath], str]) -> Uploads | None:
        """How files are uploaded in parts; ``address`` is a path as the driver takes it."""
        return None

    def give(self, fs: Any, path: str, file: CopyableFile) -> None:
        """Give a file its times, permissions and owners, as far as the store has them."""

    def give_folder(self, fs: Any, path: str, like: FileAttributes) -> None:
        """Give a folder permissions and owners, as far as the store keeps them."""

    def remove(self, fs: Any, paths: Sequence[str]) -> None:
        """Remove files that are there."""
        for path in paths:
            fs.rm_file(path)

    def remove_folder(self, fs: Any, path: str) -> None:
        """Remove an empty folder."""
        with suppress(NotImplementedError):
            fs.rmdir(path)

    def sync(self, fs: Any, paths: Sequence[str]) -> None:
        """Make files and folders durable. Most stores decide themselves when what they have taken is."""

    def sync_all(self, fs: Any, path: str) -> None:
        """Make all that was written below a path durable, likewise."""

    def begin(self, fs: Any) -> None:
        """A connection is new."""

    def is_alive(self, fs: Any) -> bool:
        """Whether a connection that is not shared can still be used, without asking the server."""
        return True

    def drop(self, fs: Any) -> None:
        """Close a connection without a word to the server."""
        self.close(fs)

    def close(self, fs: Any) -> None:
        """Close the connection."""


class MemoryDriver(Driver):
    """fsspec's store in memory, for tests and examples; its open files share a position, so it reads whole ranges."""

    traits = StoreTraits(precision_ns=1000)

    def timestamp_ns(self, info: dict[str, Any]) -> int | None:
        """Microseconds: a listing has a float, one file's attributes have a datetime."""
        found = super().timestamp_ns(info)
        return None if found is None else (found + 500) // 1000 * 1000

    def open_reader(self, fs: Any, path: str, size: int) -> Any:
        """A copy of the content."""
        return io.BytesIO(fs.store[fs._strip_protocol(path)].getvalue())

    def move(self, fs: Any, origin: str, destination: str) -> None:
        """Move a file; the dictionary of files does it in one step."""
        fs.store[fs._strip_protocol(destination)] = fs.store.pop(fs._strip_protocol(origin))


class WholeObject(io.BytesIO):
    """The content of an object as one answer of the store had it."""


class ObjectDriver(Driver):
    """S3 and its like: there are no folders, a whole object appears at once, a move is a copy and a removal."""

    traits = StoreTraits(moves_by_copying=True, precision_ns=_SECOND, threads=16)
    options = {"use_listings_cache": False}

    def open_reader(self, fs: Any, path: str, size: int) -> Any:
        """A small object in one request, a larger one read ahead."""
        return WholeObject(fs.cat_file(path)) if size <= _BLOCK else super().open_reader(fs, path, size)

    def make_folder(self, fs: Any, path: str) -> None:
        """Nothing to make."""

    def move(self, fs: Any, origin: str, destination: str) -> None:
        """Copy in the store, then remove; a repeated call finds the copy done."""
        self.keep(fs, origin, destination)
        fs.rm_file(origin)

    def keep(self, fs: Any, path: str, kept: str) -> None:
        """Copy it in the store, so that it stays in place until another takes it."""
        fs.cp_file(path, kept)

    def remove_folder(self, fs: Any, path: str) -> None:
        """Nothing to remove."""


class SftpDriver(Driver):
    """SFTP by paramiko; a connection serves one thread."""

    traits = StoreTraits(
        keeps_times=True, keeps_permissions=True, mode_bits=0o1777, has_cheap_status=True, moves_folders=True, threads=4
    )
    is_shared = False

    def opening(self, url: str, options: dict[str, Any]) -> dict[str, Any]:
        """A server's key must be known; see ``known_hosts.py``."""
        return {**direct(url), **options}

    def info(self, fs: Any, path: str) -> dict[str, Any]:
        """What the server tells of a path, not following a link."""
        return self._told(fs, fs.ftp.lstat(path))

    def entries(self, fs: Any, path: str) -> Iterator[dict[str, Any]]:
        """Names of a folder with modes, which fsspec leaves out; streamed."""
        for found in listed(fs.ftp, path):
            yield self._told(fs, found, path)

    def _told(self, fs: Any, found: Any, *folder: str) -> dict[str, Any]:
        """What fsspec tells, with the mode; a pipe, which it takes for a file, would be waited for at its opening."""
        info = {**fs._decode_stat(found, *folder), "mode": found.st_mode}
        is_file = stat.S_IFMT(found.st_mode) in (0, stat.S_IFREG)  # some servers tell permissions only
        return info if is_file or info["type"] != "file" else {**info, "type": "other"}

    def timestamp_ns(self, info: dict[str, Any]) -> int | None:
        """Whole seconds."""
        return int(info["mtime"].timestamp()) * _SECOND if info.get("mtime") else None

    def open_reader(self, fs: Any, path: str, size: int) -> Any:
        """A file read ahead: without that each 32 KiB would wait for an answer."""
        return _ReadAhead(fs.ftp.open(path, "rb"), size)

    def open_writer(self, fs: Any, path: str, file: CopyableFile) -> Any:
        """A file whose writes wait for no answer each."""
        opened = fs.ftp.open(path, "wb")
        opened.set_pipelined(True)
        return opened

    def write(self, fs: Any, path: str, file: CopyableFile, data: bytes) -> None:
        with fs.ftp.open(path, "wb") as opened:
            opened.write(data)

    def move(self, fs: Any, origin: str, destination: str) -> None:
        """By the extension that replaces, or by a rename; where neither replaces, the old file is moved away first."""
        for rename in (fs.ftp.posix_rename, fs.ftp.rename):
            try:
                rename(origin, destination)
                return
            except (FileNotFoundError, TimeoutError):
                raise
            except OSError as error:
                failed = error
        check_replaceable(self, fs, destination, failed)
        replace_by_renames(fs.ftp.rename, fs.ftp.remove, origin, destination)

    def give(self, fs: Any, path: str, file: CopyableFile) -> None:
        """Times, permissions, and numeric owners."""
        self._give(fs, path, file.permission, file.owner, file.group)
        if (time_ns := file.timestamp_ns) is not None:
            time_s = within_sftp(time_ns) // _SECOND
            fs.ftp.utime(path, (time_s, time_s))

    def give_folder(self, fs: Any, path: str, like: FileAttributes) -> None:
        """Permissions, and numeric owners."""
        self._give(fs, path, like.permission, like.user, like.group)

    def _give(self, fs: Any, path: str, permission: int | None, owner: str, group: str) -> None:
        if permission is not None:
            fs.ftp.chmod(path, permission & self.traits.mode_bits)
        if owner.isdigit() and group.isdigit():
            fs.ftp.chown(path, int(owner), int(group))

    def begin(self, fs: Any) -> None:
        """Have a silent server end the session."""
        watch(fs.ftp)

    def is_alive(self, fs: Any) -> bool:
        """Whether the session is open; paramiko's thread notices when it ends."""
        transport = fs.client.get_transport()
        return transport is not None and bool(transport.is_active()) and not fs.ftp.get_channel().closed

    def close(self, fs: Any) -> None:
        fs.ftp.close()
        fs.client.close()


class _ReadAhead:
    """A file of SFTP, asked for in parts of ``_AHEAD``: paramiko keeps a record of each 32 KiB that it asks for."""

    def __init__(self, opened: Any, size: int) -> None:
        self._opened, self._size = opened, size
        self._asked = 0
        self.close = opened.close

    def seek(self, position: int) -> None:
        self._opened.seek(position)
        self._asked = position

    def read(self, size: int) -> bytes:
        at = self._opened.tell()
        if at + size > self._asked < self._size:
            self._asked = min(at + _AHEAD, self._size)
            self._opened.prefetch(self._asked)
        data: bytes = self._opened.read(size)
        return data


def check_replaceable(driver: Driver, fs: Any, destination: str, failed: OSError) -> None:
    """Return if a rename failed where a file is, which may be the cause.

    Raises:
        FileExistsError: a folder is there.
        OSError: ``failed``, if nothing is there.
    """
    try:
        kind = str(driver.info(fs, destination).get("type"))
    except FileNotFoundError:
        raise failed from None
    if kind in _FOLDERS:
        raise FileExistsError(errno.EEXIST, "a folder is there", destination) from failed


def replace_by_renames(
    rename: Callable[[str, str], object], remove: Callable[[str], object], origin: str, destination: str
) -> None:
    """Replace a file where a rename does not: move the old one beside the new one, and back on failure."""
    kept = f"{origin}.walship-replaced"
    rename(destination, kept)
    try:
        rename(origin, destination)
    except BaseException as error:
        try:
            rename(kept, destination)
        except Exception:
            raise OSError(f"{destination} was not replaced, and is at {kept} now: {one_line(error)}") from error
        raise
    remove(kept)
