"""The calls of WebHDFS, as Hadoop's documentation of its REST API has them, over fsspec's connection.

A file is one stream from or to a datanode. Bounds: ``_AHEAD`` pieces of a file that is written wait in memory, and an
open one has a thread, which is joined when it is closed; a server that says nothing for ``_TIMEOUT_S`` is an error.
"""

from __future__ import annotations

import errno
import json
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from urllib.parse import quote, urlsplit

from replication.core.copying.copyable import CopyableFile
from replication.errors import RequestError, StorageError

_AHEAD = 2
_DIFFERENCES_MAX = 64 << 20  # bytes, of some 400,000 paths
_TIMEOUT_S = (20, 120)
_PLACED = ("APPEND", "CREATE", "OPEN")  # the namenode redirects them to a datanode
_ERRORS: dict[str, Callable[[str], OSError]] = {
    "FileNotFoundException": FileNotFoundError,
    "AccessControlException": PermissionError,
    "SecurityException": PermissionError,
    "FileAlreadyExistsException": FileExistsError,
    "ParentNotDirectoryException": NotADirectoryError,
    "NSQuotaExceededException": lambda message: OSError(errno.EDQUOT, message),
    "DSQuotaExceededException": lambda message: OSError(errno.EDQUOT, message),
}


def create(fs: Any, path: str, file: CopyableFile, content: Any) -> None:
    """A new file in place of one that may be there, of bytes or an iterator of such."""
    given = {"replication": file.replication, "blocksize": file.block_size}
    at = place(fs, called(fs, "CREATE", path, "PUT", overwrite="true", **given))
    sent(fs, "PUT", at, data=content, headers={"Content-Type": "application/octet-stream"})


def place(fs: Any, answer: Any) -> str:
    """The datanode that the namenode's answer names. StorageError if it names none."""
    address = str(fs._apply_proxy(answer.headers.get("Location", "")))
    if not address.startswith(("http://", "https://")):
        raise _unexpected(answer, "names no datanode")
    return address


def called(fs: Any, operation: str, path: str, method: str = "GET", **given: Any) -> Any:
    """The namenode's answer; a redirection to a datanode is not followed."""
    return _asked(fs, method, path, {**given, "op": operation}, stream=False)


def _asked(fs: Any, method: str, path: str, given: dict[str, Any], *, stream: bool) -> Any:
    address, params = fs._apply_proxy(fs.url + quote(path, safe="/")), {**given, **fs.pars}
    answer = fs.session.request(
        method, address, params=params, allow_redirects=False, timeout=_TIMEOUT_S, stream=stream
    )
    if _checked(answer).status_code >= 300 and given["op"] not in _PLACED:
        raise _unexpected(answer, "redirects")
    return answer


def differences(fs: Any, path: str, older: str, newer: str) -> list[dict[str, str]]:
    """What differs between two snapshots of a folder; an empty name stands for the folder as it is now.

    Raises:
        RequestError: it has no such snapshots itself, or the answer would be larger than ``_DIFFERENCES_MAX``.
    """
    hint = "Name the folder that has the snapshots: see hdfs lsSnapshottableDir. Or copy without --since-snapshot"
    given = {"op": "GETSNAPSHOTDIFF", "oldsnapshotname": older, "snapshotname": newer}
    try:
        answer = _asked(fs, "GET", path, given, stream=True)
    except OSError as error:
        raise RequestError(f"what changed since the snapshot {older} is not known: {error}", hint) from None
    with closing(answer):
        content = answer.raw.read(_DIFFERENCES_MAX + 1, decode_content=True)
    if len(content) > _DIFFERENCES_MAX:
        raise RequestError(f"too much changed since the snapshot {older}", "Copy without --since-snapshot")
    report = json.loads(content)["SnapshotDiffReport"]
    if report["snapshotRoot"] != path:  # of a folder below it HDFS tells nothing if that is new
        raise RequestError(f"{path} has no snapshots of its own: {report['snapshotRoot']} has them", hint)
    found: list[dict[str, str]] = report["diffList"]
    return found


def sent(fs: Any, method: str, address: str, **given: Any) -> Any:
    """A datanode's answer. It gets what the namenode put into the address, and no password."""
    if urlsplit(address)[:2] != urlsplit(fs.url)[:2]:
        given["auth"] = lambda request: request
    answer = _checked(fs.session.request(method, address, allow_redirects=False, timeout=_TIMEOUT_S, **given))
    if answer.status_code >= 300:
        raise _unexpected(answer, "redirects again")
    return answer


def _unexpected(answer: Any, what: str) -> StorageError:
    with closing(answer):
        where = urlsplit(answer.url)
        return StorageError(
            f"{where.scheme}://{where.netloc} {what}: it answers HTTP {answer.status_code}",
            "Give the address of the namenode's or HttpFS's WebHDFS port",
        )


def _checked(answer: Any) -> Any:
    """The answer, if it is not an error. OSError if it is one; of its type where Python has it."""
    if answer.status_code < 400:
        return answer
    with closing(answer):
        try:
            remote = answer.json()["RemoteException"]
            kind, message = str(remote["exception"]), str(remote["message"]).partition("\n")[0]
        except (ValueError, KeyError, TypeError):
            kind, message = "", f"HTTP {answer.status_code} {answer.reason}"
    raise _ERRORS.get(kind, OSError)(f"HDFS says: {message}")


class Incoming:
    """A file from a position on, by one request until another position is wanted."""

    def __init__(self, fs: Any, path: str) -> None:
        self._fs, self._path = fs, path
        self._answer: Any = None
        self._at = 0

    def seek(self, position: int) -> None:
        if self._answer is None or position != self._at:
            self.close()
            answer = _asked(self._fs, "GET", self._path, {"op": "OPEN", "offset": position}, stream=True)
            if answer.status_code != 200:  # HttpFS answers with the content itself
                answer = sent(self._fs, "GET", place(self._fs, answer), stream=True)
            self._answer = answer
            self._at = position

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; none at the end."""
        self.seek(self._at)
        data = bytes(self._answer.raw.read(size))
        self._at += len(data)
        return data

    def close(self) -> None:
        if self._answer is not None:
            self._answer.close()
            self._answer = None


class Outgoing:
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
        """Wait until the file is whole; raises the same errors."""
        self._put(b"")
        self._thread.join()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
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
