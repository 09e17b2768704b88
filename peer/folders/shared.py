"""Answers calls about the files of shared folders, for one host.

Guarantees: only a cluster that a folder is shared with sees it, each call is decided anew, and no path or link leads
out of the folder. A file gets no owner and no special mode bits from a caller.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import STAGING, RelativePath
from replication.core.grants import Caller, is_covered
from replication.datasets.stores.base import Entry, SmallFile
from replication.datasets.stores.local import LocalStore
from replication.errors import PeerRefusedError, ReplicationError
from replication.link.base import Reason, Refusal
from replication.link.file_calls import PIECE_BYTES, FileAsk, FileCall, SharedEntry
from replication.link.places import Places
from replication.settings import SharedFolder

CALLS_MAX, CALLER_CALLS_MAX = 16, 8
_MODES = 0o777
_TWO_PATHS = (FileCall.MOVE, FileCall.KEEP)
_ANY_PATHS = (FileCall.REMOVE_FILES, FileCall.SYNC)
_OF_ROOT = (
    FileCall.SCAN,
    FileCall.STATUS,
    FileCall.MAKE_FOLDER,
    FileCall.GIVE_FOLDER,
    FileCall.SYNC,
    FileCall.SYNC_ALL,
    FileCall.WRITE_FILES,
    FileCall.READ_FILES,
)


class SharedFolders:
    """Answers at most ``CALLS_MAX`` calls at once, each with one piece in memory. Safe for threads.

    Args:
        cluster: this cluster's name.
        folders: the shared folders, by name.
        disk_free_min_bytes: what must stay free where a folder is.
    """

    def __init__(self, cluster: str, folders: Mapping[str, SharedFolder], disk_free_min_bytes: int) -> None:
        self._cluster = cluster
        self._folders = folders
        self._disk_free_min_bytes = disk_free_min_bytes
        self._places = Places(CALLS_MAX, CALLER_CALLS_MAX)

    def answer(self, ask: FileAsk, caller: Caller) -> Iterator[SharedEntry | bytes]:
        """What a call wants: entries, or pieces of a file.

        Raises:
            PeerRefusedError: the caller may not do that, or not now; or a path leads out of the folder.
            OSError: the file system's.
        """
        store = self._store(ask, caller.cluster.name)
        if self._places.take(caller.bounded_name):
            what = f"{self._cluster} answers as many calls about files as it takes"
            raise Refusal(Reason.NOT_READY, what, "It is tried again").error()
        try:
            yield from _Answer(store, ask, self._disk_free_min_bytes).run()
        except PeerRefusedError:
            raise
        except NotImplementedError:  # macOS has no sync of all; the caller then names what is to be durable
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
        except ReplicationError as error:
            raise OSError(errno.EINVAL, error.what) from None
        finally:
            self._places.release(caller.bounded_name)

    def _store(self, ask: FileAsk, caller: str) -> _SharedStore:
        folder = self._folders.get(ask.folder)
        if folder is None or not is_covered(caller, folder.clusters):
            raise Refusal(
                Reason.NOT_GRANTED,
                f"{self._cluster} shares no folder {ask.folder!r:.100} with {caller}",
                f"On {self._cluster}, in the receiver's configuration: [receiver.folders.NAME] with path, and clusters"
                f' = ["{caller}"]; then start it again',
            ).error()
        if folder.read_only and not ask.call.is_reading:
            raise Refusal(
                Reason.NOT_GRANTED,
                f"{self._cluster} shares folder {ask.folder} to be read only",
                f"On {self._cluster}, if that is right: read_only = false in [receiver.folders.{ask.folder}]",
            ).error()
        return _SharedStore(str(folder.path))


class _SharedStore(LocalStore):
    """Follows no link among the folders of a path, also of one that another call has moved there meanwhile."""

    def local_path(self, path: RelativePath) -> str:
        self.check_inside(path.parent)
        return super().local_path(path)

    def check_inside(self, folder: RelativePath) -> None:
        """Raise PermissionError if a folder of the path is a link, which could lead anywhere."""
        for each in folder.with_folders():
            if os.path.islink(super().local_path(each)):
                raise PermissionError(errno.EACCES, "a link is not followed")


class _Answer:
    """One call about one folder."""

    def __init__(self, store: _SharedStore, ask: FileAsk, disk_free_min_bytes: int) -> None:
        self._store = store
        self._ask = ask
        self._disk_free_min_bytes = disk_free_min_bytes
        self._paths = [_path(path) for path in ask.paths]
        self._files = [_path(file.name) for file in ask.files]
        count, call = len(self._paths), ask.call
        wanted = 2 if call in _TWO_PATHS else 1
        if count != wanted and call not in _ANY_PATHS or (not all(self._paths) and call not in _OF_ROOT):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if not all(self._files):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        for path in self._paths:
            store.check_inside(path if call in (FileCall.SCAN, FileCall.GIVE_FOLDER) else path.parent)
        for folder in {path.parent for path in self._files}:
            store.check_inside(folder)

    def run(self) -> Iterator[SharedEntry | bytes]:
        """What it wants."""
        match self._ask.call:
            case FileCall.SCAN:
                yield from map(_shared, self._store.scan(self._paths[0]))
            case FileCall.STATUS:
                found = self._store.status(self._paths[0])
                yield from [_shared(found)] if found is not None else []
            case FileCall.READ | FileCall.REREAD:
                yield from self._pieces()
            case FileCall.READ_FILES:
                listed = zip(self._files, self._ask.files, strict=True)
                yield b"".join(self._store.read_batch([FileAttributes(p, f.size, f.timestamp_ns) for p, f in listed]))
            case _:
                self._change()

    def _change(self) -> None:
        store, paths = self._store, self._paths
        match self._ask.call:
            case FileCall.WRITE:
                self._write()
            case FileCall.WRITE_FILES:
                self._write_files()
            case FileCall.MAKE_FOLDER:
                store.make_folder(paths[0])
            case FileCall.GIVE_FOLDER:
                store.give_folder(paths[0], FileAttributes(paths[0], 0, permission=_mode(self._ask.permission)))
            case FileCall.MOVE:
                store.move(paths[0], paths[1])
            case FileCall.KEEP:
                store.keep(paths[0], paths[1])
            case FileCall.REMOVE_FILES:
                store.remove_files(paths)
            case FileCall.REMOVE_FOLDER:
                store.remove_folder_if_empty(paths[0])
            case FileCall.SYNC:
                store.sync(paths)
            case FileCall.SYNC_ALL:
                store.sync_all()

    def _pieces(self) -> Iterator[bytes]:
        path, begin, end = self._paths[0], self._ask.begin, self._ask.end
        if self._ask.call is FileCall.REREAD:
            for at in range(begin, end, PIECE_BYTES):
                yield self._store.reread(path, at, min(PIECE_BYTES, end - at))
            return
        with closing(self._store.open(FileAttributes(path, end))) as reader:
            while begin < end and (piece := reader.read(begin, min(PIECE_BYTES, end - begin))):
                yield piece
                begin += len(piece)

    def _write(self) -> None:
        path, ask = self._paths[0], self._ask
        if ask.begin + len(ask.content) > ask.size:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._check_free()
        file = _copyable(path, ask.size, ask.timestamp_ns, ask.permission)
        with closing(self._store.create(path, file, ask.size)) as writer:
            if ask.content:
                writer.write(ask.begin, ask.content)
            if ask.is_whole:
                writer.finish()

    def _write_files(self) -> None:
        content, files, at = self._ask.content, list[SmallFile](), 0
        if sum(file.size for file in self._ask.files) != len(content):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._check_free()
        for path, file in zip(self._files, self._ask.files, strict=True):
            data = content[at : at + file.size]
            files.append((path, _copyable(path, file.size, file.timestamp_ns, file.permission), data))
            at += file.size
        self._store.write_batch(files)

    def _check_free(self) -> None:
        needed = self._disk_free_min_bytes + len(self._ask.content)
        if shutil.disk_usage(self._store.root).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _copyable(path: RelativePath, size: int, timestamp_ns: int | None, permission: int | None) -> CopyableFile:
    origin = FileAttributes(path, size, timestamp_ns)
    return CopyableFile("", origin, path, permission=_mode(permission), preserve=frozenset({"times"}))


def _mode(permission: int | None) -> int | None:
    return None if permission is None else permission & _MODES


def _path(text: str) -> RelativePath:
    """A path that was checked. A copy asks for the folder of its own files by other names, too."""
    above, name = text[: text.rfind("/") + 1], text[text.rfind("/") + 1 :]
    if name.casefold() != STAGING:
        return RelativePath(text)
    RelativePath(f"{above}{STAGING}")
    return str.__new__(RelativePath, text)


def _shared(entry: Entry) -> SharedEntry:
    found = entry.attributes
    path = found.path if found is not None else entry.path
    if found is None:
        return SharedEntry(entry.kind, path.name)
    return SharedEntry(entry.kind, path.name, found.size, found.timestamp_ns, found.permission)
