"""A master's round with 10,000 open statuses, and with 1,000, of which ten change between two rounds.

The ledger is a SQLite file, ZooKeeper the real server out of PySpark's jars, the master the one that a cluster runs.
Each round also asks what may be retired and samples what peers lack, as every fifth does in a cluster; the disk is
swept every 30 s, and that is timed apart. The WALs are CLOSED and applied at home, half of each is at each of five
peers, and the rest is large enough to be cut into chunks, of which the worker has as many as it may. Nothing is behind
them on disk but their names: a master reads none of their bytes.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from replication.coordination.base import HostRecord, Public
from replication.coordination.embedded import EmbeddedZookeeper
from replication.coordination.paths import MemberKind, Quorum
from replication.coordination.zookeeper import connect, read_public
from replication.core.coverage import Ranges
from replication.core.definition.define import typed_table
from replication.core.definition.schema import TableSpec
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import ClusterId
from replication.core.shipping.planner import Limits
from replication.files.local import LocalFiles
from replication.ledger.base import FileKind, FileRow, Ledger, Peer, PeerProgress
from replication.ledger.orphans import OrphanRemover
from replication.ledger.sql.ledger import initialise, open_ledger
from replication.master.budget import Budgets
from replication.master.loop import HostDisk, Master, MasterTimes
from tests.bench.measure import QUICK, SCHEMA, Figure, at_most, pairs

STATUSES, FEWER = (2_000, 200) if QUICK else (10_000, 1_000)
PEERS = 5
CHANGED = 10
ROUNDS = 20
LENGTH = 2 << 30  # so large that each file is to be cut
EAST = ClusterId("east", uuid4())
_RETIRING = MasterTimes(retire_interval_s=0.0)


def run() -> list[Figure]:
    """Rounds with many statuses and with few, in turns."""
    with tempfile.TemporaryDirectory(prefix="walship-planning-") as folder, ExitStack() as stack:
        home = Path(folder)
        server = stack.enter_context(EmbeddedZookeeper(home / "zookeeper", 0, heap_mb=64))
        many = stack.enter_context(_planned(home / "many", Quorum(server.servers, "/many"), STATUSES))
        few = stack.enter_context(_planned(home / "few", Quorum(server.servers, "/few"), FEWER))
        ratio, spread = pairs(lambda: _rounds(few), lambda: _rounds(many))
        middle, worst, of_few = statistics.median(many.took), max(many.took), statistics.median(few.took)
        return [
            at_most(f"planning: a round with {STATUSES:,} open statuses, p50", middle * 1e3, "ms", 200),
            at_most("planning: the same, the worst", worst * 1e3, "ms", 200, f"of {len(many.took)}"),
            Figure(f"planning: a round with {FEWER:,} open statuses, p50", of_few * 1e3, "ms"),
            Figure("planning: the round after a rule changed, which reads all anew", _after_a_rule(many) * 1e3, "ms"),
            Figure(f"planning: a sweep of {len(many.files):,} files on disk", _sweep(many) * 1e3, "ms"),
            at_most(f"planning: {STATUSES:,} statuses against {FEWER:,}, {CHANGED} changed", ratio, "×", 2, spread),
        ]


@dataclass
class _Planned:
    """A master with what it plans for, and the seconds that its rounds took."""

    ledger: Ledger
    master: Master
    orphans: OrphanRemover
    files: list[FileRow]
    took: list[float]
    changes: int = 0


@contextmanager
def _planned(home: Path, quorum: Quorum, statuses: int) -> Iterator[_Planned]:
    url, wals = f"sqlite:///{home / 'ledger.db'}", home / "wal"
    wals.mkdir(parents=True)
    initialise(url, EAST)
    with ExitStack() as stack:
        ledger = open_ledger(url)
        stack.callback(ledger.close)
        session = stack.enter_context(connect(quorum))
        session.establish(EAST, "0.0")
        for slot in ("h0", "h1"):
            session.put_host(HostRecord(slot, str(home), ""))
            session.enrol(MemberKind.WORKERS, slot, {})
        master = Master(
            ledger,
            session,
            HostDisk(LocalFiles(), "h0"),
            read_public,
            Limits(streams=4),
            _RETIRING,
            peer_bytes_max=1 << 50,
            budgets=Budgets(ledger, "h0", str(home), 1 << 50, spills=False),
        )
        stack.callback(master.close)
        _rules(ledger, quorum)
        orphans = OrphanRemover(ledger, LocalFiles(), "h0", (str(wals),))
        made = _Planned(ledger, master, orphans, _files(ledger, wals, statuses // PEERS), [])
        _settle(made)
        yield made


def _rules(ledger: Ledger, quorum: Quorum) -> None:
    spec: TableSpec = typed_table("bench.t", SCHEMA, ["k"], uuids=iter(uuid4, None))
    ledger.tables.create(spec)
    for number in range(PEERS):
        there, peer = Quorum(quorum.servers, f"{quorum.root}-peer{number}"), ClusterId(f"peer{number}", uuid4())
        with connect(there) as session:
            session.establish(peer, "0.0")
            session.publish(Public(peer, "0.0", (f"{peer.name}:1",)))
        ledger.rules.define(Peer(peer.name, str(there), peer), ledger.terms.current())
        ledger.rules.enable(peer.name, spec.uuid, ["default"], spec.name, ledger.terms.current())


def _files(ledger: Ledger, wals: Path, count: int) -> list[FileRow]:
    """CLOSED WALs, half of each shipped to each peer."""
    rows = []
    for _ in range(count):
        row = ledger.files.allocate("h0", FileKind.WAL, str(wals), "boot", "w0")
        Path(row.path).touch()
        ledger.registration.register_own(row.file, row.length, LENGTH, ())
        ledger.files.close(row.file, LENGTH)
        rows.append(row)
    half = Ranges.of((FILE_HEADER_BYTES, LENGTH // 2))
    ledger.files.record([PeerProgress(row.file, f"peer{n}", half, 0, 1) for row in rows for n in range(PEERS)])
    return rows


def _settle(planned: _Planned) -> None:
    """Rounds until each peer is known and has its tail."""
    for _ in range(10):
        planned.master.round()
        time.sleep(0.05)


def _rounds(planned: _Planned) -> float:
    """Seconds of the median of rounds, ten statuses having changed before each."""
    took = []
    for _ in range(ROUNDS // 5):
        planned.changes += 1
        planned.ledger.files.record(_change(planned))
        began = time.perf_counter()
        planned.master.round()
        took.append(time.perf_counter() - began)
    planned.took += took
    return statistics.median(took)


def _after_a_rule(planned: _Planned) -> float:
    ledger, took = planned.ledger, []
    for number in range(3):
        spec = typed_table(f"bench.more{number}", SCHEMA, ["k"], uuids=iter(uuid4, None))
        ledger.tables.create(spec)
        ledger.rules.enable("peer0", spec.uuid, ["default"], spec.name, ledger.terms.current())
        began = time.perf_counter()
        planned.master.round()
        took.append(time.perf_counter() - began)
        ledger.rules.disable("peer0", spec.uuid, ["default"], ledger.terms.current())
    return statistics.median(took)


def _sweep(planned: _Planned) -> float:
    began = time.perf_counter()
    planned.orphans.run_once(time.monotonic())
    return time.perf_counter() - began


def _change(planned: _Planned) -> list[PeerProgress]:
    """A little more of ten files is at a peer."""
    step = planned.changes * CHANGED
    further = Ranges.of((FILE_HEADER_BYTES, LENGTH // 2 + planned.changes * 4096))
    picked = [planned.files[(step + n) % len(planned.files)] for n in range(CHANGED)]
    return [PeerProgress(row.file, f"peer{planned.changes % PEERS}", further, 0, 1) for row in picked]
