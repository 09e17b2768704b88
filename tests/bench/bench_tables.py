"""100 tables, 10 appends/s over all: ack → in west's ``__latest``, and how replay and fold intervals stretched.

An open loop over the tables in turn, so each gets an append every ten seconds. Arrival is seen as told in
``arrivals.py``.
"""

from __future__ import annotations

import time

from peer.replay_report import ReplayReport
from tests.bench.arrivals import Arrivals, paced, sleep_until, visible
from tests.bench.clusters import pair
from tests.bench.events import Events
from tests.bench.measure import QUICK, Figure, at_most, percentile, seeded_rows

TABLES = 20 if QUICK else 100
PER_SECOND, ROWS = 10, 10
SECONDS = 60 if QUICK else 300
_charts: dict[str, list[tuple[float, float]]] = {}


def run() -> list[Figure]:
    """A warm-up in which every table comes into being, then the run."""
    names = [f"bench.t{number:03d}" for number in range(TABLES)]
    with pair() as both:
        for name in names:
            both.enable(name)
        first = Arrivals(visible(both.west), 0.2)
        for name in names:
            first.add(time.monotonic(), both.east.upsert(name, seeded_rows(ROWS).to_pylist()))
        first.finish(900)
        upkeep = Events(both.sites[1].home, "replay")
        watch = Arrivals(visible(both.west), 0.05)
        count = SECONDS * PER_SECOND
        batches = seeded_rows(ROWS * count, 2).to_batches(ROWS)
        for number, due in enumerate(paced(count, PER_SECOND, time.monotonic() + 0.1)):
            rows = batches[number].to_pylist()
            sleep_until(due)
            position = both.east.upsert(names[number % TABLES], rows)
            watch.add(time.monotonic(), position)
        watch.finish(300)
        assert len(watch.lags) == count, f"{len(watch.lags)} of {count} appends were seen to arrive"
        done, report = upkeep.counts(), ReplayReport.load(both.west.ledger.replay)
    lags = [lag for _, lag in watch.lags]
    begin = watch.lags[0][0]
    _charts[f"{TABLES} tables: ack → in west's __latest, seconds"] = [(at - begin, lag) for at, lag in watch.lags]
    rounds, folds = max(done["replayed"], 1), max(done["folded"], 1)
    assert report is not None, "west's replay has reported nothing"
    assert not report.held, f"held back: {report.held}"
    return [
        Figure(f"{TABLES} tables, {PER_SECOND} appends/s: visible, p50", percentile(lags, 0.5), "s"),
        at_most(f"{TABLES} tables, {PER_SECOND} appends/s: visible, p99", percentile(lags, 0.99), "s", 60),
        Figure("the same: seconds between replay rounds", SECONDS / rounds, "s"),
        Figure("the same: fold interval at the end", report.fold_interval_s, "s"),
        Figure("the same: seconds between folds of one table", SECONDS * TABLES / folds, "s"),
    ]


def series() -> dict[str, list[tuple[float, float]]]:
    """The lag of every append."""
    return _charts
