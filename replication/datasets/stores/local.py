"""A folder of this host as a store.

New files are made with mode 0600 and get their own when they are whole. Symbolic links of the target are never written
through.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import grp
import os
import pwd
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from uuid import uuid4

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import RelativePath
from replication.datasets.stores.base import Entry, EntryKind, SmallFile, StoreTraits, read_whole
from replication.errors import ChangedFileError, CopyError, RequestError, UnsafeNameError
from replication.files.boot import boot_id
from replication.files.local import descriptor
from replication.permissions import user_umask

_TRAITS = StoreTraits(
    is_local=True,
    writes_ranges=True,
    keeps_times=True,
    keeps_permissions=True,
    has_cheap_status=True,
    moves_folders=True,
    precision_ns=1,
    threads=4,
)
_PRECISE_NS = 2_000_000_001_999_999_999  # every rounding changes it
_COARSEST_NS = 2_000_000_000
_NEW = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe fails, and waits for nobody
_FLUSHED_EVERY = 16 << 20
_FLUSHED_LAST = 1 << 20  # at the end: less is not worth a call
_WRITE_BYTES = 256 << 10  # a write of 1 MiB costs some kernels several times as much CPU per byte
_MODES = 0o7777
_NO_LINK = (errno.EPERM, errno.ENOTSUP, errno.EMLINK)  # another user's file, or a file system without links
_LIBC = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
_SYNC_FILE_RANGE_WRITE = 2
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # of fallocate
_HOLE_BYTES_MIN = 4096
_ZEROS = bytes(4 << 20)


class LocalStore:
    """A folder and all below it. With ``follow_links`` a link to a file counts as that file."""

    uploads = None

    def __init__(self, root: str, *, follow_links: bool = False) -> None:
        self.traits = _TRAITS
        self.root = os.path.abspath(root)
        self.url = f"file://{self.root}"
        self._follow = follow_links
        self._prefix = self.root if self.root.endswith("/") else f"{self.root}/"

    def measure_times(self, path: RelativePath) -> None:
        """Learn by a file how precise times are here: to 100 ns on NTFS and shares of Windows, to 2 s on FAT.

        Some file systems take no times at all, with or without an error.
        """
        with suppress(OSError):
            os.utime(self.local_path(path), ns=(_PRECISE_NS, _PRECISE_NS))
            precision_ns = abs(_PRECISE_NS - os.stat(self.local_path(path)).st_mtime_ns) + 1
            keeps = precision_ns <= _COARSEST_NS
            self.traits = replace(_TRAITS, keeps_times=keeps, precision_ns=precision_ns if keeps else 1)

    def boot(self) -> str:
        return boot_id()

    def local_path(self, path: RelativePath) -> str:
        """The path on this host."""
        return self._prefix + path if path else self.root

    def scan(self, folder: RelativePath) -> Iterator[Entry]:
        """The entries of one folder, streamed, in the file system's order."""
        with os.scandir(self.local_path(folder)) as entries:
            for entry in entries:
                try:
                    path = folder.child(entry.name)
                except UnsafeNameError as error:
                    yield Entry(EntryKind.OTHER, None, error.what, folder.shown_child(entry.name))
                    continue
                try:
                    yield self._entry(path, entry.stat(follow_symlinks=False))
                except FileNotFoundError:
                    continue  # it went since

    def status(self, path: RelativePath) -> Entry | None:
        try:
            there = self.local_path(path)
            return self._entry(path, os.lstat(there) if path else os.stat(there))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _entry(self, path: RelativePath, found: os.stat_result) -> Entry:
        if stat.S_ISLNK(found.st_mode):
            if not self._follow:
                return Entry(EntryKind.LINK, None, path=path)
            try:
                found = os.stat(self.local_path(path))
            except OSError:
                return Entry(EntryKind.LINK, None, path=path)
            if not stat.S_ISREG(found.st_mode):
                return Entry(EntryKind.LINK, None, path=path)
        if stat.S_ISREG(found.st_mode):
            return Entry(EntryKind.FILE, _attributes(path, found))
        if stat.S_ISDIR(found.st_mode):
            return Entry(EntryKind.FOLDER, _attributes(path, found))
        return Entry(EntryKind.OTHER, None, path=path)

    def open(self, file: FileAttributes) -> _LocalReader:
        return _LocalReader(self.local_path(file.path), file, self._follow)

    def create(self, path: RelativePath, file: CopyableFile, size: int) -> _LocalWriter:
        fd = _open_new(self.local_path(path), os.O_TRUNC if size < 0 else 0)
        try:
            return _LocalWriter(fd, file, size)
        except BaseException:  # no file may be that large there
            os.close(fd)
            raise

    def write_small(self, path: RelativePath, file: CopyableFile, data: bytes) -> None:
        fd = _open_new(self.local_path(path), os.O_TRUNC)
        try:
            if data and os.write(fd, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            _give(fd, file)
        finally:
            os.close(fd)

    def write_batch(self, files: Sequence[SmallFile]) -> None:
        for path, file, data in files:
            self.write_small(path, file, data)

    def read_batch(self, files: Sequence[FileAttributes]) -> list[bytes]:
        return [read_whole(self, file) for file in files]

    def make_folder(self, path: RelativePath) -> None:
        there = self.local_path(path)
        try:
            os.mkdir(there)
        except FileExistsError:
            if not path and not os.path.isdir(there):
                raise RequestError(
                    f"{there} is not a folder", "Name a folder, or one that does not exist yet"
                ) from None
            if path and not stat.S_ISDIR(os.lstat(there).st_mode):
                raise UnsafeNameError(
                    f"{there} is not a folder, or is a link to one", "Remove it, or exclude it"
                ) from None
            return
        except NotADirectoryError:
            raise RequestError(f"a folder above {there} is a file", "Name another target") from None
        except FileNotFoundError:
            if path:
                self.make_folder(path.parent)
            else:
                os.makedirs(os.path.dirname(self.root), exist_ok=True)
            with suppress(FileExistsError):
                os.mkdir(there)

    def give_folder(self, path: RelativePath, like: FileAttributes) -> None:
        there = self.local_path(path)
        if like.user or like.group:
            os.chown(
                there, _number(like.user, of_group=False), _number(like.group, of_group=True), follow_symlinks=False
            )
        if like.permission is not None:
            os.chmod(there, like.permission)

    def move(self, origin: RelativePath, destination: RelativePath) -> None:
        try:
            os.rename(self.local_path(origin), self.local_path(destination))
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            what = f"{destination} is on another file system than {self.root}, or in a folder with a quota of its own"
            raise CopyError(what, "Copy it there by a copy of its own, and exclude it here") from error

    def keep(self, path: RelativePath, kept: RelativePath) -> None:
        """Give a file a second name, in place of another file that has it; move it there if it may not have two."""
        origin, second = self.local_path(path), self.local_path(kept)
        try:
            _link(origin, second)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            os.replace(origin, second)

    def remove_files(self, paths: Sequence[RelativePath]) -> None:
        failed: OSError | None = None
        for path in paths:
            try:
                os.unlink(self.local_path(path))
            except FileNotFoundError:
                continue
            except OSError as error:  # the others go all the same
                failed = failed or error
        if failed is not None:
            raise failed

    def remove_folder(self, path: RelativePath) -> None:
        assert path, "the root is never removed"
        shutil.rmtree(self.local_path(path), ignore_errors=True)

    def remove_folder_if_empty(self, path: RelativePath) -> None:
        with suppress(OSError):
            os.rmdir(self.local_path(path))

    def sync(self, paths: Iterable[RelativePath]) -> None:
        for path in paths:
            nofollow = os.O_NOFOLLOW if path else 0  # the root may be a link
            try:
                with descriptor(self.local_path(path), os.O_RDONLY | os.O_NONBLOCK | nofollow) as fd:
                    os.fsync(fd)
            except PermissionError:  # it may be written, but not read
                if not path:
                    raise
                self.sync_all()
                return

    def sync_all(self) -> None:
        """Make all that was written to the root's file system durable; by the kernel's syncfs, which tells errors."""
        with descriptor(self.root) as fd:
            if not hasattr(_LIBC, "syncfs"):
                raise NotImplementedError
            if _LIBC.syncfs(fd):
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), self.root)

    def reread(self, path: RelativePath, begin: int, size: int) -> bytes:
        """What the disk has: the kernel's copy is dropped first."""
        with descriptor(self.local_path(path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW) as fd:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(fd, begin, size, os.POSIX_FADV_DONTNEED)
            return os.pread(fd, size, begin)

    def close(self) -> None:
        """Nothing to close."""

    def __enter__(self) -> LocalStore:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""


def _link(origin: str, second: str) -> None:
    try:
        os.link(origin, second, follow_symlinks=False)
    except FileExistsError:
        if os.path.samestat(os.lstat(origin), os.lstat(second)):
            return
        new = f"{os.path.dirname(second)}/.walship-{uuid4().hex}"
        os.link(origin, new, follow_symlinks=False)
        try:
            os.replace(new, second)
        except OSError:
            os.unlink(new)
            raise


def _open_new(path: str, flags: int) -> int:
    """Open a new file for writing, or one that an earlier attempt has left; ranges that it has are kept."""
    try:
        return os.open(path, _NEW | flags, 0o600)
    except PermissionError:
        os.chmod(path, 0o600)  # that attempt gave it its own mode, which is read-only
        return os.open(path, _NEW | flags, 0o600)


class _LocalReader:
    def __init__(self, path: str, file: FileAttributes, follow: bool) -> None:
        self._file = file
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW))

    def read(self, begin: int, size: int) -> bytes:
        return os.pread(self._fd, size, begin)

    def read_into(self, begin: int, view: memoryview) -> int:
        return os.preadv(self._fd, [view], begin)

    def check_unchanged(self) -> None:
        found = os.fstat(self._fd)
        if found.st_size != self._file.size or found.st_mtime_ns != self._file.timestamp_ns:
            raise ChangedFileError(f"{self._file.path} changed while it was copied", "It is copied by the next run")

    def close(self) -> None:
        os.close(self._fd)


