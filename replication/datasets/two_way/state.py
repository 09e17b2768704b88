"""What the two sides of a sync agreed on when it last ended: a SQLite file with the second side's own files."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

from replication.core.copying.two_way import Agreed, SideState
from replication.errors import StorageError

_TABLE = """CREATE TABLE IF NOT EXISTS agreed (path TEXT PRIMARY KEY, first_size INTEGER, first_ns INTEGER,
  second_size INTEGER, second_ns INTEGER) WITHOUT ROWID"""


class SyncState:
    """The agreed files of one pair of addresses.

    Args:
        path: of the SQLite file.

    Raises:
        StorageError: it is not one that a sync wrote.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = sqlite3.connect(path)
        try:
            self._db.execute(_TABLE)
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise self._unreadable(error) from None

    def all(self) -> dict[str, Agreed]:
        """Every agreed file by its path. StorageError when they cannot be read."""
        wanted = "SELECT path, first_size, first_ns, second_size, second_ns FROM agreed"
        try:
            rows = self._db.execute(wanted).fetchall()
        except sqlite3.DatabaseError as error:
            raise self._unreadable(error) from None
        return {path: Agreed(SideState(a, a_ns), SideState(b, b_ns)) for path, a, a_ns, b, b_ns in rows}

    def change(self, agreed: Mapping[str, Agreed], gone: Iterable[str]) -> None:
        """Note agreed files and forget others; durable on return."""
        rows = [
            (path, each.first.size, each.first.timestamp_ns, each.second.size, each.second.timestamp_ns)
            for path, each in agreed.items()
        ]
        with self._db:
            self._db.executemany("INSERT OR REPLACE INTO agreed VALUES (?, ?, ?, ?, ?)", rows)
            self._db.executemany("DELETE FROM agreed WHERE path = ?", [(path,) for path in gone])

    def _unreadable(self, error: sqlite3.DatabaseError) -> StorageError:
        return StorageError(
            f"the state {self._path} of the sync cannot be read: {error}",
            "Move it away: the next run compares both sides, and removes nothing",
        )

    def close(self) -> None:
        """Close the file."""
        with closing(self._db):
            pass
