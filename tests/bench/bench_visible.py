"""How long after its ack a row is durable at west, and in west's ``__latest``; 100 appends/s of 10 rows.

An open loop: appends are due every 10 ms whatever became of those before. Keys come back every 20,000 appends, so
folds find rows to replace. The run holds several folds, a compaction and an expiry, which are counted at its end: a run
without them proves nothing. How arrival is seen is told in ``arrivals.py``.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor

from replication.core.position import Position
from tests.bench.arrivals import Arrivals, durable, paced, seen, sleep_until, visible
from tests.bench.clusters import TABLE, Pair, pair
from tests.bench.events import Events
from tests.bench.measure import QUICK, Figure, at_least, at_most, percentile, seeded_rows

PER_SECOND, ROWS = 100, 10
DURABLE_S = 15 if QUICK else 60
VISIBLE_S = 60 if QUICK else 600
WARM_S = 15 if QUICK else 60  # the JVM halves what a small commit costs in its first minute
KEYS = 200_000
#: Often enough that the run, a short one too, has each of them.
SETTINGS: dict[str, dict[str, object]] = (
    {"replay": {"fold_interval_s": 20.0, "maintenance_interval_s": 20.0}} if QUICK else {}
)
_charts: dict[str, list[tuple[float, float]]] = {}


def run() -> list[Figure]:
    """One pair of clusters for both."""
    with pair(SETTINGS) as both:
        _appends(both, WARM_S, Arrivals(visible(both.west), 0.02))
        watch = Arrivals(durable(both.west), 0.0005)
        acks = _appends(both, DURABLE_S, watch)
        lags = [lag * 1e3 for _, lag in watch.lags]
        figures = [
            Figure("append of 10 rows → ack, p50", percentile(acks, 0.5) * 1e3, "ms"),
            Figure("append of 10 rows → ack, p99", percentile(acks, 0.99) * 1e3, "ms"),
            at_most("whole clusters: ack → durable and registered at the peer, p50", percentile(lags, 0.5), "ms", 3),
            at_most("whole clusters: ack → durable and registered at the peer, p99", percentile(lags, 0.99), "ms", 10),
        ]
        watch, upkeep = Arrivals(visible(both.west), 0.01), Events(both.sites[1].home, "replay", TABLE)
        _appends(both, VISIBLE_S, watch, spot_checks=5)
        lags, done = [lag for _, lag in watch.lags], upkeep.counts()
        _charts["ack → in west's __latest: seconds, the worst of each second"] = _worst_of_each_second(watch)
        return [
            *figures,
            at_most(f"ack → in west's __latest over {VISIBLE_S} s, p50", percentile(lags, 0.5), "s", 0.25),
            at_most(f"ack → in west's __latest over {VISIBLE_S} s, p99", percentile(lags, 0.99), "s", 1.0),
            *(_happened(what, done[what]) for what in ("folded", "compacted", "expired")),
        ]


def _happened(what: str, times: int) -> Figure:
    name = f"{what} inside that run"
    return Figure(name, times, "times") if QUICK else at_least(name, times, "times", 1)


def series() -> dict[str, list[tuple[float, float]]]:
    """The lag over the long run."""
    return _charts


def _appends(both: Pair, seconds: float, watch: Arrivals, spot_checks: int = 0) -> list[float]:
    """The load, until the last of it has arrived; each append's own seconds until its ack."""
    count = int(seconds * PER_SECOND)
    passes = [seeded_rows(KEYS, seed) for seed in range(1, 2 + count * ROWS // KEYS)]
    batches = [batch for rows in passes for batch in rows.to_batches(ROWS)]
    checks = {count * (number + 1) // (spot_checks + 1) for number in range(spot_checks)}
    acks: list[float] = []
    with ThreadPoolExecutor(1, thread_name_prefix="spot-check") as pool:
        proofs: list[Future[None]] = []
        for number, due in enumerate(paced(count, PER_SECOND, time.monotonic() + 0.1)):
            rows = batches[number].to_pylist()
            sleep_until(due)
            began = time.monotonic()
            position = both.east.upsert(TABLE, rows)
            acked = time.monotonic()
            acks.append(acked - began)
            watch.add(acked, position)
            if number in checks:
                proofs.append(pool.submit(_prove, both, position, rows[0]))
        for proof in proofs:
            proof.result()
    watch.finish(120)
    assert len(watch.lags) == count, f"{len(watch.lags)} of {count} appends were seen to arrive"
    return acks


def _prove(both: Pair, position: Position, row: dict[str, object]) -> None:
    """That what the ledger calls visible can be read: the row itself, by its key."""
    seen(visible(both.west), position, 60)
    key = row["k"]
    assert isinstance(key, bytes)
    found = [r for batch in both.west.read(TABLE, where=f"k = from_hex('{key.hex()}')") for r in batch.to_pylist()]
    assert found == [row], f"visible by the ledger, but read as {found}"


def _worst_of_each_second(watch: Arrivals) -> list[tuple[float, float]]:
    begin = watch.lags[0][0]
    worst: dict[int, float] = {}
    for acked, lag in watch.lags:
        second = int(acked - begin)
        worst[second] = max(lag, worst.get(second, 0.0))
    return [(float(second), lag) for second, lag in sorted(worst.items())]
