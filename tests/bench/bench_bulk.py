"""Bulk import: a file imported at east and applied at west, against an rsync daemon with --fsync of the same file.

East keeps no tables here, for on one machine its own replay would only take turns with west's; everything else of two
whole clusters runs. What rsync leaves behind is a file; what walship does, rows of a table that any engine can query.
So Parquet is measured, too, against what gets there without walship: rsync, and an append of the file by a warm Spark
to an Iceberg table without a key. And beside rsync stands the least that rows applied at two sites need in any case:
the file durable at home, durable at the peer, and its rows durable there as a table's file.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from replication.tables.catalog.catalog import catalog_properties
from replication.tables.spark.session import open_session
from tests.bench.bench_ship import rsync_daemon
from tests.bench.clusters import TABLE, Pair, pair
from tests.bench.measure import (
    PAIRS,
    QUICK,
    SCHEMA,
    Figure,
    as_table_file,
    at_least,
    durably,
    pairs,
    ratio,
    seeded_rows,
)

ROWS = 500_000 if QUICK else 4_000_000
COUNT = 3 if QUICK else PAIRS
SETTINGS = {"replay": {"fold_interval_s": 3600.0}}
WAIT_S = 300.0


def run() -> list[Figure]:
    """All figures of bulk import."""
    if shutil.which("rsync") is None:
        return [Figure("bulk: rsync is not installed", 0.0, "×")]
    folder = Path(tempfile.mkdtemp(prefix="walship-bulk-"))
    try:
        with rsync_daemon(folder) as url, pair(SETTINGS, of_east={"replay": {"enabled": False}}) as both:
            figures = _measure(folder, url, both, "Arrow", _write_arrow)
            with _spark(folder) as append:
                return figures + _measure(folder, url, both, "Parquet", _write_parquet, append)
    finally:
        shutil.rmtree(folder)


@contextmanager
def _spark(folder: Path) -> Iterator[Callable[[Path], None]]:
    """Appends a Parquet file to an Iceberg table."""
    properties = catalog_properties(folder)
    session = open_session(properties, folder / "spark")
    try:
        session.sql("create database walship.bench")
        session.sql("create table walship.bench.plain (k binary, v binary) using iceberg")
        yield lambda file: session.read.parquet(str(file)).writeTo("walship.bench.plain").append()
    finally:
        session.stop()


@dataclass
class _Measured:
    """Seconds of each run of one format: ours, rsync's, and what lies between."""

    folder: Path
    url: str
    both: Pair
    name: str
    files: list[Path]
    append: Callable[[Path], None] | None
    durable: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    by_hand: list[float] = field(default_factory=list)
    least: list[float] = field(default_factory=list)

    def ours(self) -> float:
        """Import the next file, and wait for it at the peer."""
        began = time.perf_counter()
        position = self.both.east.import_files(TABLE, self.files[len(self.times)])
        self.durable.append(time.perf_counter() - began)
        self.both.east.wait(position, cluster="west", until="applied", timeout_s=WAIT_S)
        self.times.append(time.perf_counter() - began)
        return self.times[-1]

    def theirs(self) -> float:
        """Copy the same file with rsync; then what a person would do with it, and the least that must be done."""
        file, copy = self.files[len(self.alone)], self.folder / "rsync" / "copy"
        began = time.perf_counter()
        subprocess.run(["rsync", "--fsync", str(file), f"{self.url}/copy"], check=True)
        seconds = time.perf_counter() - began
        if self.append is not None:
            self.append(copy)
            self.by_hand.append(time.perf_counter() - began)
        self.alone.append(seconds)
        self.least.append(seconds + _copied_and_written_again(file, copy, self.folder, self.name))
        copy.unlink()
        return seconds


def _measure(
    folder: Path,
    url: str,
    both: Pair,
    name: str,
    write: Callable[[pa.Table, Path], None],
    append: Callable[[Path], None] | None = None,
) -> list[Figure]:
    """Interleaved pairs, each with a file of its own, since the same content is imported once."""
    files = [folder / f"{number}.{name.lower()}" for number in range(COUNT + 1)]
    for number, file in enumerate(files):
        write(seeded_rows(ROWS, len(name) * 100 + number), file)
    size = files[0].stat().st_size / 1e6
    measured = _Measured(folder, url, both, name, files, append)
    measured.ours(), measured.theirs()  # warm-up
    against_rsync, spread = pairs(measured.ours, measured.theirs, COUNT)
    for file in files:
        file.unlink()
    durable, times, least = measured.durable, measured.times, measured.least
    rows, applied = f"{ROWS / 1e6:g} M rows in {name}", f"bulk: {name}, applied at the peer"
    against = []
    if append is not None:
        of_hand, hand_spread = ratio(measured.by_hand[1:], times[1:])
        what = f"bulk: {name}, applied, against rsync and Spark's append of it"
        against.append(at_least(what, of_hand, "×", 1, hand_spread))
    of_rsync, rsync_spread = ratio(measured.alone[1:], least[1:])
    of_least, least_spread = ratio(least[1:], times[1:])
    return [
        Figure(f"bulk: import, {rows}, durable at home", size / min(durable), "MB/s"),
        Figure(f"bulk: import, {rows}, applied at the peer", size / min(times), "MB/s"),
        Figure(f"bulk: import, {rows}, applied at the peer", ROWS / min(times), "rows/s"),
        at_least(f"{applied}, against an rsync daemon --fsync", against_rsync, "×", 0.5, spread),
        Figure(f"bulk: {name}, the least (see bench_bulk.py), against that rsync", of_rsync, "×", spread=rsync_spread),
        at_least(f"{applied}, against the least", of_least, "×", 0.5, least_spread),
        *against,
    ]


def _copied_and_written_again(file: Path, copy: Path, folder: Path, name: str) -> float:
    """Seconds for a durable copy of ``file``, and for the rows of ``copy`` in a durable Parquet file."""
    home, table = folder / "home", folder / "table"
    began = time.perf_counter()
    with open(file, "rb") as source:
        durably(home, lambda sink: shutil.copyfileobj(source, sink, 8 << 20))
    rows = pq.read_table(copy) if name == "Parquet" else pa.ipc.open_file(pa.memory_map(str(copy))).read_all()
    as_table_file(rows, table)
    seconds = time.perf_counter() - began
    home.unlink()
    table.unlink()
    return seconds


def _write_arrow(rows: pa.Table, file: Path) -> None:
    with pa.ipc.new_file(str(file), SCHEMA) as writer:
        writer.write_table(rows, 65_536)


def _write_parquet(rows: pa.Table, file: Path) -> None:
    pq.write_table(rows, file)
