"""The journal of a copy: what is staged already, by guid, so that the next run reuses it. A SQLite file.

An entry is trusted as it is until the machine restarts. After a restart the staged bytes may not have reached the disk,
so they are compared with the digest first.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from replication.files.boot import boot_id

_TABLES = """
CREATE TABLE IF NOT EXISTS staged (guid TEXT PRIMARY KEY, path TEXT, size INTEGER, digest BLOB, boot TEXT)
  WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ranges (guid TEXT, number INTEGER, size INTEGER, digest BLOB, boot TEXT,
  PRIMARY KEY (guid, number)) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A whole file in the staging folder: its guid, its path there, its size in bytes and its digest."""

    guid: str
    path: str
    size: int
    digest: str


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
            return not self._any("staged") and not self._any("ranges")

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

    def add_range(self, guid: str, number: int, size: int, digest: bytes) -> None:
        """A range of a large file whose bytes are durable."""
        with self._lock:
            self._db.execute(
                "INSERT OR REPLACE INTO ranges VALUES (?, ?, ?, ?, ?)", (guid, number, size, digest, self._boot)
            )

    def ranges(self, guid: str) -> dict[int, tuple[int, bytes, bool]]:
        """The ranges of a large file that are there: size, digest, and whether they are trusted without reading."""
        if self.is_empty:
            return {}
        with self._lock:
            rows = self._db.execute("SELECT number, size, digest, boot FROM ranges WHERE guid = ?", (guid,)).fetchall()
        return {number: (size, digest, boot == self._boot) for number, size, digest, boot in rows}

    def forget(self, guids: Iterable[str]) -> None:
        """Files that are published, or whose staged bytes are bad."""
        rows = [(guid,) for guid in guids]
        with self._lock:
            self._db.execute("BEGIN")
            self._db.executemany("DELETE FROM staged WHERE guid = ?", rows)
            self._db.executemany("DELETE FROM ranges WHERE guid = ?", rows)
            self._db.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        with self._lock, closing(self._db):
            pass
