"""The runs of declared datasets, and every file that they copied: when, from where, by whom. A SQLite file.

A dataset whose runs failed :data:`FAILURES_MAX` times in a row is suspended, alone, until a person resumes it. Runs
that began more than :data:`KEPT_DAYS` days ago are deleted with their files when another run begins.
"""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from replication.datasets.copying.database import Database
from replication.datasets.copying.file_sets import FileSet
from replication.datasets.copying.progress import CopyCounts
from replication.wall_clock import now_us

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
    """Safe for threads; every call is durable on return, and raises as ``Database``."""

    def __init__(self, path: Path) -> None:
        use, without = "the history of the datasets", "their earlier runs are unknown then, and none is suspended"
        self._db = Database(path, _TABLES, use, without, "FULL")

    def state(self, dataset: str) -> DatasetState:
        """How a dataset stands."""
        found = self._db.rows("SELECT paused, failures, error FROM states WHERE dataset = ?", (dataset,))
        return next((DatasetState(bool(paused), *others) for paused, *others in found), DatasetState())

    def pause(self, dataset: str) -> None:
        """Refuse runs until it is resumed."""
        self._set(dataset, paused=1)

    def resume(self, dataset: str) -> None:
        """Allow runs again, and forget failures."""
        self._set(dataset, paused=0, failures=0, error="")

    def begin(self, dataset: str, source: str, target: str) -> int:
        """Note that a run begins, and delete runs that are too old; its number."""
        now = now_us()
        old = now - KEPT_DAYS * 86_400_000_000
        self._db.change("DELETE FROM copies WHERE run IN (SELECT run FROM runs WHERE begun_us < ?)", (old,))
        self._db.change("DELETE FROM runs WHERE begun_us < ?", (old,))
        return self._db.change(
            "INSERT INTO runs (dataset, begun_us, user, host, source, target) VALUES (?, ?, ?, ?, ?, ?)",
            (dataset, now, _user(), socket.gethostname(), source, target),
        )

    def copied(self, run: int, file_set: FileSet) -> None:
        """Note the files of a published file set."""
        now = now_us()
        rows = [
            (run, each.file.destination, each.file.origin.path, each.file.origin.size, each.digest, now)
            for each in file_set.staged
        ]
        with self._db.changing() as db:
            db.executemany("INSERT INTO copies VALUES (?, ?, ?, ?, ?, ?)", rows)

    def forget(self, run: int) -> None:
        """Forget a run that did nothing."""
        self._db.change("DELETE FROM runs WHERE run = ?", (run,))

    def end(self, run: int, dataset: str, counts: CopyCounts, error: str, *, is_failure: bool = True) -> None:
        """Note how a run ended. An error counts as a failure of the dataset unless told otherwise.

        A run without an error resets the failures.
        """
        self._db.change(
            "UPDATE runs SET ended_us = ?, files = ?, bytes = ?, failed = ?, error = ? WHERE run = ?",
            (now_us(), counts.files_published, counts.bytes_copied, counts.failed, error, run),
        )
        if is_failure:
            failures = self.state(dataset).failures + 1 if error else 0
            self._set(dataset, failures=failures, error=error)

    def runs(self, dataset: str, limit: int) -> list[DatasetRun]:
        """The latest runs, newest first."""
        rows = self._db.rows("SELECT * FROM runs WHERE dataset = ? ORDER BY run DESC LIMIT ?", (dataset, limit))
        return [DatasetRun(*row) for row in rows]

    def copies(self, dataset: str, path: str, limit: int) -> list[dict[str, object]]:
        """When a file was copied, from where and by whom, newest first; by its path in the target or in the source."""
        wanted = (
            "SELECT c.at_us, c.path, r.source || '/' || c.origin, c.bytes, c.digest, r.user, r.host, r.run"
            " FROM copies c JOIN runs r ON r.run = c.run WHERE r.dataset = ? AND (c.path = ? OR c.origin = ?)"
            " ORDER BY c.at_us DESC LIMIT ?"
        )
        names = ("at_us", "path", "source", "bytes", "digest", "user", "host", "run")
        return [dict(zip(names, row, strict=True)) for row in self._db.rows(wanted, (dataset, path, path, limit))]

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._db.close()

    def _set(self, dataset: str, **fields: object) -> None:
        names = ", ".join(f"{name} = ?" for name in fields)
        with self._db.changing() as db:
            db.execute("INSERT OR IGNORE INTO states (dataset) VALUES (?)", (dataset,))
            db.execute(f"UPDATE states SET {names} WHERE dataset = ?", (*fields.values(), dataset))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as containers have
        return str(os.getuid())
