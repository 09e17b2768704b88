"""The journal of a copy: what is staged already, by its path, so that the next run reuses it. A SQLite file.

It is reused only for the same state: the same origin file, copied with the same conversions, attributes and range size.

An entry is trusted as it is until the machine restarts. After a restart the staged bytes may not have reached the disk,
so they are compared with the digest first. Parts of an upload are trusted if the store lists them as they are noted.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.conversions import applied
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import RelativePath
from replication.datasets.copying.database import Database
from replication.datasets.stores.base import Parts, Upload

_TABLES = """
CREATE TABLE IF NOT EXISTS staged (path TEXT PRIMARY KEY, state TEXT, size INTEGER, digest TEXT, boot TEXT)
  WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ranges (path TEXT, number INTEGER, state TEXT, size INTEGER, digest BLOB, boot TEXT,
  sent TEXT, PRIMARY KEY (path, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS uploads (path TEXT, state TEXT, destination TEXT, id TEXT, token TEXT, begun REAL,
  PRIMARY KEY (path, state)) WITHOUT ROWID;
"""
_ALL = ("staged", "ranges", "uploads")
_NUMBER_MAX = (1 << 31) - 1


class JournalKey(NamedTuple):
    """Where a file is staged, and a digest of all that the staged bytes and attributes depend on."""

    path: RelativePath
    state: str

    @classmethod
    def of(cls, file: CopyableFile, path: RelativePath, configuration: CopyConfiguration) -> JournalKey:
        """The key of a file that is staged at ``path``."""
        parts = (
            file.guid,
            [each.text for each in applied(file.origin.path, configuration.conversions)],
            (file.owner, file.group, file.permission, sorted(file.preserve)),
            (file.replication, file.block_size, configuration.range_bytes),
        )
        return cls(path, hashlib.sha256(repr(parts).encode()).hexdigest()[:40])


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A whole file in the staging folder: its key, its size in bytes and its digest."""

    key: JournalKey
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class JournaledRange:
    """A range of a large file: its size in bytes, its digest, whether it is trusted without reading it, its parts."""

    size: int
    digest: bytes
    is_trusted: bool
    parts: Parts = ()


@dataclass(frozen=True, slots=True)
class JournaledUpload:
    """An upload, and when it was begun in seconds since 1970; it has no id if a run was killed just then."""

    upload: Upload
    begun_s: float


class CopyJournal:
    """Entries of one job; safe for threads. Raises as ``Database``. ``boot`` is the target's.

    ``number`` is of this journal alone: other hosts may run the same copy, and have journals of their own.
    """

    def __init__(self, path: Path, boot: str) -> None:
        self._boot = boot
        self._db = Database(path, _TABLES, "the journal of the copy", "what is staged is copied again")
        self.is_empty = self.has_nothing()
        if not (number := self._db.rows("PRAGMA user_version")[0][0]):
            number = 1 + secrets.randbelow(_NUMBER_MAX)
            self._db.change(f"PRAGMA user_version = {number}")
        self.number: int = number

    def has_nothing(self) -> bool:
        """Whether nothing that is staged is noted."""
        return not any(self._db.rows(f"SELECT 1 FROM {table} LIMIT 1") for table in _ALL)

    def begin(self, keys: Iterable[JournalKey]) -> None:
        """Files that will be written: what is noted at their paths is forgotten, but for ranges of the same state."""
        if self.is_empty:
            return
        rows = list(keys)
        with self._db.changing() as db:
            db.executemany("DELETE FROM staged WHERE path = ?", [row[:1] for row in rows])
            db.executemany("DELETE FROM ranges WHERE path = ? AND state <> ?", rows)

    def add(self, staged: Iterable[JournalEntry]) -> None:
        """Files that are staged whole; their ranges are forgotten."""
        rows = [(*each.key, each.size, each.digest, self._boot) for each in staged]
        with self._db.changing() as db:
            db.executemany("INSERT OR REPLACE INTO staged VALUES (?, ?, ?, ?, ?)", rows)
            db.executemany("DELETE FROM ranges WHERE path = ?", [row[:1] for row in rows])

    def find(self, key: JournalKey) -> tuple[JournalEntry, bool] | None:
        """A staged file, and whether it is trusted without reading it."""
        if self.is_empty:
            return None
        found = self._db.rows("SELECT size, digest, boot FROM staged WHERE path = ? AND state = ?", key)
        return next(((JournalEntry(key, *row[:2]), row[2] == self._boot) for row in found), None)

    def add_range(self, key: JournalKey, number: int, size: int, digest: bytes, parts: Parts = ()) -> None:
        """A range of a large file whose bytes are durable; ``parts`` if it is uploaded."""
        row = (key.path, number, key.state, size, digest, self._boot, json.dumps(parts))
        self._db.change("INSERT OR REPLACE INTO ranges VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def ranges(self, key: JournalKey) -> dict[int, JournaledRange]:
        """The ranges of a large file that are there, by number."""
        if self.is_empty:
            return {}
        rows = self._db.rows("SELECT number, size, digest, boot, sent FROM ranges WHERE path = ? AND state = ?", key)
        return {
            number: JournaledRange(
                size, digest, boot == self._boot, tuple((part, etag) for part, etag in json.loads(sent))
            )
            for number, size, digest, boot, sent in rows
        }

    def add_upload(self, key: JournalKey, upload: Upload) -> None:
        """An upload of a file: before it is begun without an id, then with it."""
        row = (*key, upload.path, upload.id, upload.token, time.time())
        self._db.change("INSERT OR REPLACE INTO uploads VALUES (?, ?, ?, ?, ?, ?)", row)

    def uploads(self, key: JournalKey | None = None) -> list[JournaledUpload]:
        """The uploads that were begun and are not known to be over; all, or that of one file."""
        found = "SELECT destination, id, token, begun FROM uploads"
        rows = self._db.rows(f"{found} WHERE path = ? AND state = ?", key) if key else self._db.rows(found)
        return [JournaledUpload(Upload(path, id, token), begun) for path, id, token, begun in rows]

    def forget(self, paths: Iterable[RelativePath], uploaded: Iterable[JournalKey] = ()) -> None:
        """Files that are published, or whose staged bytes are bad; uploads of other states are to be given up."""
        rows = [(path,) for path in paths]
        with self._db.changing() as db:
            db.executemany("DELETE FROM staged WHERE path = ?", rows)
            db.executemany("DELETE FROM ranges WHERE path = ?", rows)
            db.executemany("DELETE FROM uploads WHERE path = ? AND state = ?", uploaded)

    def clear(self) -> None:
        """Nothing is staged any more."""
        for table in _ALL:
            self._db.change(f"DELETE FROM {table}")

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._db.close()
