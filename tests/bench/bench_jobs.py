"""Rounds as Spark jobs: beside the driver's own threads, of many tables, and on a standalone cluster of two workers."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from replication import log
from replication.tables.spark.jobs import Jobs
from shell.processes.spark_cluster import SparkCluster
from tests.bench.alone import Alone, alone
from tests.bench.measure import PAIRS, QUICK, Figure, at_least, at_most, pairs, seeded_rows

ROUND = 300_000
ROWS = 300_000 if QUICK else 2_000_000
SIZES = (100, 10_000, 30_000, 60_000)
TABLES = 100
COUNT = 2 if QUICK else PAIRS
_WARM = 8
_ALL = 1 << 40
_HOST_ROWS = 125_000


def run() -> list[Figure]:
    """All figures of jobs."""
    with alone() as east:
        figures = [*_against_driver(east), _many_tables(east)]
    return [*figures, _on_a_cluster(), *_growth()]


def _against_driver(east: Alone) -> list[Figure]:
    spec = east.table("bench.t")
    turn = 0

    def timed(rows: int, small_bytes: int) -> float:
        nonlocal turn
        turn += 1
        east.write(spec, seeded_rows(rows, turn, turn * ROUND))
        east.tables.small_bytes = small_bytes
        began = time.perf_counter()
        result = east.replayer.round()
        assert result.tables == 1 and not result.held, result
        return time.perf_counter() - began

    for _ in range(_WARM):
        timed(ROUND, 0)
    jobs = east.tables.work.jobs
    figures = []
    for rows in SIZES:
        slower, spread = pairs(partial(timed, rows, _ALL), partial(timed, rows, 0), COUNT)
        size = east.tables.work.driver_bytes
        timed(rows, _ALL)
        size = (east.tables.work.driver_bytes - size) >> 10
        name = f"a round of {rows:,} rows ({size:,} KiB): a job against the driver"
        figures.append(Figure(name, slower, "×", spread=spread))
    slower, spread = pairs(partial(timed, ROUND, _ALL), partial(timed, ROUND, 0), COUNT)
    assert east.tables.work.jobs - jobs == COUNT * (len(SIZES) + 1)
    return [*figures, at_most(f"a round of {ROUND:,} rows: a job against the driver", slower, "×", 1.3, spread)]


def _many_tables(east: Alone) -> Figure:
    specs = [east.table(f"bench.t{number}") for number in range(TABLES)]
    for spec in specs:
        east.write(spec, seeded_rows(10))
    east.replay()
    for spec in specs:
        east.write(spec, seeded_rows(1000, 2, 100))
    east.tables.small_bytes = 0
    before = east.tables.work.jobs
    east.replay()
    return at_most(f"jobs in a round of {TABLES} tables", east.tables.work.jobs - before, "", 1)


def _on_a_cluster() -> Figure:
    """Both sessions stay, and their turns alternate."""
    with tempfile.TemporaryDirectory(prefix="walship-bench-") as folder, ExitStack() as stack:
        cluster = stack.enter_context(SparkCluster(Path(folder), memory_mb=1024))
        here = stack.enter_context(_replaying("local[2]", {}))
        there = stack.enter_context(_replaying(cluster.url, cluster.environment))
        for turn in (here, there) * 2:
            turn()
        faster, spread = pairs(there, here, COUNT)
    name = f"replay of {ROWS:,} rows on a Spark cluster of two one-core workers, against local[2]"
    return at_least(name, faster, "×", 0.8, spread)


class _Executors:
    """The executors of many hosts, simulated: each task runs here, and its time is not counted as the driver's."""

    def __init__(self, hosts: int) -> None:
        self.master, self.defaultParallelism = "spark://simulated:7077", 2 * hosts
        self.seconds = 0.0
        self.uiWebUrl = None

    def setLocalProperty(self, key: str, value: str) -> None:
        """Nobody looks."""

    def getConf(self) -> dict[str, str]:
        """Nothing is set."""
        return {}

    def parallelize(self, rows: list[bytes], _: int) -> _Executors:
        """Keep the tasks."""
        self._rows = rows
        return self

    def mapPartitions(self, run: Callable[[list[bytes]], Iterator[bytes]]) -> _Executors:
        """Keep what they run."""
        self._run = run
        return self

    def collect(self) -> list[bytes]:
        """Run them."""
        began = time.perf_counter()
        done = [result for row in self._rows for result in self._run([row])]
        self.seconds += time.perf_counter() - began
        return done


def _growth() -> list[Figure]:
    """What a round costs the driver when there are more hosts of two cores, each with 8 MiB of the round to decode."""
    figures = []
    for hosts in (1, 10) if QUICK else (1, 10, 100):
        with alone() as east:
            executors = _Executors(hosts)
            spec = east.table("bench.t")
            east.write(spec, seeded_rows(1000, first_key=1 << 50))
            east.replay()
            east.tables.jobs = Jobs(cast(Any, SimpleNamespace(sparkContext=executors)))
            for part in range(hosts):
                east.write(spec, seeded_rows(_HOST_ROWS, part, part * _HOST_ROWS))
            began = time.perf_counter()
            result = east.replayer.round()
            driver_s = time.perf_counter() - began - executors.seconds
            assert not result.more and east.tables.work.tasks == 2 * hosts, (result, east.tables.work)
        size = east.tables.work.job_bytes >> 20
        figures.append(Figure(f"a round of {hosts} hosts, {size:,} MiB: the driver's share", driver_s * 1e3, "ms"))
    return figures


@contextmanager
def _replaying(master: str, environment: dict[str, str]) -> Iterator[Callable[[], float]]:
    """A process that replays on a master; gives a function for the seconds that another ``ROWS`` rows take."""
    process = subprocess.Popen(
        [sys.executable, "-m", __spec__.name, master],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stdin is not None and process.stdout is not None
    sink, source = process.stdin, process.stdout

    def turn() -> float:
        sink.write("\n")
        sink.flush()
        return float(source.readline())

    try:
        yield turn
    finally:
        process.communicate(timeout=60)


def _replay(master: str) -> None:
    log.configure("warning", format="console")
    properties = {} if master.startswith("local") else {"spark.cores.max": "2", "spark.executor.cores": "1"}
    with alone(master=master, properties=properties) as east:
        east.tables.small_bytes = 0
        spec = east.table("bench.t")
        for turn, _ in enumerate(sys.stdin):
            east.write(spec, seeded_rows(ROWS, turn, turn * ROWS))
            print(east.replay(), flush=True)


if __name__ == "__main__":
    _replay(sys.argv[1])