class _LocalWriter:
    def __init__(self, fd: int, file: CopyableFile, size: int) -> None:
        self._fd, self._file, self._size = fd, file, size
        self._unflushed = self._end = 0
        if size >= 0:
            os.ftruncate(fd, size)

    def write(self, begin: int, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        if _is_zero(rest) and self._make_hole(begin, len(rest)):
            return
        while rest:
            written = os.pwrite(self._fd, rest[:_WRITE_BYTES], begin)
            begin, rest = begin + written, rest[written:]
        self._unflushed += len(data)
        self._end = begin
        if self._unflushed >= _FLUSHED_EVERY:
            self._start_writeback(begin)

    def _make_hole(self, begin: int, size: int) -> bool:
        """Have zeros take no space; whether the file system can."""
        if self._size < 0:  # front to back, into a new file
            os.ftruncate(self._fd, begin + size)
            return True
        modes = ctypes.c_int(_PUNCH_HOLE | _KEEP_SIZE)
        at = (ctypes.c_int64(begin), ctypes.c_int64(size))
        return hasattr(_LIBC, "fallocate") and _LIBC.fallocate(self._fd, modes, *at) == 0

    def _start_writeback(self, end: int) -> None:
        """Have the kernel write what is dirty while more is copied, so that little is left for the sync."""
        if hasattr(_LIBC, "sync_file_range"):
            begin = max(0, end - self._unflushed)
            _LIBC.sync_file_range(
                self._fd, ctypes.c_int64(begin), ctypes.c_int64(end - begin), ctypes.c_uint(_SYNC_FILE_RANGE_WRITE)
            )
        self._unflushed = 0

    def finish(self) -> None:
        _give(self._fd, self._file)

    def close(self) -> None:
        if self._unflushed >= _FLUSHED_LAST:
            self._start_writeback(self._end)
        os.close(self._fd)


def _is_zero(data: memoryview) -> bool:
    """Whether it is worth a hole: large, and nothing but zeros. Most data is told by its first bytes."""
    size = len(data)
    if not _HOLE_BYTES_MIN <= size <= len(_ZEROS) or any(data[:16]) or any(data[-16:]):
        return False
    return bytes(data) == _ZEROS[:size]


def _attributes(path: RelativePath, found: os.stat_result) -> FileAttributes:
    return FileAttributes(
        path,
        found.st_size if stat.S_ISREG(found.st_mode) else 0,
        found.st_mtime_ns,
        _name(found.st_uid, of_group=False),
        _name(found.st_gid, of_group=True),
        found.st_mode & _MODES,
    )


def _give(fd: int, file: CopyableFile) -> None:
    """The attributes of a new file; owner first, since it clears bits of the mode."""
    if file.owner or file.group:
        os.fchown(fd, _number(file.owner, of_group=False), _number(file.group, of_group=True))
    os.fchmod(fd, file.permission if file.permission is not None else _DEFAULT_MODE)
    if (time_ns := file.timestamp_ns) is not None:
        os.utime(fd, ns=(time_ns, time_ns))


_DEFAULT_MODE = 0o666 & ~user_umask()


@lru_cache(maxsize=4096)
def _name(number: int, *, of_group: bool) -> str:
    try:
        return grp.getgrgid(number).gr_name if of_group else pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


@lru_cache(maxsize=4096)
def _number(name: str, *, of_group: bool) -> int:
    """The id of a user or group; -1 for none. CopyError if this host has none of that name."""
    if not name or name.isdecimal():
        return int(name or -1)
    try:
        return grp.getgrnam(name).gr_gid if of_group else pwd.getpwnam(name).pw_uid
    except KeyError:
        what = "group" if of_group else "user"
        raise CopyError(f"this host has no {what} {name!r}", "Add it, or leave it out of --preserve") from None
