"""The runs of declared datasets, and every file that they copied: when, from where, by whom. A SQLite file.

A dataset whose runs failed :data:`FAILURES_MAX` times in a row is suspended, alone, until a person resumes it. Runs
that began more than :data:`KEPT_DAYS` days ago are deleted with their files when another run begins.
"""

from __future__ import annotations

import getpass
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from replication.datasets.copying.file_sets import FileSet
from replication.datasets.copying.progress import CopyCounts
from replication.errors import StorageError

FAILURES_MAX = 5
KEPT_DAYS = 365

_TABLES = """
CREATE TABLE IF NOT EXISTS states (dataset TEXT PRIMARY KEY, paused INTEGER DEFAULT 0, failures INTEGER DEFAULT 0,
  error TEXT DEFAULT '');
CREATE TABLE IF NOT EXISTS runs (run INTEGER PRIMARY KEY, dataset TEXT, begun_us INTEGER, ended_us INTEGER DEFAULT 0,
  user TEXT, host TEXT, source TEXT, target TEXT, files INTEGER DEFAULT 0, bytes INTEGER DEFAULT 0,
  failed INTEGER DEFAULT 0, error TEXT DEFAULT '');
CREATE TABLE IF NOT EXISTS copies (run INTEGER, path TEXT, origin TEXT, bytes INTEGER, digest TEXT, at_us INTEGER);
CREATE INDEX IF NOT EXISTS runs_by_time ON runs (begun_us);
CREATE INDEX IF NOT EXISTS copies_of_runs ON copies (run);
CREATE INDEX IF NOT EXISTS copies_of_paths ON copies (path);
CREATE INDEX IF NOT EXISTS copies_of_origins ON copies (origin);
"""


@dataclass(frozen=True, slots=True)
class DatasetState:
    """How a dataset stands."""

    paused: bool = False
    failures: int = 0
    error: str = ""

    @property
    def suspended(self) -> bool:
        """Whether it failed too often and waits for a person."""
        return self.failures >= FAILURES_MAX

    @property
    def word(self) -> str:
        """In one word."""
        return "paused" if self.paused else "suspended" if self.suspended else "failing" if self.failures else "active"


@dataclass(frozen=True, slots=True)
class DatasetRun:
    """One run; times are microseconds since 1970, 0 while it runs or when it was killed."""

    run: int
    dataset: str
    begun_us: int
    ended_us: int
    user: str
    host: str
    source: str
    target: str
    files: int
    bytes: int
    failed: int
    error: str


class DatasetHistory:
    """Safe for threads; every call is durable on return. StorageError if it cannot be made or read."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        try:
            with ExitStack() as stack:
                self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=30)
                stack.callback(self._db.close)
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=FULL")
                self._db.executescript(_TABLES)
                stack.pop_all()
        except sqlite3.Error as error:
            raise StorageError(
                f"the history {path} of the datasets cannot be used: {error}",
                "Its folder must be writable and have room. If the file is damaged, move it away",
            ) from None

    def state(self, dataset: str) -> DatasetState:
        """How a dataset stands."""
        with self._lock:
            row = self._db.execute(
                "SELECT paused, failures, error FROM states WHERE dataset = ?", (dataset,)
            ).fetchone()
        return DatasetState(bool(row[0]), row[1], row[2]) if row else DatasetState()

    def pause(self, dataset: str) -> None:
        """Refuse runs until it is resumed."""
        self._set(dataset, paused=1)

    def resume(self, dataset: str) -> None:
        """Allow runs again, and forget failures."""
        self._set(dataset, paused=0, failures=0, error="")

    def begin(self, dataset: str, source: str, target: str) -> int:
        """Note that a run begins, and delete runs that are too old; its number."""
        now = _now()
        old = now - KEPT_DAYS * 86_400_000_000
        with self._lock:
            self._db.execute("DELETE FROM copies WHERE run IN (SELECT run FROM runs WHERE begun_us < ?)", (old,))
            self._db.execute("DELETE FROM runs WHERE begun_us < ?", (old,))
            row = (dataset, now, _user(), socket.gethostname(), source, target)
            made = self._db.execute(
                "INSERT INTO runs (dataset, begun_us, user, host, source, target) VALUES (?, ?, ?, ?, ?, ?)", row
            )
            return int(made.lastrowid or 0)

    def copied(self, run: int, file_set: FileSet) -> None:
        """Note the files of a published file set."""
        now = _now()
        rows = [
            (run, each.file.destination, each.file.origin.path, each.file.origin.size, each.digest, now)
            for each in file_set.staged
        ]
        with self._lock, self._db:
            self._db.execute("BEGIN")
            self._db.executemany("INSERT INTO copies VALUES (?, ?, ?, ?, ?, ?)", rows)

    def forget(self, run: int) -> None:
        """Forget a run that did nothing."""
        with self._lock:
            self._db.execute("DELETE FROM runs WHERE run = ?", (run,))

    def end(self, run: int, dataset: str, counts: CopyCounts, error: str, *, is_failure: bool = True) -> None:
        """Note how a run ended. An error counts as a failure of the dataset unless told otherwise.

        A run without an error resets the failures.
        """
        with self._lock:
            self._db.execute(
                "UPDATE runs SET ended_us = ?, files = ?, bytes = ?, failed = ?, error = ? WHERE run = ?",
                (_now(), counts.files_published, counts.bytes_copied, counts.failed, error, run),
            )
        if is_failure:
            failures = self.state(dataset).failures + 1 if error else 0
            self._set(dataset, failures=failures, error=error)

    def runs(self, dataset: str, limit: int) -> list[DatasetRun]:
        """The latest runs, newest first."""
        with self._lock:
            rows = self._db.execute(
                "SELECT * FROM runs WHERE dataset = ? ORDER BY run DESC LIMIT ?", (dataset, limit)
            ).fetchall()
        return [DatasetRun(*row) for row in rows]

    def copies(self, dataset: str, path: str, limit: int) -> list[dict[str, object]]:
        """When a file was copied, from where and by whom, newest first; by its path in the target or in the source."""
        wanted = (
            "SELECT c.at_us, c.path, r.source || '/' || c.origin, c.bytes, c.digest, r.user, r.host, r.run"
            " FROM copies c JOIN runs r ON r.run = c.run WHERE r.dataset = ? AND (c.path = ? OR c.origin = ?)"
            " ORDER BY c.at_us DESC LIMIT ?"
        )
        with self._lock:
            rows = self._db.execute(wanted, (dataset, path, path, limit)).fetchall()
        names: Sequence[str] = ("at_us", "path", "source", "bytes", "digest", "user", "host", "run")
        return [dict(zip(names, row, strict=True)) for row in rows]

    def close(self) -> None:
        """Close the file."""
        with self._lock, closing(self._db):
            pass

    def _set(self, dataset: str, **fields: object) -> None:
        with self._lock:
            self._db.execute("INSERT OR IGNORE INTO states (dataset) VALUES (?)", (dataset,))
            names = ", ".join(f"{name} = ?" for name in fields)
            self._db.execute(f"UPDATE states SET {names} WHERE dataset = ?", (*fields.values(), dataset))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as containers have
        return str(os.getuid())


def _now() -> int:
    return time.time_ns() // 1000
