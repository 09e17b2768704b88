"""Litestream: a SQLite database (WAL mode, ``synchronous=FULL``) and its replica in a local folder.

1,000 rows a transaction. A replica is a set of transaction files, not a readable table: "visible" here means that the
file with the transaction is in the replica (files appear there by rename, after fsync); a reader would restore first.
Intervals are litestream's own, 1 s.
"""

from __future__ import annotations

import random
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from tests.bench.measure import Figure, seeded_rows
from tests.bench.peers.peer import cells, execute, figures, folder, program, stop, until

PACKAGES = "litestream (go install github.com/benbjohnson/litestream/cmd/litestream@latest)"
BATCH = 1000
LAGS = 60


def run(count: int) -> list[Figure]:
    """Load while litestream follows, single commits, then a load while it was away."""
    binary = program("litestream", PACKAGES)
    data = cells(seeded_rows(count))
    with folder("litestream") as home:
        site = _Site(home / "live")
        with site.litestream(binary):
            began = time.perf_counter()
            site.load(data)
            end_to_end = site.settled() - began
            site.check(binary, count)
            gaps = random.Random(3)
            lags = [site.lag(i, gaps.random()) for i in range(LAGS)]
        site = _Site(home / "away")
        with site.litestream(binary):
            site.settled()
        site.load(data)
        began = time.perf_counter()
        with site.litestream(binary):
            catch_up = site.settled() - began
        site.check(binary, count)
    return figures("litestream", count / end_to_end, count / catch_up, lags)


class _Site:
    """A database and where its replica goes."""

    def __init__(self, home: Path) -> None:
        home.mkdir()
        self._home, self._file, self._replica = home, home / "t.db", home / "replica"
        with closing(self._open()) as database:
            database.execute("CREATE TABLE t (k BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID")

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._file, isolation_level=None)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=5000"):
            database.execute(f"PRAGMA {pragma}")
        return database

    def load(self, data: np.ndarray) -> None:
        pairs = [(row[:16].tobytes(), row[16:].tobytes()) for row in data]
        with closing(self._open()) as database:
            for i in range(0, len(pairs), BATCH):
                database.execute("BEGIN IMMEDIATE")
                database.executemany("INSERT INTO t VALUES (?, ?)", pairs[i : i + BATCH])
                database.execute("COMMIT")

    @contextmanager
    def litestream(self, binary: str) -> Iterator[None]:
        configuration = self._home / "litestream.yml"
        replica = f"    replica:\n      type: file\n      path: {self._replica}\n"
        configuration.write_text(f"dbs:\n  - path: {self._file}\n{replica}")
        with (self._home / "litestream.log").open("ab") as log:
            process = subprocess.Popen([binary, "replicate", "-config", str(configuration)], stdout=log, stderr=log)
        try:
            yield
        finally:
            stop(process)

    def _newest(self) -> int:
        files = (self._replica / "ltx" / "0").glob("*.ltx")
        return max((int(file.stem.split("-")[1], 16) for file in files), default=0)

    def settled(self, quiet_s: float = 3.0) -> float:
        """When the replica's newest file came, once none has come for ``quiet_s``."""
        newest, seen = self._newest(), time.perf_counter()
        while not newest or time.perf_counter() - seen < quiet_s:
            time.sleep(0.02)
            if (now := self._newest()) != newest:
                newest, seen = now, time.perf_counter()
        return seen

    def lag(self, number: int, gap_s: float) -> float:
        time.sleep(gap_s)  # any phase of litestream's interval
        before = self._newest()
        with closing(self._open()) as database:
            database.execute("INSERT INTO t VALUES (?, ?)", (b"probe %09d" % number, bytes(100)))
            acked = time.perf_counter()
        return until(lambda: self._newest() > before, "a commit in litestream's replica", 0.001) - acked

    def check(self, binary: str, count: int) -> None:
        restored = self._home / "restored.db"
        execute(binary, "restore", "-o", str(restored), f"file://{self._replica}")
        with closing(sqlite3.connect(restored)) as database:
            found = database.execute("SELECT count(*) FROM t").fetchone()[0]
        assert found == count, f"litestream's replica has {found} rows of {count}"
