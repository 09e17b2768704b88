"""A table's rows at a peer by ``--bootstrap``, applied included, against an rsync daemon with --fsync on its files.

Both clusters run as processes. Each turn bootstraps a new table with as many rows, replayed and folded at east, and
then copies that table's Iceberg files; the clock of a bootstrap stops when east knows that all is applied at west.
Beside it stands the least that this needs in any case: the rows read, in a durable file at home, in a durable copy at
the peer, and durable there as a table's file.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from peer.bootstrap.space import needed_space
from peer.client.bootstrap import await_bootstrap
from replication.tables.layout import layouts
from tests.bench.bench_ship import rsync_daemon
from tests.bench.clusters import Pair, pair
from tests.bench.loader import Loader
from tests.bench.measure import PAIRS, QUICK, SCHEMA, Figure, as_table_file, at_least, durably, pairs, ratio

ROWS = 100_000 if QUICK else 2_000_000
COUNT = 1 if QUICK else PAIRS
LIMIT_S = 900.0


def run() -> list[Figure]:
    """Both, in turns."""
    if shutil.which("rsync") is None:
        return [Figure("bootstrap: against an rsync daemon: rsync is not installed", 0.0, "×")]
    folder = Path(tempfile.mkdtemp(prefix="walship-bootstrap-"))
    numbers, last = count(), [""]
    took, copied, least = list[float](), list[float](), list[float]()
    try:
        with pair() as both, rsync_daemon(folder) as url:
            _filled(both, "bench.warm")
            _bootstrapped(both, "bench.warm")

            def ours() -> float:
                last[0] = f"bench.rows{next(numbers)}"
                _filled(both, last[0])
                took.append(_bootstrapped(both, last[0]))
                return took[-1]

            def theirs() -> float:
                copied.append(_copied(both, last[0], url))
                least.append(_read_and_written_again(both, last[0], folder, url))
                return copied[-1]

            against_rsync, spread = pairs(ours, theirs, COUNT)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    of_rsync, rsync_spread = ratio(copied, least)
    of_least, least_spread = ratio(least, took)
    return [
        Figure(f"bootstrap of {ROWS:,} rows, applied", ROWS / min(took), "rows/s"),
        at_least("bootstrap: against an rsync daemon --fsync of the table's files", against_rsync, "×", 0.5, spread),
        Figure("bootstrap: the least (see bench_bootstrap.py), against that rsync", of_rsync, "×", spread=rsync_spread),
        at_least("bootstrap: applied at the peer, against the least", of_least, "×", 0.5, least_spread),
    ]


def _filled(both: Pair, table: str) -> None:
    """A table at east with all its rows folded."""
    both.east.create_table(table, SCHEMA, key=["k"])
    with closing(Loader(both.sites[0].file, table, ROWS)) as loader:
        loader.go()
        both.east.wait(loader.finish().position, until="visible", timeout_s=LIMIT_S)
    both.sites[0].walship("--cluster", str(both.sites[0].file), "fold", table)


def _bootstrapped(both: Pair, table: str) -> float:
    east = both.east
    size = needed_space(east.config, east.ledger, [east.table(table)], "west", lambda: east.reader.catalog).peer_bytes
    began = time.perf_counter()
    east.peering.enable(table, (), "west", bootstrap_bytes=size, count_rows=lambda _: 0)
    await_bootstrap(east.peering, [table], "west", LIMIT_S)
    seconds = time.perf_counter() - began
    here, there = (cluster.read(table, columns=["k"]).read_all().num_rows for cluster in (both.east, both.west))
    assert here == there >= ROWS, f"{there} rows of {here} at west"
    return seconds


def _copied(both: Pair, table: str, url: str) -> float:
    folders = [both.east.config.warehouse_dir.joinpath(*e.name.split(".")) for e in layouts(both.east.table(table))]
    files = [str(folder) for folder in folders if not folder.name.endswith("__changes")]
    began = time.perf_counter()
    subprocess.run(["rsync", "-r", "--fsync", *files, f"{url}/"], check=True)
    return time.perf_counter() - began


def _read_and_written_again(both: Pair, table: str, folder: Path, url: str) -> float:
    home, copy, there = folder / "home", folder / "rsync" / "copy", folder / "there"
    began = time.perf_counter()
    rows = both.east.read(table).read_all()
    durably(home, lambda sink: _as_frames(rows, sink))
    subprocess.run(["rsync", "--fsync", str(home), f"{url}/copy"], check=True)
    as_table_file(pa.ipc.open_file(pa.memory_map(str(copy))).read_all(), there)
    seconds = time.perf_counter() - began
    for file in (home, copy, there):
        file.unlink()
    return seconds


def _as_frames(rows: pa.Table, sink: BinaryIO) -> None:
    with pa.ipc.new_file(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as file:
        file.write_table(rows, 65_536)
