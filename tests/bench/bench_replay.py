"""Replay, fold and ``__latest`` beside plain Spark in one session, and reads without Spark.

Plain Spark appends the same rows from Parquet files to an Iceberg table of the same properties, merges the same changed
keys with ``MERGE``, and scans ``<table>``. Our turn and the other's alternate. ``read`` is timed in the library and as
a user meets it, the command's start included.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from peer.tables.fold import fold
from replication.core.definition.schema import TableSpec
from replication.tables.layout import CHANGES, LATEST
from tests.bench.alone import Alone, alone
from tests.bench.measure import PAIRS, QUICK, Figure, at_least, at_most, pairs, ratio, seeded_rows

ROWS = 200_000 if QUICK else 2_000_000
TIMES = 10
CHANGED = 10_000
MANY_CHANGED = ROWS // 4  # a job
UNFOLDED = 30_000  # what 100 appends/s of 10 rows leave in the default fold interval
COUNT = 2 if QUICK else PAIRS
_CHUNK = 1_000_000
_HOLD_S = 600.0


def run() -> list[Figure]:
    """A table of 2 M rows, then one of 20 M."""
    with alone() as east:
        figures = _replay(east)
        small = _grown(east, "bench.small", ROWS)
        figures += _scans(east, small)
        return [*figures, *_folds(east, small, _grown(east, "bench.large", ROWS * TIMES))]


def _replay(east: Alone) -> list[Figure]:
    """As many rows by replay and by plain Spark; each run appends new keys to its table."""
    spec = east.table("bench.replayed")
    east.write(spec, seeded_rows(10_000, first_key=1 << 40))
    east.replay()
    plain, folder = east.plain_table("plain", spec), east.config.data_dir / "parquet"
    folder.mkdir()
    turn = 0

    def ours() -> float:
        nonlocal turn
        turn += 1
        rows = seeded_rows(ROWS, turn, turn * ROWS)
        for half in range(2):
            part = rows.slice(half * ROWS // 2, ROWS // 2)
            pq.write_table(part, folder / f"{half}.parquet", compression="lz4", use_dictionary=False)
        east.write(spec, rows)
        return east.replay()

    def theirs() -> float:
        began = time.perf_counter()
        east.spark.read.parquet(str(folder)).writeTo(plain).append()
        return time.perf_counter() - began

    theirs_warm = east.spark.createDataFrame(seeded_rows(10_000, first_key=1 << 40).to_pandas())
    theirs_warm.writeTo(plain).append()
    against, spread = pairs(ours, theirs, COUNT)
    counted = east.tables.query(f"select count(*) as n from {east.tables.ref(spec.name + CHANGES)} where _op = 0")
    assert counted.column(0)[0].as_py() == 10_000 + turn * ROWS, "replay lost or doubled rows"
    return [at_least(f"replay of {ROWS:,} rows against plain Spark Parquet → Iceberg", against, "×", 2.0, spread)]


def _grown(east: Alone, name: str, count: int) -> TableSpec:
    """A table of so many rows, all of them folded."""
    spec = east.table(name)
    for first in range(0, count, _CHUNK):
        east.write(spec, seeded_rows(min(_CHUNK, count - first), first + 1, first))
        east.replay()
        _fold(east, spec)
    return spec


def _fold(east: Alone, spec: TableSpec) -> float:
    began = time.perf_counter()
    result = fold(east.tables, east.ledger, spec, time.time_ns() // 1000, _HOLD_S)
    took = time.perf_counter() - began
    assert result is not None and result.versions, f"not folded: {result}"
    return took


def _changes(seed: int, count: int, rows: int) -> pa.Table:
    """New values for keys spread over a table of ``rows``."""
    fresh = seeded_rows(count, seed)
    step = rows // count
    keys = [((number * step + seed) % rows).to_bytes(16, "big") for number in range(count)]
    return fresh.set_column(0, "k", pa.array(keys, pa.binary()))


class _Folding:
    """A table, the same rows for plain Spark, and how many seconds each fold and each ``MERGE`` of changes took."""

    def __init__(self, east: Alone, spec: TableSpec) -> None:
        self.rows = _count(east, spec)
        self.folds: list[float] = []
        self.merges: list[float] = []
        self._east = east
        self._spec = spec
        self._plain = east.plain_table(spec.name.partition(".")[2] + "_plain", spec)
        east.spark.table(east.tables.ref(spec.name)).select("k", "v").writeTo(self._plain).append()

    def turn(self, number: int, count: int = CHANGED) -> None:
        """New changes, by us and by Spark."""
        changed, file = _changes(number, count, self.rows), self._east.config.data_dir / "changed.parquet"
        self._east.write(self._spec, changed)
        self._east.replay()
        pq.write_table(changed, file)
        self.folds.append(_fold(self._east, self._spec))
        self.merges.append(_merge(self._east, self._plain, file))
        assert _count(self._east, self._spec) == self.rows, "a fold changed the number of rows"


def _folds(east: Alone, *specs: TableSpec) -> list[Figure]:
    """Folds and MERGEs of as many changes into a small and a large table, in turns."""
    small, large = (_Folding(east, spec) for spec in specs)
    for number in range(COUNT + 1):
        for each in (small, large):
            each.turn(number + 1)
            if not number:  # warm-up
                each.folds.clear()
                each.merges.clear()
    size = f"{CHANGED:,} changed keys"
    grown, grown_spread = ratio(large.folds, small.folds)
    figures = [
        *(Figure(f"fold of {size} in {e.rows:,} rows", statistics.median(e.folds), "s") for e in (small, large)),
        at_most(f"fold of {size}: {TIMES}× the table costs", grown, "×", 2, grown_spread),
    ]
    for each in (small, large):
        against, spread = ratio(each.merges, each.folds)
        figures.append(at_least(f"fold against MERGE in {each.rows:,} rows", against, "×", 1, spread))
    small.folds.clear()
    small.merges.clear()
    for number in range(COUNT):
        small.turn(COUNT + 2 + number, MANY_CHANGED)
    against, spread = ratio(small.merges, small.folds)
    figures.append(at_least(f"fold of {MANY_CHANGED:,} changed keys against MERGE", against, "×", 1, spread))
    return figures


def _merge(east: Alone, plain: str, file: Path) -> float:
    began = time.perf_counter()
    east.spark.read.parquet(str(file)).createOrReplaceTempView("changed")
    east.spark.sql(
        f"merge into {plain} t using changed c on t.k = c.k"
        " when matched then update set t.v = c.v when not matched then insert *"
    )
    return time.perf_counter() - began


def _count(east: Alone, spec: TableSpec) -> int:
    count: int = east.tables.query(f"select count(*) as n from {east.tables.ref(spec.name)}").column(0)[0].as_py()
    return count


def _scans(east: Alone, spec: TableSpec) -> list[Figure]:
    """``__latest`` against ``<table>`` in both executions, then reads, with a fold interval's changes unfolded."""
    east.write(spec, _changes(99, UNFOLDED, ROWS))
    east.replay()
    size = "select count(*) as n, sum(length(v)) as bytes, max(k) as last"

    def spark(source: str) -> Callable[[], float]:
        def scan() -> float:
            began = time.perf_counter()
            found = east.tables.query(f"{size} from {source}").to_pylist()[0]
            assert found["n"] == ROWS, f"a scan of {source[:60]} found {found['n']} rows"
            return time.perf_counter() - began

        return scan

    ours, theirs = (spark(east.tables.ref(spec.name + suffix)) for suffix in (LATEST, ""))
    for _ in range(COUNT):  # until the JVM has compiled both
        ours(), theirs()
    in_spark, spark_spread = pairs(ours, theirs, COUNT)
    in_duckdb, duckdb_spread = pairs(lambda: _read_all(east, spec), lambda: _read_table(east, spec), COUNT)
    return [
        at_least("__latest scan against <table>, Spark", in_spark, "×", 0.5, spark_spread),
        at_least("__latest scan against <table>, Arrow and DuckDB", in_duckdb, "×", 0.5, duckdb_spread),
        *_reads(east, spec),
    ]


