"""What the two sides of a sync agreed on when it last ended: a SQLite file with the second side's own files."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

from replication.core.copying.two_way import Agreed, SideState

_TABLE = """CREATE TABLE IF NOT EXISTS agreed (path TEXT PRIMARY KEY, first_size INTEGER, first_ns INTEGER,
  second_size INTEGER, second_ns INTEGER) WITHOUT ROWID"""


class SyncState:
    """The agreed files of one pair of addresses.

    Args:
        path: of the SQLite file.
    """

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path)
        self._db.execute(_TABLE)

    def all(self) -> dict[str, Agreed]:
        """Every agreed file by its path."""
        rows = self._db.execute("SELECT * FROM agreed")
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

    def close(self) -> None:
        """Close the file."""
        with closing(self._db):
            pass
