"""How the benchmarks measure: seeded rows, interleaved pairs, a machine probe, and the row every bench reports."""

from __future__ import annotations

import hashlib
import math
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

QUICK = bool(os.environ.get("WALSHIP_BENCH_QUICK"))
PAIRS = 5
KEY_BYTES, VALUE_BYTES = 16, 100
SCHEMA = pa.schema([("k", pa.binary()), ("v", pa.binary())])


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table and of ``build/bench.json``; ``bar`` is None for what is only reported."""

    name: str
    value: float
    unit: str
    bar: str | None = None
    holds: bool | None = None
    spread: str = ""

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def at_least(name: str, value: float, unit: str, bar: float, spread: str = "") -> Figure:
    """A figure whose bar is a floor."""
    return Figure(name, value, unit, f"≥ {bar:,.10g}", value >= bar, spread)


def at_most(name: str, value: float, unit: str, bar: float, spread: str = "") -> Figure:
    """A figure whose bar is a ceiling."""
    return Figure(name, value, unit, f"≤ {bar:,.10g}", value <= bar, spread)


def seeded_rows(count: int, seed: int = 1, first_key: int = 0) -> pa.Table:
    """``count`` rows of a 16-byte key and a 100-byte value, half of it incompressible."""
    rng = np.random.default_rng(seed)
    keys = np.zeros((count, KEY_BYTES), np.uint8)
    keys[:, 8:] = np.arange(first_key, first_key + count, dtype=">u8").view(np.uint8).reshape(count, 8)
    values = np.zeros((count, VALUE_BYTES), np.uint8)
    values[:, : VALUE_BYTES // 2] = rng.integers(0, 256, (count, VALUE_BYTES // 2), np.uint8)
    return pa.table([_binary(keys), _binary(values)], schema=SCHEMA)


def _binary(cells: np.ndarray[Any, Any]) -> pa.Array:
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(cells.shape[1]), len(cells), [None, pa.py_buffer(np.ascontiguousarray(cells))]
    )
    return fixed.cast(pa.binary())


def pairs(
    ours: Callable[[], float], theirs: Callable[[], float], count: int = PAIRS, within_s: float = math.inf
) -> tuple[float, str]:
    """Median and spread of ``theirs() / ours()`` (seconds) over interleaved runs: above 1 means ours is the faster.

    No further pair begins after ``within_s``; the spread then says how many there were.
    """
    of_us: list[float] = []
    of_them: list[float] = []
    deadline = time.monotonic() + within_s
    while len(of_us) < count and (not of_us or time.monotonic() < deadline):
        of_us.append(ours())
        of_them.append(theirs())
    median, spread = ratio(of_them, of_us)
    return median, spread + (f" ({len(of_us)} pairs)" if len(of_us) < count else "")


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> tuple[float, str]:
    """The median of ``theirs / ours`` (seconds), turn by turn, and the spread."""
    ratios = [of_them / of_us for of_them, of_us in zip(theirs, ours, strict=True)]
    return statistics.median(ratios), f"{min(ratios):.2f}–{max(ratios):.2f}"


def durably(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """A file that is on the disk when this returns."""
    with open(path, "wb") as sink:
        write(sink)
        sink.flush()
        os.fsync(sink.fileno())


def as_table_file(rows: pa.Table, path: Path) -> None:
    """Rows as one durable Parquet file, compressed as a table's files are."""
    durably(path, lambda sink: pq.write_table(rows, sink, compression="zstd", use_dictionary=False))


def percentile(values: list[float], q: float) -> float:
    """The ``q`` quantile (0 to 1) by nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def probe(directory: Path | None = None) -> list[Figure]:
    """What this disk and CPU can do, to read absolute figures by."""
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        block, big = os.urandom(4096), os.urandom(1 << 20)
        path = Path(folder) / "probe"
        fd = os.open(path, os.O_CREAT | os.O_WRONLY)
        syncs: list[float] = []
        for _ in range(200):
            os.write(fd, block)
            begin = time.perf_counter()
            os.fsync(fd)
            syncs.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        for _ in range(256):
            os.write(fd, big)
        os.fsync(fd)
        written_s = time.perf_counter() - begin
        os.close(fd)
    begin = time.perf_counter()
    for _ in range(256):
        hashlib.sha256(big).digest()
    hashed_s = time.perf_counter() - begin
    return [
        Figure("probe: fsync of 4 KiB, p50", statistics.median(syncs) * 1e3, "ms"),
        Figure("probe: sequential write with fsync", 256 / written_s, "MiB/s"),
        Figure("probe: SHA-256 on one core", 256 / hashed_s, "MiB/s"),
    ]


class PeakMemory:
    """Peak resident bytes of this process over its size at entry, sampled by a thread; Linux only, else 0."""

    def __enter__(self) -> PeakMemory:
        """Start sampling."""
        self._stop = threading.Event()
        self.idle = self.peak = _resident()
        self._thread = threading.Thread(target=self._sample, name="peak-memory")
        self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._stop.wait(0.02):
            self.peak = max(self.peak, _resident())

    def __exit__(self, *_: object) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()

    @property
    def over_idle_mib(self) -> float:
        """Peak less idle, MiB."""
        return (self.peak - self.idle) / (1 << 20)


def _resident() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
