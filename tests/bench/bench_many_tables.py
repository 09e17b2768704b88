"""1,000 tables that go to five peers: what they cost the ledgers, and what is left of the throughput of one table.

One real writer here, one real worker and five receivers in processes of their own, without replay. Write transactions
of a ledger are counted by SQLite itself, in the header of its WAL index. Registering 20 times a second, progress ten
times and closed time once make some 35 a second at the source whatever there is to ship; a receiver has one for each
group of frames that it syncs, so at most one for each append here. Throughput is bytes of WAL from the first upsert
until all five peers have all of it durable and registered, in batches of 1,000 rows that go to the tables in turn.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from replication.coordination.paths import MemberKind
from replication.core.definition.define import typed_table
from replication.core.definition.schema import TableSpec
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import ClusterId
from replication.core.position import Position
from replication.ledger.base import PatternRule, Peer
from replication.writer.wal.wal_series import Place
from replication.writer.writer import Writer
from tests.bench.arrivals import paced, sleep_until
from tests.bench.clusters import until
from tests.bench.measure import PAIRS, QUICK, SCHEMA, Figure, at_least, at_most, pairs, seeded_rows
from tests.bench.resident import PeakOfProcesses, over_idle
from tests.bench.shipping_process import started
from tests.sites import Site

TABLES = 100 if QUICK else 1000
PEERS = tuple(f"peer{number}" for number in range(5))
BATCH_ROWS, BATCHES = 1_000, 300 if QUICK else 1_000
COUNT = 2 if QUICK else PAIRS
PER_SECOND, ROWS = 100, 10
STEADY_S = 5 if QUICK else 30
IN_FLIGHT = 16
LIMIT_S = 300.0
WITHIN_S = 600.0
_CHANGES_AT = 8  # in the header of the WAL index: a number that every transaction adds one to


def run() -> list[Figure]:
    """Steady appends to all tables, then throughput in turns with one table."""
    folder = Path(tempfile.mkdtemp(prefix="walship-tables-"))
    try:
        with _fan(folder / "many", TABLES) as many, _fan(folder / "one", 1) as one:
            with _working(many):
                steady = _transactions(many)
            with _working(one):
                like = _transactions(one)
            rates: list[float] = []

            def ours() -> float:
                seconds_per_byte = _throughput(many)
                rates.append(1 / seconds_per_byte)
                return seconds_per_byte

            ratio, spread = pairs(ours, lambda: _throughput(one), COUNT, WITHIN_S)
            peaks = many.peaks
    finally:
        shutil.rmtree(folder)
    name, load = f"{TABLES:,} tables to {len(PEERS)} peers", f"{PER_SECOND} appends/s of {ROWS} rows"
    return [
        at_most(f"{name}, {load}: ledger transactions at the source", steady["east"], "per s", 50),
        Figure("the same with one table", like["east"], "per s"),
        at_most(f"{name}, {load}: the same at a receiver, the worst", _worst(steady), "per s", PER_SECOND + 10),
        Figure("the same with one table", _worst(like), "per s"),
        Figure(f"{name}: WAL bytes at all five, at best", max(rates) / 1e6, "MB/s"),
        at_least(f"{name}: throughput against one table", ratio, "×", 0.8, spread),
        *over_idle(name, *peaks),
    ]


def _worst(rates: Mapping[str, float]) -> float:
    return max(rates[peer] for peer in PEERS)


@dataclass
class _Fan:
    """A site with its writer, its tables, what it needs to start a worker, and the memory that each run took."""

    site: Site
    folder: Path
    writer: Writer
    specs: list[TableSpec]
    ports: dict[ClusterId, int]
    receiver: int  # the process of one of them
    peaks: list[Mapping[str, float]] = field(default_factory=list)


@contextmanager
def _fan(folder: Path, tables: int) -> Iterator[_Fan]:
    peers = {name: ClusterId(name, uuid4()) for name in PEERS}
    with ExitStack() as stack:
        site = stack.enter_context(closing(Site(folder, "east")))
        for name, peer in peers.items():
            site.ledger.rules.define(Peer(name, "zk:2181/x", peer), site.term)
            site.ledger.rules.add_pattern_rule(PatternRule(name, "bench.*"), site.term)
        specs = [typed_table(f"bench.t{n:04d}", SCHEMA, ["k"], uuids=iter(uuid4, None)) for n in range(tables)]
        for spec in specs:
            site.ledger.tables.create(spec)
        ports, receivers = {}, []
        for peer in peers.values():
            receiver = stack.enter_context(started("receiver", str(folder), str(peer)))
            assert receiver.stdout is not None
            ports[peer] = int(receiver.stdout.readline())
            receivers.append(receiver.pid)
        site.coordination.enrol(MemberKind.WORKERS, site.config.cluster.host, {})
        config = site.config
        writer = Writer(site.ledger, site.coordination, Place(str(config.wal_dir), config.cluster.host), config.writer)
        yield _Fan(site, folder, stack.enter_context(writer), specs, ports, receivers[0])


@contextmanager
def _working(fan: _Fan) -> Iterator[None]:
    """The worker, once the peers have a row of each table of the writer's."""
    with started("fan", str(fan.folder), str(fan.site.cluster)) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        memory = PeakOfProcesses({"worker": worker.pid, "receiver": fan.receiver})
        worker.stdin.write(json.dumps([[str(peer), port] for peer, port in fan.ports.items()]) + "\n")
        worker.stdin.flush()
        rows = seeded_rows(1)
        flying = [fan.writer.upsert_async(spec, rows) for spec in fan.specs]
        _arrived(fan, _joined(flying))
        yield
        fan.peaks.append(memory.over_idle_mib())


