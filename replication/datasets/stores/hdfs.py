"""HDFS by WebHDFS, as Hadoop's documentation of its REST API has it; fsspec has the address and the connection.

A file is one stream from or to a datanode. Bounds: ``_AHEAD`` pieces of a file that is written wait in memory, and an
open one has a thread, which is joined when it is closed; a server that says nothing for ``_TIMEOUT_S`` is an error.
"""

from __future__ import annotations

import errno
import io
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from urllib.parse import quote, urlsplit

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.copyable import CopyableFile
from replication.datasets.stores.base import StoreTraits
from replication.datasets.stores.drivers import Driver

_MILLISECOND = 1_000_000
_SMALL = 8 << 20
_AHEAD = 2
_TIMEOUT_S = (20, 120)
_ERRORS: dict[str, Callable[[str], OSError]] = {
    "FileNotFoundException": FileNotFoundError,
    "AccessControlException": PermissionError,
    "SecurityException": PermissionError,
    "FileAlreadyExistsException": FileExistsError,
    "ParentNotDirectoryException": NotADirectoryError,
    "NSQuotaExceededException": lambda said: OSError(errno.EDQUOT, said),
    "DSQuotaExceededException": lambda said: OSError(errno.EDQUOT, said),
}


class WebHdfsDriver(Driver):
    """HDFS by WebHDFS."""

    traits = StoreTraits(
        is_secure=False,
        keeps_times=True,
        keeps_permissions=True,
        mode_bits=0o1777,
        moves_folders=True,
        precision_ns=_MILLISECOND,
    )

    def entries(self, fs: Any, path: str) -> Iterator[dict[str, Any]]:
        """A folder, in batches of as many names as the namenode chooses."""
        last: dict[str, str] = {}
        while True:
            answer = _called(fs, "LISTSTATUS_BATCH", path, **last).json()["DirectoryListing"]
            found = answer["partialListing"]["FileStatuses"]["FileStatus"]
            for info in found:
                yield _named(info, f"{path.rstrip('/')}/{info['pathSuffix']}")
            if not answer["remainingEntries"] or not found:
                return
            last = {"startAfter": found[-1]["pathSuffix"]}

    def info(self, fs: Any, path: str) -> dict[str, Any]:
        """One path."""
        return _named(_called(fs, "GETFILESTATUS", path).json()["FileStatus"], path)

    def timestamp_ns(self, info: dict[str, Any]) -> int | None:
        """Milliseconds."""
        found = info.get("modificationTime")
        return int(found) * _MILLISECOND if found is not None else None

    def permission(self, info: dict[str, Any]) -> int | None:
        """As octal text."""
        return int(str(info["permission"]), 8) if info.get("permission") else None

    def open_reader(self, fs: Any, path: str, size: int) -> Any:
        """A small file in one answer, a larger one as a stream."""
        reader = _Download(fs, path)
        if size > _SMALL:
            return reader
        with closing(reader):
            return io.BytesIO(reader.read(_SMALL + 1))

    def open_writer(self, fs: Any, path: str, file: CopyableFile) -> Any:
        """A file that is sent as it is written."""
        return _Upload(lambda pieces: _create(fs, path, file, pieces))

    def write(self, fs: Any, path: str, file: CopyableFile, data: bytes) -> None:
        """A whole small file."""
        _create(fs, path, file, data)

    def make_folder(self, fs: Any, path: str) -> None:
        """Make a folder, and those above it."""
        _called(fs, "MKDIRS", path, "PUT")

    def move(self, fs: Any, origin: str, destination: str) -> None:
        """Move in one step that replaces. HttpFS has none: there the name is freed first, and the step is redone."""
        answer = _called(fs, "RENAME", origin, "PUT", destination=destination, renameoptions="OVERWRITE")
        if not answer.content or answer.json()["boolean"]:
            return
        self.info(fs, origin)
        if self.info(fs, destination)["type"] == "file":
            self.remove(fs, destination)
        if not _called(fs, "RENAME", origin, "PUT", destination=destination).json()["boolean"]:
            raise OSError(f"HDFS did not rename {origin} to {destination}")

    def give(self, fs: Any, path: str, file: CopyableFile) -> None:
        """Times, permissions and owners."""
        _give(fs, path, file.permission, file.owner, file.group)
        if (time_ns := file.timestamp_ns) is not None:
            _called(fs, "SETTIMES", path, "PUT", modificationtime=time_ns // _MILLISECOND)

    def give_folder(self, fs: Any, path: str, like: FileAttributes) -> None:
        """Permissions and owners."""
        _give(fs, path, like.permission, like.user, like.group)

    def remove(self, fs: Any, path: str) -> None:
        """Remove a file."""
        _called(fs, "DELETE", path, "DELETE")

    def remove_folder(self, fs: Any, path: str) -> None:
        """Remove an empty folder."""
        _called(fs, "DELETE", path, "DELETE")


def _named(info: dict[str, Any], name: str) -> dict[str, Any]:
    return {**info, "name": name, "type": str(info["type"]).lower(), "size": info["length"]}


def _give(fs: Any, path: str, permission: int | None, owner: str, group: str) -> None:
    if owner or group:
        _called(fs, "SETOWNER", path, "PUT", **{k: v for k, v in (("owner", owner), ("group", group)) if v})
    if permission is not None:
        _called(fs, "SETPERMISSION", path, "PUT", permission=format(permission & WebHdfsDriver.traits.mode_bits, "o"))


def _create(fs: Any, path: str, file: CopyableFile, content: Any) -> None:
    """A new file in place of one that may be there, of bytes or an iterator of such."""
    given = {"replication": file.replication, "blocksize": file.block_size}
    at = _called(fs, "CREATE", path, "PUT", overwrite="true", **given).headers["Location"]
    _sent(fs, "PUT", at, data=content, headers={"Content-Type": "application/octet-stream"})


def _called(fs: Any, operation: str, path: str, method: str = "GET", **given: Any) -> Any:
    """The namenode's answer; a redirection to a datanode is not followed."""
    address = fs._apply_proxy(fs.url + quote(path, safe="/"))
    answer = fs.session.request(
        method, address, params={**given, **fs.pars, "op": operation}, allow_redirects=False, timeout=_TIMEOUT_S
    )
    return _checked(answer)


def _sent(fs: Any, method: str, address: str, **given: Any) -> Any:
    """A datanode's answer. It gets what the namenode put into the address, and no password."""
    address = fs._apply_proxy(address)
    if urlsplit(address).netloc != urlsplit(fs.url).netloc:
        given["auth"] = lambda request: request
    return _checked(fs.session.request(method, address, allow_redirects=False, timeout=_TIMEOUT_S, **given))


def _checked(answer: Any) -> Any:
    """The answer, if it is no error.

    Raises:
        OSError: it is one; of its type where Python has it.
    """
    if answer.status_code < 400:
        return answer
    with closing(answer):
        try:
            told = answer.json()["RemoteException"]
            kind, said = str(told["exception"]), str(told["message"]).partition("\n")[0]
        except (ValueError, KeyError, TypeError):
            kind, said = "", f"HTTP {answer.status_code} {answer.reason}"
    raise _ERRORS.get(kind, OSError)(f"HDFS says: {said}")


class _Download:
    """A file from a position on, by one request until another position is wanted."""

    def __init__(self, fs: Any, path: str) -> None:
        self._fs, self._path = fs, path
        self._answer: Any = None
        self._at = 0

    def seek(self, position: int) -> None:
        if self._answer is None or position != self._at:
            self.close()
            answer = _called(self._fs, "OPEN", self._path, offset=position)
            self._answer = _sent(self._fs, "GET", answer.headers["Location"], stream=True)
            self._at = position

    def read(self, size: int) -> bytes:
        self.seek(self._at)
        data = bytes(self._answer.raw.read(size))
        self._at += len(data)
        return data

    def close(self) -> None:
        if self._answer is not None:
            self._answer.close()
            self._answer = None


class _Upload:
    """A file that another thread sends while it is written; closed before it is finished, it may stay in part."""

    def __init__(self, send: Callable[[Iterator[bytes]], None]) -> None:
        self._send = send
        self._pieces: queue.Queue[bytes | None] = queue.Queue(_AHEAD)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="copy-hdfs", daemon=True)
        self._thread.start()

    def write(self, data: bytes | memoryview) -> None:
        """Add bytes. Raises what sending failed with."""
        if data:
            self._put(bytes(data))

    def finish(self) -> None:
        """Wait until the file is whole; raises likewise."""
        self._put(b"")
        self._thread.join()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the thread."""
        while self._thread.is_alive():
            try:
                self._pieces.put(None, timeout=0.05)
            except queue.Full:
                continue
            self._thread.join()

    def _put(self, piece: bytes) -> None:
        while True:
            if self._error is not None:
                raise self._error
            try:
                return self._pieces.put(piece, timeout=0.5)
            except queue.Full:
                continue

    def _taken(self) -> Iterator[bytes]:
        while (piece := self._pieces.get()) != b"":
            if piece is None:
                raise OSError("the file was given up")
            yield piece

    def _work(self) -> None:
        try:
            self._send(self._taken())
        except BaseException as error:
            self._error = error
