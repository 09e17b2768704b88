"""10,000 small replay commits to one table, with folds, compaction and expiry as the replay role does them.

What a commit costs in the end against what it cost at first (medians of 200), and how large the table's metadata grew.
Housekeeping runs in a thread of its own, as in the role, so that a commit meets its commits too.
"""

from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path

from peer.replay.housekeeping import Housekeeping
from replication.files.local import LocalFiles
from replication.worker.files.host_files import HostFiles
from replication.worker.files.register import Registrar
from replication.writer.wal.wal_series import Place
from replication.writer.writer import Writer
from tests.bench.alone import Alone, alone, note_closed
from tests.bench.measure import QUICK, Figure, at_most, seeded_rows

COMMITS = 1_000 if QUICK else 10_000
ROWS = 10
_WINDOW, _WARM = 200, 50
_METADATA_BYTES = 1_000_000
_charts: dict[str, list[tuple[float, float]]] = {}


def run() -> list[Figure]:
    """The commits, one after the other."""
    with alone() as east:
        took, largest = _commit_all(east)
    first, last = statistics.median(took[:_WINDOW]), statistics.median(took[-_WINDOW:])
    _charts[f"{COMMITS:,} replay commits: ms each, median of {_WINDOW}"] = [
        (float(at), 1e3 * statistics.median(took[at : at + _WINDOW])) for at in range(0, COMMITS, _WINDOW)
    ]
    return [
        Figure(f"replay commit of {ROWS} rows, the first {_WINDOW}", first * 1e3, "ms"),
        at_most(f"the same after {COMMITS:,} commits", last / first, "×", 1.5),
        at_most(f"metadata.json within {COMMITS:,} commits", largest, "bytes", _METADATA_BYTES),
    ]


def series() -> dict[str, list[tuple[float, float]]]:
    """What a commit cost over the run; the axis counts commits, not seconds."""
    return _charts


def _commit_all(east: Alone) -> tuple[list[float], int]:
    """Seconds of each commit, and the largest metadata file seen."""
    spec, config = east.table("bench.commits"), east.config
    rows = seeded_rows(ROWS * (COMMITS + _WARM)).to_batches(ROWS)
    took: list[float] = []
    largest = 0
    files = HostFiles(east.ledger, LocalFiles(), config.cluster.host, str(config.wal_dir))
    registrar = Registrar(east.ledger, files)
    with (
        Writer(
            east.ledger, east.coordination, Place(str(config.wal_dir), config.cluster.host), config.writer
        ) as writer,
        _Housekept(east),
    ):
        for number, batch in enumerate(rows):
            writer.upsert(spec, batch)
            registrar.run_once()
            if number % 100 == 0:
                floors = {writer.name: time.time_ns() // 1000}
                east.ledger.time.raise_closed(config.cluster.host, floors, time.time_ns() // 1000)
                note_closed(east.ledger)
                largest = max(largest, _metadata_bytes(config.data_dir / "warehouse"))
            began = time.perf_counter()
            while not (result := east.replayer.round()).frames:
                assert not result.held, f"held back: {result.held}"
            took.append(time.perf_counter() - began)
    files.close()
    return took[_WARM:], largest


class _Housekept:
    """Housekeeping every second, until left."""

    def __init__(self, east: Alone) -> None:
        self._housekeeping = Housekeeping(east.tables, east.ledger, east.config.replay)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(1.0):
            self._housekeeping.run_once(self._stop.is_set)


def _metadata_bytes(warehouse: Path) -> int:
    sizes = [0]
    for path in warehouse.glob("**/metadata/*.metadata.json"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:  # superseded meanwhile
            continue
    return max(sizes)
