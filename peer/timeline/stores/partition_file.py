"""A file of partitions, each one row, and the state that they are of: what a store of views keeps, and spills.

SQLite's write-ahead log keeps it whole after a kill; after a power cut it may be older than it was, never torn. What
cannot be opened is deleted, since views are made anew from the timeline and listings.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from replication import log
from replication.core.timeline.instants import FileVersion, TimelineState, pack, state_from_json, state_to_json, unpack
from replication.errors import FormatError, LockedFileError, StorageError

_VERSION = 1
CACHE_BYTES = 2 << 20
_log = log.get(__name__)


@dataclass(slots=True)
class PartitionFiles:
    """The versions of a partition by path, and whether nothing is missing."""

    versions: dict[str, FileVersion] = field(default_factory=dict)
    listed: bool = False

    def to_json(self) -> str:
        """The versions as text."""
        return json.dumps([pack(v)[1:] for v in self.versions.values()], separators=(",", ":"))

    @staticmethod
    def of_json(partition: str, content: str, listed: bool) -> PartitionFiles:
        """Read the text of ``to_json``."""
        versions = [unpack([partition, *raw]) for raw in json.loads(content)]
        return PartitionFiles({version.path: version for version in versions}, listed)


def to_bytes(name: str) -> bytes:
    """A name of a file or folder as the bytes that a file system has, UTF-8 or not."""
    return name.encode("utf-8", "surrogateescape")


def from_bytes(name: bytes) -> str:
    """The name of ``to_bytes``."""
    return name.decode("utf-8", "surrogateescape")


class PartitionFile:
    """The file. One thread at a time uses it, of one process.

    Raises:
        LockedFileError: another process has it open.
        StorageError: the disk is full, or fails.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._unlock = weakref.finalize(self, os.close, _locked(path))
        try:
            self._open()
            self.state()
        except sqlite3.OperationalError as error:  # the disk is full or fails: the file may be good
            self._unlock()
            raise StorageError(f"{path} cannot be opened: {error}", "Check the disk") from error
        except (sqlite3.Error, FormatError) as error:
            _log.warning("view_checkpoint_unreadable", file=str(path), error=str(error))
            for file in path.parent.glob(f"{path.name}*"):
                file.unlink()
            self._open()

    def _open(self) -> None:
        self._sql = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        self._sql.execute("pragma journal_mode = wal")
        self._sql.execute("pragma synchronous = normal")
        self._sql.execute(f"pragma cache_size = -{CACHE_BYTES >> 10}")
        (version,) = self._sql.execute("pragma user_version").fetchone()
        if version not in (0, _VERSION):
            raise FormatError(f"{self._path} has format {version}")
        self._sql.execute("create table if not exists state (id integer primary key, content text not null)")
        self._sql.execute(
            "create table if not exists partitions (dataset text not null, name blob not null, listed integer not null,"
            " content text not null, primary key (dataset, name)) without rowid"
        )
        self._sql.execute(f"pragma user_version = {_VERSION}")

    def state(self) -> TimelineState:
        """The state that was written last."""
        row = self._sql.execute("select content from state").fetchone()
        return state_from_json(row[0]) if row else TimelineState()

    def read(self, dataset: str, partition: str) -> PartitionFiles | None:
        """Return a partition; None if it has none of that name."""
        with self._read_errors():
            row = self._sql.execute(
                "select listed, content from partitions where dataset = ? and name = ?", (dataset, to_bytes(partition))
            ).fetchone()
            return PartitionFiles.of_json(partition, row[1], bool(row[0])) if row else None

    def names(self, dataset: str) -> list[str]:
        """Return the names of a dataset's partitions, sorted."""
        with self._read_errors():
            rows = self._sql.execute("select name from partitions where dataset = ? order by name", (dataset,))
            return [from_bytes(name) for (name,) in rows]

    def write(self, state: TimelineState | None, dataset: str, partitions: Mapping[str, PartitionFiles]) -> None:
        """Write partitions, and the state that they are of if it has changed, in one step."""
        try:
            self._sql.execute("begin immediate")
            self._sql.executemany(
                "insert or replace into partitions values (?, ?, ?, ?)",
                ((dataset, to_bytes(name), int(files.listed), files.to_json()) for name, files in partitions.items()),
            )
            if state is not None:
                self._sql.execute("insert or replace into state values (1, ?)", (state_to_json(state),))
            self._sql.execute("commit")
        except sqlite3.Error as error:
            if self._sql.in_transaction:
                self._sql.execute("rollback")
            raise StorageError(f"{self._path} cannot be written: {error}", "Check the disk") from error

    @contextmanager
    def _read_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, ValueError) as error:
            remedy = "Stop the processes that use it and delete it; it is made anew"
            raise StorageError(f"{self._path} cannot be read: {error}", remedy) from error

    def close(self) -> None:
        """Close it."""
        self._sql.close()
        self._unlock()


def _locked(path: Path) -> int:
    """The descriptor of a file beside it, locked until it is closed."""
    lock = os.open(path.with_name(f".{path.name}.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise LockedFileError(f"{path} is open in another process", "Stop that one first") from None
    return lock
