"""Rows from the first upsert to the last in west's ``__latest``; a backlog, after an outage; disk and memory.

The rows are written by a program of its own (``loader.py``), in batches of 10,000, while both clusters replay; a load
before warms Spark. Arrival is seen as told in ``arrivals.py``, every 20 ms; afterwards west's rows are counted through
``read``. The catch-up begins once east has folded the backlog, as after an outage of an hour. Its clock starts when
west's receiver accepts the first stream, which its log tells. Plain Spark appends as many of the same rows from Parquet
files to an Iceberg table, warm, once both clusters have ended.
"""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial
from uuid import UUID

import pyarrow.parquet as pq

from tests.bench.alone import alone
from tests.bench.arrivals import Curve, durable, seen, visible
from tests.bench.clusters import TABLE, Pair, pair, until
from tests.bench.events import Events
from tests.bench.loader import BATCH, Loaded, Loader
from tests.bench.measure import KEY_BYTES, QUICK, VALUE_BYTES, Figure, at_least, seeded_rows
from tests.bench.resident import PeakOfProcesses, over_idle
from walship import Cluster

ROWS = 200_000 if QUICK else 1_000_000
BACKLOG = 500_000 if QUICK else 10_000_000
LIMIT_S = 900.0
_WARM_KEY = 1 << 41
_FILE = 500_000  # rows of a Parquet file for plain Spark
_charts: dict[str, list[tuple[float, float]]] = {}


