"""HDFS: a file is one stream; a large one is written in ranges, each a file of its own, which HDFS joins at the end.

The first range is the file itself. The others are beside it in ``.walship``, which only the staging folder has.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from itertools import chain
from typing import Any
from urllib.parse import quote

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import STAGING
from replication.datasets.stores.base import StoreTraits
from replication.datasets.stores.drivers import Driver
from replication.datasets.stores.webhdfs import Incoming, Outgoing, called, create, differences, place, sent
from replication.errors import CopyError

_MILLISECOND = 1_000_000
_SMALL = 8 << 20
_SOURCES_BYTES = 16 << 10  # of one request, which may have 64 KiB


class WebHdfsDriver(Driver):
    """HDFS by WebHDFS."""

    traits = StoreTraits(
        is_secure=False,
        keeps_times=True,
        keeps_permissions=True,
        mode_bits=0o1777,
        writes_ranges=True,
        moves_folders=True,
        precision_ns=_MILLISECOND,
    )

    def entries(self, fs: Any, path: str) -> Iterator[dict[str, Any]]:
        """A folder, in batches of as many names as the namenode chooses."""
        last: dict[str, str] = {}
        while True:
            answer = called(fs, "LISTSTATUS_BATCH", path, **last).json()["DirectoryListing"]
            found = answer["partialListing"]["FileStatuses"]["FileStatus"]
            for info in found:
                yield _named(info, f"{path.rstrip('/')}/{info['pathSuffix']}")
            if not answer["remainingEntries"] or not found:
                return
            last = {"startAfter": found[-1]["pathSuffix"]}

    def info(self, fs: Any, path: str) -> dict[str, Any]:
        return _named(called(fs, "GETFILESTATUS", path).json()["FileStatus"], path)

    def changed(self, fs: Any, path: str, snapshot: str) -> Iterator[tuple[str, bool]]:
        """What differs in a folder as it is now; or, of one in ``.snapshot``, as that snapshot has it."""
        above, _, named = path.partition("/.snapshot/")
        newer, _, below = named.partition("/")
        for each in differences(fs, f"{above}/{below}".rstrip("/") or "/", snapshot, newer):
            if each["sourcePath"]:
                yield each["sourcePath"], each["type"] == "CREATE"
            if each["type"] == "RENAME":
                yield each["targetPath"], True

    def timestamp_ns(self, info: dict[str, Any]) -> int | None:
        found = info.get("modificationTime")
        return int(found) * _MILLISECOND if found is not None else None

    def permission(self, info: dict[str, Any]) -> int | None:
        return int(str(info["permission"]), 8) if info.get("permission") else None

    def open_reader(self, fs: Any, path: str, size: int) -> Any:
        """A small file in one answer, a larger one as a stream."""
        reader = Incoming(fs, path)
        if size > _SMALL:
            return reader
        with closing(reader):
            return io.BytesIO(reader.read(_SMALL + 1))

    def open_writer(self, fs: Any, path: str, file: CopyableFile) -> Any:
        """A file that is sent as it is written."""
        return Outgoing(lambda pieces: create(fs, path, file, pieces))

    def open_ranges(self, fs: Any, path: str, file: CopyableFile, size: int) -> RangesWriter:
        return RangesWriter(fs, path, file, size)

    def reread(self, fs: Any, path: str, begin: int, size: int) -> bytes:
        """A range that is not yet part of the file is read where it is."""
        if begin >= self.info(fs, path)["size"]:
            starts = [at for at in _ranges(fs, path) if at <= begin]
            if not starts:
                return b""
            path, begin = _range_path(path, max(starts)), begin - max(starts)
        with closing(Incoming(fs, path)) as opened:
            opened.seek(begin)
            return opened.read(size)

    def write(self, fs: Any, path: str, file: CopyableFile, data: bytes) -> None:
        create(fs, path, file, data)

    def make_folder(self, fs: Any, path: str) -> None:
        called(fs, "MKDIRS", path, "PUT")

    def move(self, fs: Any, origin: str, destination: str) -> None:
        """Move in one step that replaces. HttpFS has none: there the name is freed first, and the step is redone."""
        answer = called(fs, "RENAME", origin, "PUT", destination=destination, renameoptions="OVERWRITE")
        if not answer.content or answer.json()["boolean"]:
            return
        self.info(fs, origin)
        if self.info(fs, destination)["type"] == "file":
            self.remove(fs, [destination])
        if not called(fs, "RENAME", origin, "PUT", destination=destination).json()["boolean"]:
            raise OSError(f"HDFS did not rename {origin} to {destination}")

    def give(self, fs: Any, path: str, file: CopyableFile) -> None:
        _give(fs, path, file.permission, file.owner, file.group)
        if (time_ns := file.timestamp_ns) is not None:
            called(fs, "SETTIMES", path, "PUT", modificationtime=time_ns // _MILLISECOND)

    def give_folder(self, fs: Any, path: str, like: FileAttributes) -> None:
        _give(fs, path, like.permission, like.user, like.group)

    def remove(self, fs: Any, paths: Sequence[str]) -> None:
        for path in paths:
            called(fs, "DELETE", path, "DELETE")

    def remove_folder(self, fs: Any, path: str) -> None:
        called(fs, "DELETE", path, "DELETE")


def _named(info: dict[str, Any], name: str) -> dict[str, Any]:
    made = {**info, "name": name, "type": str(info["type"]).lower(), "size": info["length"]}
    if info.get("ecBit"):  # it has parity in place of copies, and HDFS tells 1 of it
        made["replication"] = None
    return made


def _give(fs: Any, path: str, permission: int | None, owner: str, group: str) -> None:
    if owner or group:
        called(fs, "SETOWNER", path, "PUT", **{k: v for k, v in (("owner", owner), ("group", group)) if v})
    if permission is not None:
        called(fs, "SETPERMISSION", path, "PUT", permission=format(permission & WebHdfsDriver.traits.mode_bits, "o"))


class RangesWriter:
    """Writes ranges of a file; see ``FileWriter``. A range is whole when this is closed."""

    def __init__(self, fs: Any, path: str, file: CopyableFile, size: int) -> None:
        self._fs, self._path, self._file, self._size = fs, path, file, size
        self._sent: Outgoing | None = None
        self._at = 0

    def write(self, begin: int, data: bytes | memoryview) -> None:
        """Write where the last write ended, or begin a range."""
        if self._sent is None or begin != self._at:
            self.close()
            path = _range_path(self._path, begin)
            self._sent = Outgoing(lambda pieces: create(self._fs, path, self._file, pieces))
        self._sent.write(data)
        self._at = begin + len(data)

    def finish(self) -> None:
        """Join the ranges; some may be joined already. CopyError if one is missing, then all are written again."""
        self.close()
        _join(self._fs, self._path, self._size)
        WebHdfsDriver().give(self._fs, self._path, self._file)

    def close(self) -> None:
        """Wait until the range is whole; raises what it failed with."""
        sent, self._sent = self._sent, None
        if sent is not None:
            with closing(sent):
                sent.finish()


def _range_path(path: str, begin: int) -> str:
    return path if begin == 0 else f"{_folder(path)}/{begin}"


def _folder(path: str) -> str:
    above, _, name = path.rpartition("/")
    return f"{above}/{STAGING}/{name}"


def _ranges(fs: Any, path: str) -> dict[int, int]:
    """Where the ranges beside a file begin, and their sizes in bytes."""
    try:
        found = list(WebHdfsDriver().entries(fs, _folder(path)))
    except FileNotFoundError:
        return {}
    return {int(info["pathSuffix"]): int(info["size"]) for info in found if info["pathSuffix"].isdecimal()}


def _join(fs: Any, path: str, size: int) -> None:
    driver, folder = WebHdfsDriver(), _folder(path)
    whole = f"{folder}/0"  # HDFS joins files of one folder only
    try:
        at, is_moved = int(driver.info(fs, path)["size"]), False
    except FileNotFoundError:  # an attempt before this one failed
        at, is_moved = int(driver.info(fs, whole)["size"]), True
    if at == size and not is_moved:
        return
    ranges, joined = _ranges(fs, path), list[str]()
    while at < size and ranges.get(at):
        joined.append(f"{folder}/{at}")
        at += ranges[at]
    if at != size:
        driver.remove(fs, [path])
        called(fs, "DELETE", folder, "DELETE", recursive="true")
        raise CopyError(f"ranges of {path} are missing", "Run the copy again: it writes them anew")
    if not is_moved:
        driver.move(fs, path, whole)
    for some in _batches(joined):
        try:
            called(fs, "CONCAT", whole, "POST", sources=",".join(some))
        except OSError:  # below a snapshot and in an encrypted zone it is refused
            for each in some:
                _append(fs, whole, each)
    driver.move(fs, whole, path)
    called(fs, "DELETE", folder, "DELETE", recursive="true")
    with suppress(OSError):  # other files have ranges there
        driver.remove_folder(fs, folder.rpartition("/")[0])


def _batches(paths: list[str]) -> Iterator[list[str]]:
    some: list[str] = []
    left = _SOURCES_BYTES
    for path in paths:
        left -= len(quote(path)) + 3
        if some and left < 0:
            yield some
            some, left = [], _SOURCES_BYTES
        some.append(path)
    if some:
        yield some


def _append(fs: Any, path: str, part: str) -> None:
    with closing(Incoming(fs, part)) as opened:
        pieces = iter(lambda: opened.read(1 << 20), b"")
        first = next(pieces)  # raises if a CONCAT whose answer was lost has taken it
        at = place(fs, called(fs, "APPEND", path, "POST"))
        sent(fs, "POST", at, data=chain([first], pieces), headers={"Content-Type": "application/octet-stream"})
    called(fs, "DELETE", part, "DELETE")
