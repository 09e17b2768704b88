"""Role changes: outage of a switchover, time until a failover takes writes, a drill's cost, and a failback's bytes.

The first are of two clusters as processes, under an open loop of 10 MB/s. For the failover every process of east is
killed. The lag of shipping is from ack to durable at the peer, under 1 MB/s, which replay keeps up with on two cores:
in spells without a drill and with one, in turns, as long as the drill before. The bytes are
those of the bootstrap file for a cluster that was away past the disk budget, after 1 % of the rows changed, against
what those rows took in the WAL. Switchovers with few and many tables are in this process, without a JVM: their time is
that of the commands, ledgers, workers and receivers.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from peer.failover.failover import failover, plan_failover
from peer.failover.opening import EVERYTHING
from peer.failover.role_change import RoleChange
from peer.failover.switchover import switchover
from replication.errors import ReplicationError
from tests.bench.arrivals import Arrivals, durable, sleep_until
from tests.bench.clusters import START_S, TABLE, Pair, Site, pair, until
from tests.bench.measure import PAIRS, QUICK, Figure, at_most, percentile, ratio, seeded_rows
from tests.bootstrap_pair import Pair as TablePair
from tests.bootstrap_pair import bootstraps
from tests.role_changes import Member, add_tables, role_pair
from tests.sites import SCHEMA
from walship import Cluster

ROWS = 20_000 if QUICK else 2_000_000
PIECE = 20_000
MANY, FEW = (300, 10) if QUICK else (10_000, 10)
ROLE_CHANGES, DRILLS = (3, 1) if QUICK else (7, 2 * PAIRS)
_QUIET_S = 1.0
_LOAD_S = 3.0 if QUICK else 20.0
_BATCH_ROWS, _DRILLED_ROWS, _BATCHES_PER_S = 1_000, 100, 86  # of 116 bytes


def run() -> list[Figure]:
    """All of it."""
    with pair() as both:
        outage_s, calm_s, drilled_s, writable_s = _role_changes(both)
    slower, spread = ratio(drilled_s, calm_s)
    (_, few), (first, many) = _switchover_s(FEW), _switchover_s(MANY)
    of_bytes, seconds = _failback()
    return [
        at_most("switchover at 10 MB/s: no writes are taken for", outage_s, "s", 5),
        at_most("failover at 10 MB/s: writes are taken after the confirmation", writable_s, "s", 10),
        Figure("shipping without a drill: lag, p50", statistics.median(calm_s) * 1e3, "ms"),
        at_most("a drill: lag of shipping against none, p50", slower, "×", 1.05, spread),
        Figure(f"switchover, {FEW:,} tables, in one process", few, "s"),
        Figure(f"switchover, {MANY:,} tables, in one process", many, "s"),
        at_most(f"switchover, {MANY:,} tables against {FEW}", many / few, "×", 1.2),
        Figure(f"the first switchover of {MANY:,} tables, which makes the routes back", first, "s"),
        at_most(f"failback, 1 % of {ROWS:,} rows changed: bytes against what differs", of_bytes, "×", 1.2),
        Figure("the same: until they are in the tables there", seconds, "s"),
    ]


def _role_changes(both: Pair) -> tuple[float, list[float], list[float], float]:
    """Outage, lags without and with a drill, and the time until a failover takes writes, in seconds."""
    east, west = both.sites
    west.walship("--cluster", str(west.file), "readonly", "on")
    known = both.west.ledger.time.landed
    with _load(both.east):
        time.sleep(_LOAD_S)
        there = switchover(RoleChange(both.east), "west")
    switchover(RoleChange(both.west), "east")
    calm_s, drilled_s = _drilled(both)
    with _load(both.east):
        time.sleep(_LOAD_S)
        until(lambda: bool(known(both.east.id).t), "closed time of east at west", START_S)
        _kill(east)
    context = RoleChange(both.west)
    done = failover(context, plan_failover(context, "east", at=EVERYTHING))
    assert there.outage_s is not None and done.writable_s is not None
    return there.outage_s, calm_s, drilled_s, done.writable_s


def _drilled(both: Pair) -> tuple[list[float], list[float]]:
    """The p50 of the lag of shipping in each spell without a drill, and in each with one."""
    west, (_, site) = both.west, both.sites
    watch, spells = Arrivals(durable(west), 0.001), list[tuple[float, float, float]]()
    with _load(both.east, watch, _DRILLED_ROWS):
        time.sleep(_LOAD_S)
        drill_s = _LOAD_S / 4
        for _ in range(DRILLS):
            begun = time.monotonic()
            time.sleep(drill_s)
            calm = time.monotonic()
            site.walship("--cluster", str(site.file), "drill", "west")
            spells.append((begun, calm, time.monotonic()))
            drill_s = spells[-1][2] - calm
    watch.finish(60)

    def lag_s(begin: float, end: float) -> float:
        return percentile([lag for acked, lag in watch.lags if begin <= acked < end], 0.5)

    calm_s = [lag_s(begin, calm) for begin, calm, _ in spells]
    return calm_s, [lag_s(calm, end) for _, calm, end in spells]


@contextmanager
def _load(cluster: Cluster, watch: Arrivals | None = None, rows: int = _BATCH_ROWS) -> Iterator[None]:
    """A thread that writes until the context ends or the cluster takes no writes; 10 MB/s if ``rows`` are not fewer."""
    done = threading.Event()
    batches = [seeded_rows(rows, number, number * rows) for number in range(64)]

    def write() -> None:
        begun, number = time.monotonic(), 0
        with suppress(ReplicationError):
            while not done.is_set():
                sleep_until(begun + number / _BATCHES_PER_S)
                position = cluster.upsert(TABLE, batches[number % len(batches)])
                number += 1
                if watch is not None:
                    watch.add(time.monotonic(), position)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _kill(site: Site) -> None:
    """SIGKILL ``up`` and every role."""
    pids = [site.pid(role) for role in site.roles()]
    assert site._up is not None
    os.kill(site._up.pid, signal.SIGKILL)
    for pid in filter(None, pids):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    site._up.wait()


def _switchover_s(tables: int) -> tuple[float, float]:
    """The first switchover, which makes the routes back; and the median of those there and back that follow.

    Each begins once every route is open both ways again.
    """
    with tempfile.TemporaryDirectory(prefix="walship-switchover-") as folder, role_pair(Path(folder)) as made:
        add_tables(made, tables - 1)
        source, other, took = made.east, made.west, list[float]()
        for _ in range(ROLE_CHANGES):
            made.write()
            source.handle.drain(other.name)
            until(_is_quiet, "open streams", START_S)
            began = time.monotonic()
            switchover(source.command(), other.name)
            took.append(time.monotonic() - began)
            source, other = other, source
            _await_streams(source, other)
        return took[0], percentile(took[1:], 0.5)


def _await_streams(active: Member, standby: Member) -> None:
    """Return once the STANDBY cluster sends under its new epoch: its stream of before is refused after some seconds."""
    assert active.receiver is not None
    streams, epoch = active.receiver._reception._streams, standby.role().epoch
    until(lambda: any(stream._role_epoch >= epoch for stream in list(streams)), f"{standby.name}'s stream", START_S)


def _is_quiet() -> bool:
    """Whether this process hardly runs: no stream is being opened."""
    began = time.process_time()
    time.sleep(_QUIET_S)
    return time.process_time() - began < _QUIET_S / 10


def _failback() -> tuple[float, float]:
    """Bytes against what differs, and seconds."""
    chance = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="walship-failback-") as folder, ExitStack() as stack:
        both = TablePair(Path(folder))
        stack.callback(both.close)
        for first in range(0, ROWS, PIECE):
            _write(both, list(range(first, first + PIECE)), chance)
        both.begin()
        both.connect()
        both.finish()
        both.stack.close()
        both.stack = ExitStack()
        differs = _write(both, sorted(chance.sample(range(ROWS), ROWS // 100)), chance)
        ledger, table = both.east.ledger, both.spec.uuid
        began = time.monotonic()
        begun = ledger.rules.begin_bootstrap("west", table, both.east.term)
        generation = max(rule.generation for rule in begun)
        ledger.bootstraps.keep_known("west", table, generation, both.west.ledger.landing.coverage(table))
        both.connect()
        both.finish()
        return bootstraps(both.west)[-1].length / differs, time.monotonic() - began


def _write(both: TablePair, ids: list[int], chance: random.Random) -> int:
    """How many bytes it takes in the WAL."""
    before = both.wal.length
    texts = [chance.randbytes(50).hex() for _ in ids]
    both.wal.append(both.spec, pa.table({"id": ids, "text": texts}, schema=SCHEMA))
    both.east.register()
    both.east.replay()
    return both.wal.length - before
