"""Files of this host over POSIX: writev, fdatasync (F_FULLFSYNC on macOS), fsync of directories, and flock."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from uuid import uuid4
from weakref import WeakSet

from replication.errors import BadSectorError, LockedFileError, MissingFileError, NoSpaceError, StorageError
from replication.files.base import Buffer

_IOV_MAX = 1024
_F_FULLFSYNC = getattr(fcntl, "F_FULLFSYNC", 51)
FULL = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def path_errors(path: str, doing: str) -> Iterator[None]:
    """Raise a system call's error as NoSpaceError, MissingFileError, BadSectorError or StorageError."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise NoSpaceError(
                f"no space to {doing} {path}: {error.strerror}", "Free some space or raise the quota"
            ) from error
        if error.errno == errno.ENOENT:
            raise MissingFileError(f"cannot {doing} {path}: it does not exist") from error
        if error.errno == errno.EIO and doing == "read":
            raise BadSectorError(f"cannot read {path}: {error.strerror}") from error
        raise StorageError(f"cannot {doing} {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def descriptor(path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Open a file or directory, not for child processes; give its descriptor."""
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _sync(fd: int, posix_sync: Callable[[int], None]) -> None:
    """Call ``posix_sync``; on macOS F_FULLFSYNC instead, because fsync there leaves bytes in the drive's cache."""
    if sys.platform != "darwin":
        posix_sync(fd)
        return
    try:
        fcntl.fcntl(fd, _F_FULLFSYNC)
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.ENOTTY, errno.EINVAL):  # this file system has only fsync
            raise
        os.fsync(fd)


def sync_path(path: str) -> None:
    """Make a file durable, whichever process wrote it. StorageError when the sync fails."""
    with path_errors(path, "sync"), descriptor(path) as fd:
        _sync(fd, os.fdatasync)


def read_at(fd: int, begin: int, end: int) -> bytes:
    """Return the bytes ``[begin, end)`` of an open file, fewer if it ends before; the position does not move."""
    content = os.pread(fd, end - begin, begin)
    while len(content) < end - begin and (more := os.pread(fd, end - begin - len(content), begin + len(content))):
        content += more
    return content


def write_whole(
    file: Path, content: bytes, *, mode: int = 0o666, place: Callable[[Path, Path], object] = os.replace
) -> None:
    """Write a file that others read whole or not at all, as ``mode`` and the umask have it; it is durable on return.

    The directory exists. ``place`` gives the written file its name; ``os.link`` raises FileExistsError when that is
    taken.

    Raises:
        OSError: it was not written, or its name may not be durable.
    """
    part = file.with_name(f".{file.name}.{uuid4().hex}")
    try:
        with open(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as opened:
            opened.write(content)
            opened.flush()
            _sync(opened.fileno(), os.fsync)
        place(part, file)
    finally:
        part.unlink(missing_ok=True)
    with descriptor(str(file.parent)) as fd:
        _sync(fd, os.fsync)


class LocalFile:
    """An AppendFile over one descriptor."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def write(self, parts: Sequence[Buffer]) -> int:
        with path_errors(self.path, "write"):
            return os.writev(self._fd, parts if len(parts) <= _IOV_MAX else parts[:_IOV_MAX])

    def seek(self, position: int) -> None:
        os.lseek(self._fd, position, os.SEEK_SET)

    def read(self, begin: int, end: int) -> bytes:
        with path_errors(self.path, "read"):
            return read_at(self._fd, begin, end)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def reserve(self, end: int) -> None:
        if sys.platform == "linux" and end > (size := self.size()):
            with path_errors(self.path, "reserve"):
                os.posix_fallocate(self._fd, size, end - size)

    def truncate(self, length: int) -> None:
        with path_errors(self.path, "truncate"):
            os.ftruncate(self._fd, length)
            os.lseek(self._fd, length, os.SEEK_SET)

    def sync(self) -> None:
        """Fdatasync or F_FULLFSYNC; both include the file's length."""
        with path_errors(self.path, "sync"):
            _sync(self._fd, os.fdatasync)

    def lock(self) -> None:
        _locked.add(self)
        with path_errors(self.path, "lock"):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LockedFileError(f"{self.path} is held by another process") from error

    def close(self) -> None:
        """Close the descriptor; the kernel releases the flock with it."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


_locked: WeakSet[LocalFile] = WeakSet()


def _leave_locks() -> None:
    """Close the locked files in a forked child: otherwise it would keep the flocks after its parent died."""
    for file in list(_locked):
        file.close()


os.register_at_fork(after_in_child=_leave_locks)


class LocalFiles:
    """Files over the local file system."""

    def create(self, path: str) -> LocalFile:
        with path_errors(path, "create"):
            return LocalFile(path, os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644))

    def open(self, path: str) -> LocalFile:
        with path_errors(path, "open"):
            return LocalFile(path, os.open(path, os.O_RDWR))

    def exists(self, path: str) -> bool:
        """Whether the name exists, also as a broken link."""
        return os.path.lexists(path)

    def names(self, directory: str) -> list[str]:
        try:
            with path_errors(directory, "list"):
                return sorted(os.listdir(directory))
        except MissingFileError:
            return []

    def make_directory(self, path: str) -> None:
        if not path or os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        self.make_directory(parent)
        with path_errors(path, "make directory"), contextlib.suppress(FileExistsError):
            os.mkdir(path)
        self.sync_directory(parent or ".")

    def rename(self, old: str, new: str) -> None:
        with path_errors(old, "rename"):
            os.replace(old, new)

    def link(self, old: str, new: str) -> None:
        with path_errors(old, "link"):
            os.link(old, new)

    def remove(self, path: str) -> None:
        with path_errors(path, "remove"), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def sync_directory(self, path: str) -> None:
        with path_errors(path, "sync directory"), descriptor(path) as fd:
            _sync(fd, os.fsync)

    def map_words(self, path: str, count: int, *, create: bool) -> memoryview:
        """Map the file as native words. A store of an aligned word is a single instruction."""
        with path_errors(path, "map"):
            access = mmap.ACCESS_WRITE
            try:
                fd = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644)
            except OSError as error:
                if create or error.errno != errno.EROFS:
                    raise
                fd, access = os.open(path, os.O_RDONLY), mmap.ACCESS_READ
            try:
                if create and sys.platform == "linux":  # on a full disk, a store to a hole would raise SIGBUS
                    os.posix_fallocate(fd, 0, count * 8)
                elif os.fstat(fd).st_size < count * 8:
                    if not create:
                        raise MissingFileError(f"{path} is truncated")
                    os.ftruncate(fd, count * 8)
                words = memoryview(mmap.mmap(fd, count * 8, access=access)).cast("Q")
                if create:  # zeroed in place: truncation would end a process that has it mapped with SIGBUS
                    for at in range(count):
                        words[at] = 0
                return words
            finally:
                os.close(fd)

    def sync_words(self, path: str, words: memoryview) -> None:
        """Call msync, which macOS needs to write the words to the file, then sync the file."""
        assert isinstance(words.obj, mmap.mmap), "words are mapped"
        with path_errors(path, "sync"):
            words.obj.flush()
        sync_path(path)