def _joined(flying: list[Future[Position]]) -> Position:
    first, *others = (future.result() for future in flying)
    for other in others:
        first = first.join(other)
    return first


def _arrived(fan: _Fan, position: Position) -> None:
    """Wait until all peers have everything up to there."""

    def is_there() -> bool:
        known = {(p.file, p.peer): p.shipped for p in fan.site.ledger.files.progress()}
        return all(
            (file, peer) in known and known[file, peer].contains(FILE_HEADER_BYTES, end)
            for file, end in position.ends.items()
            for peer in PEERS
        )

    until(is_there, "five peers to have everything", LIMIT_S, poll_s=0.02)


def _transactions(fan: _Fan) -> dict[str, float]:
    """Ledger transactions a second of each cluster under a steady load."""
    batches = [seeded_rows(ROWS, seed) for seed in range(100)]
    count = STEADY_S * PER_SECOND
    before, begin = _changes(fan), time.monotonic()
    for number, due in enumerate(paced(count, PER_SECOND, begin)):
        sleep_until(due)
        fan.writer.upsert(fan.specs[number % len(fan.specs)], batches[number % len(batches)])
    seconds, after = time.monotonic() - begin, _changes(fan)
    return {name: (after[name] - before[name]) / seconds for name in after}


def _changes(fan: _Fan) -> dict[str, int]:
    """How many transactions each cluster's ledger has seen, but for a base that is the same every time.

    Another process reads: to close a file of SQLite's here would let go of the locks that this process has on it.
    """
    counts = {}
    for name in ("east", *PEERS):
        command = ["head", "-c", str(_CHANGES_AT + 4), str(fan.folder / name / "ledger.db-shm")]
        index = subprocess.run(command, capture_output=True, check=True).stdout
        counts[name] = int(struct.unpack_from("=I", index, _CHANGES_AT)[0])
    return counts


def _throughput(fan: _Fan) -> float:
    """Seconds for each byte of WAL, from the first upsert until all peers have everything."""
    batches = [seeded_rows(BATCH_ROWS, seed) for seed in range(16)]
    with _working(fan):
        begin = time.perf_counter()
        flying: deque[Future[Position]] = deque()
        position = fan.writer.upsert(fan.specs[0], batches[0])
        first = dict(position.ends)
        for number in range(1, BATCHES):
            if len(flying) >= IN_FLIGHT:
                position = position.join(flying.popleft().result())
            flying.append(fan.writer.upsert_async(fan.specs[number % len(fan.specs)], batches[number % len(batches)]))
        for future in flying:
            position = position.join(future.result())
        _arrived(fan, position)
        seconds = time.perf_counter() - begin
    written = sum(end - first.get(file, FILE_HEADER_BYTES) for file, end in position.ends.items())
    return seconds / written