def _read_all(east: Alone, spec: TableSpec) -> float:
    began = time.perf_counter()
    found = sum(batch.num_rows for batch in east.reader.read(spec))
    assert found == ROWS, f"read found {found} rows of {ROWS}"
    return time.perf_counter() - began


def _read_table(east: Alone, spec: TableSpec) -> float:
    import duckdb

    began = time.perf_counter()
    with duckdb.connect(":memory:", config={"threads": 2, "preserve_insertion_order": False}) as connection:
        east.tables.attach(connection, "t", spec.name)
        found = sum(batch.num_rows for batch in connection.sql("select k, v from t").to_arrow_reader(65_536))
    assert found == ROWS, f"<table> has {found} rows of {ROWS}"
    return time.perf_counter() - began


def _reads(east: Alone, spec: TableSpec) -> list[Figure]:
    """A key, changed and not yet folded, and the first rows: by the library, and by the command."""
    key = _changes(99, UNFOLDED, ROWS).column("k")[7].as_py().hex()
    where = f"k = from_hex('{key}')"

    def by_library(**asked: Any) -> float:
        began = time.perf_counter()
        found = sum(batch.num_rows for batch in east.reader.read(spec, **asked))
        assert found == asked.get("limit", 1), f"read gave {found} rows"
        return time.perf_counter() - began

    # as for any user its modules are compiled once, whatever this process was told
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(east.config.data_dir / "pyc")}

    def by_command(*asked: str) -> float:
        command = [sys.executable, "-m", "shell.main", "read", spec.name, *asked, "--json", "--cluster", str(east.file)]
        began = time.perf_counter()
        root = Path(__file__).parents[2]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root, env=environment)
        took = time.perf_counter() - began
        assert done.returncode == 0, f"walship read: {done.stderr.strip()}"
        return took

    def median(measure: Callable[[], float]) -> float:
        return statistics.median(measure() for _ in range(COUNT))

    by_command("--limit", "1")
    among = f"of {ROWS:,} rows, {UNFOLDED:,} changes unfolded"
    return [
        at_most(f"read of a key {among}", median(lambda: by_library(where=where)), "s", 1.5),
        at_most(f"read --limit 100 {among}", median(lambda: by_library(limit=100)), "s", 1.5),
        at_most("the same key, walship read, start included", median(lambda: by_command("--where", where)), "s", 1.5),
        at_most("the same limit, walship read, start included", median(lambda: by_command("--limit", "100")), "s", 1.5),
    ]
