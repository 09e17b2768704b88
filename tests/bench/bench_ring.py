"""A ring of three whole clusters, all of them written to at once, to the same keys: lag, bytes on each route, equality.

An open loop at each site. Once a half-second the newest append of each is watched until the two other sites show it,
which each of them says of itself, by whatever route it came. Afterwards the sites are compared by content hash, and the
frames in the landing files are counted: what came by a route against what it required, which is all that was
written but at
the site that it leads to.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import walship
from peer.client.comparison import compare_clusters
from replication.core.frame import FILE_HEADER_BYTES, scan
from replication.core.position import Position
from replication.ledger.base import FileKind, FileRow
from tests.bench.arrivals import Arrivals, paced, sleep_until
from tests.bench.clusters import START_S, TABLE, Site, defined, until
from tests.bench.measure import QUICK, SCHEMA, Figure, at_least, at_most, percentile, seeded_rows
from tests.bench.peers.peer import free_port

NAMES = ("east", "west", "north")
ROUTES = tuple(zip(NAMES, (*NAMES[1:], NAMES[0]), strict=True))
PER_SECOND, ROWS = 50, 10
SECONDS = 10 if QUICK else 60
WARM_S = 5 if QUICK else 20
KEYS = 20_000
WATCH_EVERY = PER_SECOND // 2
LIMIT_S = 300.0
_charts: dict[str, list[tuple[float, float]]] = {}
Ring = Mapping[str, walship.Cluster]


def run() -> list[Figure]:
    """A warm-up, then the load."""
    with _ring() as ring:
        _load(ring, WARM_S)
        watches = _load(ring, SECONDS)
        first, *others = ring.values()
        verdicts = [compare_clusters(first, other, [TABLE], LIMIT_S)[0] for other in others]
        came = {route: _sealed_bytes(ring[route[1]], route[0]) for route in ROUTES}
        written = {name: _sealed_bytes(cluster) for name, cluster in ring.items()}
    lags = {way: [lag for _, lag in watch.lags] for way, watch in watches.items()}
    one = [lag for way, of_way in lags.items() if way in ROUTES for lag in of_way]
    two = [lag for way, of_way in lags.items() if way not in ROUTES for lag in of_way]
    required_from = {route: sum(size for name, size in written.items() if name != route[1]) for route in ROUTES}
    shares = {route: came[route] / required_from[route] for route in ROUTES}
    told = ", ".join(f"{source}>{peer} {share:.3f}" for (source, peer), share in shares.items())
    load = f"ring, {PER_SECOND} appends/s of {ROWS} rows at each site"
    begin = min(watch.lags[0][0] for watch in watches.values())
    _charts["ring: ack → shown elsewhere, seconds"] = sorted(
        (at - begin, lag) for watch in watches.values() for at, lag in watch.lags
    )
    return [
        Figure(f"{load}: shown one route on, p50", percentile(one, 0.5), "s"),
        Figure(f"{load}: shown one route on, p99", percentile(one, 0.99), "s"),
        Figure(f"{load}: shown two routes on, p50", percentile(two, 0.5), "s"),
        Figure(f"{load}: shown two routes on, p99", percentile(two, 0.99), "s"),
        at_least(
            "ring: sites that hold exactly what the first holds",
            sum(verdict.identical for verdict in verdicts),
            "of 2",
            2,
            f"{verdicts[0].left.rows:,} rows",
        ),
        at_most("ring: bytes sent per byte required on the worst route", max(shares.values()), "×", 1, told),
    ]


def series() -> dict[str, list[tuple[float, float]]]:
    """The lags of the run."""
    return _charts


class _Shown(Arrivals):
    """Until a site shows what was written at another one."""

    def __init__(self, site: walship.Cluster) -> None:
        super().__init__(lambda files: {}, 0.1)
        self._time = site.ledger.time

    def _arrived(self, waiting: Sequence[tuple[float, Position]]) -> int:
        for number, (_, position) in enumerate(waiting):
            if not all(reach.visible for reach in self._time.reached(position.sequences).values()):
                return number
        return len(waiting)


def _load(ring: Ring, seconds: float) -> dict[tuple[str, str], _Shown]:
    """All sites at once; returns when every site shows everything."""
    watches = {(here, there): _Shown(ring[there]) for here in ring for there in ring if here != there}
    begin = time.monotonic() + 0.5
    with ThreadPoolExecutor(len(ring)) as pool:

        def write(name: str) -> Position:
            mine = [watch for (here, _), watch in watches.items() if here == name]
            return _append(ring[name], seconds, begin, mine, NAMES.index(name))

        last = list(pool.map(write, ring))
    for watch in watches.values():
        watch.finish(LIMIT_S)
    for cluster in ring.values():
        for position in last:
            cluster.wait(position, until="visible", timeout_s=LIMIT_S)
    return watches


def _append(site: walship.Cluster, seconds: float, begin: float, watches: Sequence[_Shown], seed: int) -> Position:
    count = int(seconds * PER_SECOND)
    passes = [seeded_rows(KEYS, seed + 10 * number) for number in range(1 + count * ROWS // KEYS)]
    batches = [batch for rows in passes for batch in rows.to_batches(ROWS)]
    for number, due in enumerate(paced(count, PER_SECOND, begin)):
        rows = batches[number].to_pylist()
        sleep_until(due)
        position = site.upsert(TABLE, rows)
        if number % WATCH_EVERY == 0:
            acked = time.monotonic()
            for watch in watches:
                watch.add(acked, position)
    return position


def _sealed_bytes(site: walship.Cluster, source: str = "") -> int:
    """Bytes of frames, less the envelopes that each hop adds to, that were written here, or came from ``source``."""

    def counts(row: FileRow) -> bool:
        own = row.kind in (FileKind.WAL, FileKind.CONTROL)
        return own if not source else row.source is not None and row.source.cluster.name == source

    files = [(Path(row.path), row.length) for row in site.ledger.files.all() if counts(row)]
    contents = [memoryview(path.read_bytes())[:length] for path, length in files]
    return sum(f.end - f.sealed_begin for content in contents for f in scan(content, FILE_HEADER_BYTES))


@contextmanager
def _ring() -> Iterator[Ring]:
    """East, west and north, up, each sending ``bench.t`` to the next."""
    home = Path(tempfile.mkdtemp(prefix="walship-ring-", dir=os.environ.get("WALSHIP_BENCH_DIR")))
    sites = {name: Site(name, home / name, free_port()) for name in NAMES}
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        for site in sites.values():
            stack.callback(site.stop)
            site.make({})
            site.start()
        for site in sites.values():
            site.wait_ready()
        ring = {name: stack.enter_context(walship.connect(site.file)) for name, site in sites.items()}
        ring[NAMES[0]].create_table(TABLE, SCHEMA, key=["k"])
        for source, peer in ROUTES:
            there = sites[peer]
            until(partial(defined, ring[source], there), f"{source} to know {peer}", START_S)
            ring[source].peering.enable(TABLE, (), peer, from_now=True, count_rows=lambda _: 0)
        yield ring
