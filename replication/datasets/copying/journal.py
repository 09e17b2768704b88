"""The journal of a copy: what is staged already, by guid, so that the next run reuses it. A SQLite file.

An entry is trusted as it is until the machine restarts. After a restart the staged bytes may not have reached the disk,
so they are compared with the digest first. Parts of an upload are trusted if the store lists them as they are noted.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from replication.datasets.stores.base import Parts, Upload
from replication.files.boot import boot_id

_TABLES = """
CREATE TABLE IF NOT EXISTS staged (guid TEXT PRIMARY KEY, path TEXT, size INTEGER, digest BLOB, boot TEXT)
  WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ranges (guid TEXT, number INTEGER, size INTEGER, digest BLOB, boot TEXT,
  PRIMARY KEY (guid, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS uploads (guid TEXT, path TEXT, id TEXT, token TEXT, begun REAL,
  PRIMARY KEY (guid, path)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS parts (guid TEXT, number INTEGER, sent TEXT, PRIMARY KEY (guid, number)) WITHOUT ROWID;
"""
_PARTS = "LEFT JOIN parts USING (guid, number)"
_ALL = ("staged", "ranges", "uploads", "parts")


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A whole file in the staging folder: its guid, its path there, its size in bytes and its digest."""

    guid: str
    path: str
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
    """Entries of one job; safe for threads.

    Args:
        path: of the SQLite file.
    """

    def __init__(self, path: Path) -> None:
        self._boot = boot_id()
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(_TABLES)
        self.is_empty = self.has_nothing()

    def _any(self, table: str) -> bool:
        return self._db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is not None

    def has_nothing(self) -> bool:
        """Whether nothing that is staged is noted."""
        with self._lock:
            return not any(self._any(table) for table in _ALL)

    def add(self, staged: Iterable[JournalEntry]) -> None:
        """Files that are staged whole; their ranges are forgotten."""
        rows = [(each.guid, each.path, each.size, each.digest, self._boot) for each in staged]
        with self._lock:
            self._db.execute("BEGIN")
            self._db.executemany("INSERT OR REPLACE INTO staged VALUES (?, ?, ?, ?, ?)", rows)
            self._db.executemany("DELETE FROM ranges WHERE guid = ?", [row[:1] for row in rows])
            self._db.execute("COMMIT")

    def find(self, guid: str) -> tuple[JournalEntry, bool] | None:
        """A staged file, and whether it is trusted without reading it."""
        if self.is_empty:
            return None
        with self._lock:
            row = self._db.execute(
                "SELECT guid, path, size, digest, boot FROM staged WHERE guid = ?", (guid,)
            ).fetchone()
        return None if row is None else (JournalEntry(*row[:4]), row[4] == self._boot)

    def add_range(self, guid: str, number: int, size: int, digest: bytes, parts: Parts = ()) -> None:
        """A range of a large file whose bytes are durable; ``parts`` if it is uploaded."""
        with self._lock:
            self._db.execute("BEGIN")
            self._db.execute(
                "INSERT OR REPLACE INTO ranges VALUES (?, ?, ?, ?, ?)", (guid, number, size, digest, self._boot)
            )
            if parts:
                self._db.execute("INSERT OR REPLACE INTO parts VALUES (?, ?, ?)", (guid, number, json.dumps(parts)))
            self._db.execute("COMMIT")

    def ranges(self, guid: str) -> dict[int, JournaledRange]:
        """The ranges of a large file that are there, by number."""
        if self.is_empty:
            return {}
        with self._lock:
            rows = self._db.execute(
                f"SELECT number, size, digest, boot, sent FROM ranges {_PARTS} WHERE guid = ?", (guid,)
            ).fetchall()
        return {
            number: JournaledRange(
                size, digest, boot == self._boot, tuple((part, etag) for part, etag in json.loads(sent or "[]"))
            )
            for number, size, digest, boot, sent in rows
        }

    def add_upload(self, guid: str, upload: Upload) -> None:
        """An upload of a file: before it is begun without an id, then with it."""
        row = (guid, upload.path, upload.id, upload.token, time.time())
        with self._lock:
            self._db.execute("INSERT OR REPLACE INTO uploads VALUES (?, ?, ?, ?, ?)", row)

    def uploads(self, guid: str = "", path: str = "") -> list[JournaledUpload]:
        """The uploads that were begun and are not known to be over; all, or that of one file to one path."""
        found, given = "SELECT path, id, token, begun FROM uploads", (guid, path) if guid else ()
        with self._lock:
            rows = self._db.execute(f"{found} WHERE guid = ? AND path = ?" if guid else found, given).fetchall()
        return [JournaledUpload(Upload(path, id, token), begun) for path, id, token, begun in rows]

    def forget(self, guids: Iterable[str]) -> None:
        """Files that are published, or whose staged bytes are bad."""
        rows = [(guid,) for guid in guids]
        with self._lock:
            self._db.execute("BEGIN")
            for table in _ALL:
                self._db.executemany(f"DELETE FROM {table} WHERE guid = ?", rows)
            self._db.execute("COMMIT")

    def clear(self) -> None:
        """Nothing is staged any more."""
        with self._lock:
            for table in _ALL:
                self._db.execute(f"DELETE FROM {table}")

    def close(self) -> None:
        """Close the file."""
        with self._lock, closing(self._db):
            pass
