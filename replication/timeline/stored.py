"""A timeline's records as objects in a folder: on a local file system, in S3 or in memory.

A new record fails if its name is taken. Stores that may replace an object that another process has just written are
refused. Old records are packed together, with the state of the timeline after them.

A record that is archived must never be created again by a process that has not noticed. So whoever creates one looks
afterwards whether that number is archived, and takes it back. The pack and the state are there before the first record
is removed.
"""

from __future__ import annotations

import gzip
import json
import threading
import zlib

from replication.errors import ConfigError, StorageError
from replication.files.store import RemoteStore
from replication.timeline.base import ARCHIVED_TOGETHER, Records

_SAFE = ("file", "local", "s3", "s3a", "memory")
_STATE = "archive/state.json.gz"


def open_records(url: str) -> Records:
    """Return the records below an address: a path, ``file:///…`` or ``s3://…``.

    Raises:
        ConfigError: the store cannot create an object only if it does not exist; or the address has ``::`` in it.
        StorageError: its driver is missing.
    """
    scheme, found, place = url.partition("://")
    if found and scheme not in _SAFE:
        raise ConfigError(
            f"a timeline cannot be kept at {url}: {scheme} may replace what another process has just written",
            "Set [timeline] url to a folder of a shared file system (file:///…) or of S3 (s3://…)",
        )
    if found and "::" in place and scheme not in ("file", "local"):  # it would be kept in the folder before that
        raise ConfigError(
            f"a timeline cannot be kept at {url}: it has :: in it, where fsspec ends an address",
            "Set [timeline] url to a folder without it",
        )
    return ArchivedRecords(RemoteStore(url))


class ArchivedRecords:
    """The records of a timeline in a store."""

    def __init__(self, store: RemoteStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._through: int | None = None
        self._pack: tuple[int, list[str]] = (-1, [])

    def create(self, number: int, content: bytes) -> bool:
        if not self._store.create(_name(number), _packed(content)):
            return False
        if number <= self._archived_through():
            self._remove(number)
            return False
        return True

    def read(self, number: int) -> bytes | None:
        through = self._archived_through() if self._through is None else self._through
        if number > through:
            if (content := self._read(_name(number))) is not None:
                return content
            if number > self._archived_through():
                return None
        return self._line(number)

    def archived(self) -> str:
        content = self._read(_STATE)
        return str(json.loads(content)["state"]) if content is not None else ""

    def archive(self, through: int, state: str) -> None:
        assert through % ARCHIVED_TOGETHER == 0
        begin = self._archived_through()
        for first in range(begin + 1, through + 1, ARCHIVED_TOGETHER):
            contents = [self.read(number) for number in range(first, first + ARCHIVED_TOGETHER)]
            lines = [content.decode() for content in contents if content is not None]
            assert len(lines) == ARCHIVED_TOGETHER, "only what exists is archived"
            self._store.create(_pack_name(first), _packed(json.dumps(lines).encode()))
        if through > begin:
            self._store.write(_STATE, _packed(json.dumps({"through": through, "state": state}).encode()))
        self._remove(*range(max(1, begin - ARCHIVED_TOGETHER + 1), through + 1))  # also of an archiver that died

    def _archived_through(self) -> int:
        """Through which number records are archived. An archiver that was slow may have written an older state."""
        through = self._through  # another thread may notice the same pack meanwhile
        if through is None:
            content = self._read(_STATE)
            through = int(json.loads(content)["through"]) if content is not None else 0
        while self._load(through + 1) is not None:
            through += ARCHIVED_TOGETHER
        self._through = through
        return through

    def _line(self, number: int) -> bytes:
        first = (number - 1) // ARCHIVED_TOGETHER * ARCHIVED_TOGETHER + 1
        with self._lock:
            kept, found = self._pack  # another thread may load another one meanwhile
            lines = found if kept == first else self._load(first)
            if lines is None:
                raise StorageError(f"{_pack_name(first)} of the timeline is missing", "Restore it from a backup")
            return lines[number - first].encode()

    def _load(self, first: int) -> list[str] | None:
        content = self._read(_pack_name(first))
        if content is None:
            return None
        lines: list[str] = json.loads(content)
        self._pack = (first, lines)
        return lines

    def _read(self, name: str) -> bytes | None:
        content = self._store.load(name)
        try:
            return None if content is None else gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise StorageError(f"{self._store.address(name)} is damaged: {error}", "Restore it from a backup") from None

    def _remove(self, *numbers: int) -> None:
        self._store.remove(*(self._store.address(_name(number)) for number in numbers))


def _packed(content: bytes) -> bytes:
    return gzip.compress(content, 1, mtime=0)


def _name(number: int) -> str:
    return f"{number // 1000:09d}/{number:012d}.json.gz"


def _pack_name(first: int) -> str:
    return f"archive/{first:012d}.json.gz"