def run() -> list[Figure]:
    """All of it on one pair of clusters."""
    with pair(receiver_alone=True) as both:
        warm = _load(both, ROWS // 2, _WARM_KEY)
        seen(visible(both.west), warm.position, LIMIT_S)
        both.east.wait(warm.position, until="visible", timeout_s=LIMIT_S)
        end_to_end, (shown, *caught_up), on_disk = _end_to_end(both), _catch_up(both), _on_disk(both)
    against = at_least("the same against plain Spark Parquet → Iceberg", shown.value / _plain_spark(), "×", 1.0)
    return [*end_to_end, shown, against, *caught_up, *on_disk]


def _plain_spark() -> float:
    """Rows a second."""
    with alone() as east:
        like = east.table(TABLE)
        east.tables.create(like)
        table, folder = east.plain_table("plain", like), east.config.data_dir / "parquet"
        folder.mkdir()
        for first in range(0, BACKLOG, _FILE):
            rows = seeded_rows(_FILE, first + 1, first)
            pq.write_table(rows, folder / f"{first}.parquet", compression="lz4", use_dictionary=False)
        east.spark.read.parquet(str(folder / "0.parquet")).writeTo(table).append()
        began = time.perf_counter()
        east.spark.read.parquet(str(folder)).writeTo(table).append()
        return BACKLOG / (time.perf_counter() - began)


def series() -> dict[str, list[tuple[float, float]]]:
    """How both loads arrived."""
    return _charts


def _load(both: Pair, rows: int, first_key: int) -> Loaded:
    with closing(Loader(both.sites[0].file, TABLE, rows, first_key)) as loader:
        loader.go()
        return loader.finish()


def _end_to_end(both: Pair) -> list[Figure]:
    east, west = both.sites
    with closing(Loader(east.file, TABLE, ROWS)) as loader:
        seen(visible(both.west), loader.warm, LIMIT_S)
        both.east.wait(loader.warm, until="visible", timeout_s=LIMIT_S)
        peaks = PeakOfProcesses({"worker": east.pid("worker"), "receiver": west.pid("receiver")})
        with Curve(both.east, visible(both.west)) as curve:
            loader.go()
            loaded = loader.finish()
            arrived = seen(visible(both.west), loaded.position, LIMIT_S)
    _charts[f"end to end, {ROWS:,} rows: MiB of WAL in west's __latest"] = curve.points
    _check_count(both, ROWS // 2 + ROWS + BATCH)
    memory = {"writer": loaded.over_idle_mib, **peaks.over_idle_mib()}
    return [
        at_least(f"end to end, {ROWS:,} rows", ROWS / (arrived - loaded.began), "rows/s", 250_000),
        Figure("the same, acked at source", ROWS / (loaded.acked - loaded.began), "rows/s"),
        *over_idle("the same", memory),
    ]


def _catch_up(both: Pair) -> list[Figure]:
    east, west = both.sites
    west.stop_alone("receiver")
    loaded = _load(both, BACKLOG, ROWS)
    both.east.wait(loaded.position, until="visible", timeout_s=LIMIT_S)
    _until_folded(both.east)
    log = Events(west.home, "receiver")
    west.start_alone("receiver")
    peaks = PeakOfProcesses({"worker": east.pid("worker"), "receiver": west.pid("receiver")})
    until(lambda: log.first("stream_opened") is not None, "west's receiver to accept a stream", LIMIT_S)
    with Curve(both.east, durable(both.west)) as landed, Curve(both.east, visible(both.west)) as shown:
        durable_at = seen(durable(both.west), loaded.position, LIMIT_S)
        visible_at = seen(visible(both.west), loaded.position, LIMIT_S)
    begin = log.first("stream_opened")
    assert begin is not None
    _charts[f"catch-up, {BACKLOG:,} rows: MiB of WAL durable at west"] = landed.points
    _charts[f"catch-up, {BACKLOG:,} rows: MiB of WAL in west's __latest"] = shown.points
    _check_count(both, ROWS // 2 + ROWS + BACKLOG + BATCH)
    return [
        at_least(f"catch-up of {BACKLOG:,} rows, visible", BACKLOG / (visible_at - begin), "rows/s", 400_000),
        at_least(f"catch-up of {BACKLOG:,} rows, durable", BACKLOG / (durable_at - begin), "rows/s", 2_000_000),
        *over_idle("the same", {"writer": loaded.over_idle_mib, **peaks.over_idle_mib()}),
    ]


def _check_count(both: Pair, expected: int) -> None:
    found = sum(batch.num_rows for batch in both.west.read(TABLE, columns=["k"]))
    assert found == expected, f"west has {found:,} rows of {expected:,}"


def _until_folded(cluster: Cluster) -> None:
    last = max(row.commit_hi for row in cluster.ledger.files.all())
    until(partial(_is_folded, cluster, cluster.table(TABLE).uuid, last), f"{cluster.name}'s fold", LIMIT_S, poll_s=1.0)


def _is_folded(cluster: Cluster, table: UUID, upto: int) -> bool:
    return cluster.ledger.replay.folds().get(table, 0) >= upto


def _on_disk(both: Pair) -> list[Figure]:
    """Once everything is folded at both sites and the disks have come to rest."""
    written = (ROWS // 2 + ROWS + BACKLOG + 3 * BATCH) * (KEY_BYTES + VALUE_BYTES)
    for cluster in (both.east, both.west):
        _until_folded(cluster)
    _at_rest(both)
    figures: list[Figure] = []
    for site in both.sites:
        parts = site.disk_bytes()
        told = ", ".join(f"{name} {size / written:.2f}" for name, size in parts.items())
        figures.append(
            Figure(f"bytes on disk per byte written, {site.name}", sum(parts.values()) / written, "×", spread=told)
        )
    return figures


def _at_rest(both: Pair, quiet_s: float = 60.0, limit_s: float = 300.0) -> None:
    """Until the sizes have not moved by a hundredth for a while; a site that never rests is measured as it is."""
    begin = changed = time.monotonic()
    before = 0
    while time.monotonic() - changed < quiet_s and time.monotonic() - begin < limit_s:
        now = sum(sum(site.disk_bytes().values()) for site in both.sites)
        if abs(now - before) > before / 100:
            before, changed = now, time.monotonic()
        time.sleep(1.0)
