"""A folder that a peer shares, ``walship://CLUSTER/FOLDER``: through the peer's receiver, by ``peer/folders``.

A file is written in pieces that stand alone, so ranges of it go in any order, and a lost connection loses none.
"""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from replication.core.copying.attributes import EntryKind, FileAttributes
from replication.core.copying.copyable import CopyableFile
from replication.datasets.stores.base import FileWriter, StoreTraits
from replication.datasets.stores.drivers import Driver
from replication.link.file_calls import PIECE_BYTES, FileCall, SharedEntry

_READ_BYTES = 4 << 20
_NAMED = 1000  # paths of one call


class PeerDriver(Driver):
    """Calls of ``PeerFileSystem``. The peer keeps no owners and no special mode bits."""

    traits = StoreTraits(
        writes_ranges=True,
        keeps_times=True,
        keeps_permissions=True,
        mode_bits=0o777,
        moves_folders=True,
        precision_ns=1,
        threads=4,
        batch_bytes=PIECE_BYTES,
    )
    removes_absent = True

    def boot(self, fs: Any, path: str) -> str:
        return str(fs.boot(path))

    def entries(self, fs: Any, path: str) -> Iterator[dict[str, Any]]:
        yield from fs.entries(path)

    def info(self, fs: Any, path: str) -> dict[str, Any]:
        return dict(fs.info(path))

    def timestamp_ns(self, info: dict[str, Any]) -> int | None:
        return info.get("timestamp_ns")

    def open_reader(self, fs: Any, path: str, size: int) -> Any:
        return io.BufferedReader(_Reading(fs, path, size), min(size + 1, _READ_BYTES))

    def open_writer(self, fs: Any, path: str, file: CopyableFile) -> Any:
        return _FrontToBack(PieceWriter(fs, path, file, -1))

    def open_ranges(self, fs: Any, path: str, file: CopyableFile, size: int) -> FileWriter:
        return PieceWriter(fs, path, file, size)

    def write(self, fs: Any, path: str, file: CopyableFile, data: bytes) -> None:
        writer = PieceWriter(fs, path, file, -1)
        writer.write(0, data)
        writer.finish()

    def write_batch(self, fs: Any, files: Sequence[tuple[str, CopyableFile, bytes]]) -> None:
        named = [
            SharedEntry(EntryKind.FILE, path, len(data), file.timestamp_ns, file.permission)
            for path, file, data in files
        ]
        _call_about(fs, FileCall.WRITE_FILES, named, content=b"".join(data for _, _, data in files))

    def read_batch(self, fs: Any, files: Sequence[tuple[str, FileAttributes]]) -> list[bytes]:
        named = [SharedEntry(EntryKind.FILE, path, file.size, file.timestamp_ns) for path, file in files]
        contents = io.BytesIO(b"".join(_call_about(fs, FileCall.READ_FILES, named)))
        found = [contents.read(file.size) for _, file in files]
        if sum(map(len, found)) != sum(file.size for _, file in files):
            raise OSError(errno.EIO, "the peer replied with less than the files have")
        return found

    def reread(self, fs: Any, path: str, begin: int, size: int) -> bytes:
        return bytes(fs.read_range(path, begin, begin + size, is_fresh=True))

    def make_folder(self, fs: Any, path: str) -> None:
        fs.call(FileCall.MAKE_FOLDER, path)

    def give_folder(self, fs: Any, path: str, like: FileAttributes) -> None:
        if like.permission is not None:
            fs.call(FileCall.GIVE_FOLDER, path, permission=like.permission)

    def move(self, fs: Any, origin: str, destination: str) -> None:
        fs.call(FileCall.MOVE, origin, destination)

    def keep(self, fs: Any, path: str, kept: str) -> None:
        fs.call(FileCall.KEEP, path, kept)

    def remove(self, fs: Any, paths: Sequence[str]) -> None:
        for begin in range(0, len(paths), _NAMED):
            fs.call(FileCall.REMOVE_FILES, *paths[begin : begin + _NAMED])

    def remove_folder(self, fs: Any, path: str) -> None:
        fs.call(FileCall.REMOVE_FOLDER, path)

    def sync(self, fs: Any, paths: Sequence[str]) -> None:
        for begin in range(0, len(paths), _NAMED):
            fs.call(FileCall.SYNC, *paths[begin : begin + _NAMED])

    def sync_all(self, fs: Any, path: str) -> None:
        try:
            fs.call(FileCall.SYNC_ALL, path)
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            raise NotImplementedError from None

    def close(self, fs: Any) -> None:
        fs.close()


def _call_about(fs: Any, call: FileCall, files: Sequence[SharedEntry], **given: Any) -> list[Any]:
    """What a call brings about whole files of one shared folder."""
    folder = files[0].name.partition("/")[0]
    named = tuple(replace(file, name=file.name.removeprefix(f"{folder}/")) for file in files)
    return list(fs.call(call, folder, files=named, **given))


class PieceWriter:
    """``FileWriter`` by pieces of one call each; ``size`` is -1 for a file that grows front to back."""

    def __init__(self, fs: Any, path: str, file: CopyableFile, size: int) -> None:
        self._fs, self._path, self._file, self._size = fs, path, file, size
        self._begin = 0
        self._pending = bytearray()

    def write(self, begin: int, data: bytes | memoryview) -> None:
        if begin != self._begin + len(self._pending):
            self._flush()
            self._begin = begin
        rest = memoryview(data)
        while rest:
            taken = min(len(rest), PIECE_BYTES - len(self._pending))
            self._pending += rest[:taken]
            rest = rest[taken:]
            if len(self._pending) == PIECE_BYTES:
                self._flush()

    def finish(self) -> None:
        file = self._file
        self._send(is_whole=True, permission=file.permission, timestamp_ns=file.timestamp_ns)

    def close(self) -> None:
        self._flush()

    def _flush(self) -> None:
        if self._pending:
            self._send()

    def _send(self, **given: Any) -> None:
        content, begin = bytes(self._pending), self._begin
        self._pending.clear()
        self._begin = end = begin + len(content)
        size = end if self._size < 0 else self._size
        self._fs.call(FileCall.WRITE, self._path, begin=begin, size=size, content=content, **given)


class _FrontToBack:
    """A file object that is only written to."""

    def __init__(self, writer: PieceWriter) -> None:
        self._writer = writer
        self._at = 0
        self.finish, self.close = writer.finish, writer.close

    def write(self, data: bytes | memoryview) -> None:
        self._writer.write(self._at, data)
        self._at += len(data)


class _Reading(io.RawIOBase):
    """A file of the peer, read where it is asked for."""

    def __init__(self, fs: Any, path: str, size: int) -> None:
        self._fs, self._path, self._size = fs, path, size
        self._at, self._end = 0, sys.maxsize

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        if self._at >= self._end:
            return 0
        end = self._at + min(len(buffer), _READ_BYTES)
        data = self._fs.read_range(self._path, self._at, end)
        buffer[: len(data)] = data
        if self._at + len(data) < end:
            self._end = self._at + len(data)
        self._at += len(data)
        return len(data)
