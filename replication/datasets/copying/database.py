"""A SQLite file of a copy, for the threads of one process. Its errors say which file it is and what to do."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from replication.errors import NoSpaceError, StorageError

_Given = Sequence[object] | Mapping[str, object]


class Database:
    """An open file; a change is whole on return, and durable with ``synchronous`` FULL.

    Args:
        path: of the file, or ``:memory:``.
        tables: statements that make its tables, if they are missing.
        use: what it is for: ``the journal of the copy``.
        without: what follows when it is moved away.
        synchronous: of SQLite; with NORMAL a power cut may undo the last changes.

    Raises:
        NoSpaceError: its disk is full. All calls may raise it, and the next.
        StorageError: it cannot be made, read or written, or is damaged.
    """

    def __init__(self, path: Path | str, tables: str, use: str, without: str, synchronous: str = "NORMAL") -> None:
        self._name, self._without = f"{use} in {path}", without
        self._lock = threading.Lock()
        with self._errors(), ExitStack() as stack:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=30)
            stack.callback(self._db.close)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute(f"PRAGMA synchronous={synchronous}")
            self._db.executescript(tables)
            stack.pop_all()

    def rows(self, query: str, given: _Given = ()) -> list[Any]:
        """All rows of a query."""
        with self._errors(), self._lock:
            return self._db.execute(query, given).fetchall()

    def change(self, statement: str, given: _Given = ()) -> int:
        """Make one change; the number of the row that it has inserted last."""
        with self._errors(), self._lock:
            return self._db.execute(statement, given).lastrowid or 0

    @contextmanager
    def changing(self) -> Iterator[sqlite3.Connection]:
        """Make several changes, all or none."""
        with self._errors(), self._lock, self._db:
            self._db.execute("BEGIN")
            yield self._db

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock:
            self._db.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
                raise NoSpaceError(f"no space is left for {self._name}", "Make room and run it again") from error
            raise StorageError(
                f"{self._name} cannot be used: {error}",
                f"Its folder must be writable and have room. If it is damaged, move it away: {self._without}",
            ) from error
