"""One simulated cluster: the real parts of writer, worker, receiver and master, each moved on a step at a time.

Nothing here has a thread or looks at a clock: who moves next, what fails and what time it is come from one seeded
generator, so a run can be repeated. What the processes do between two waits is what one step does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import pyarrow as pa

from peer.receive.landing import Landing
from peer.receive.limits import LandingLimits
from peer.receive.reception import Reception, SeenCluster
from replication.core.coverage import Ranges
from replication.core.definition.schema import TableSpec
from replication.core.frame import FILE_HEADER_BYTES, Codec, check_payload, scan
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.rows.batch import EncodedBatch
from replication.core.rows.convert import upserts_from_arrow
from replication.core.shipping.chunk import Assignment
from replication.core.shipping.planner import HostView, Limits, PeerView, PlannerInput, plan
from replication.errors import CoordinationError, LeaseLostError, LedgerBusyError, ReplicationError
from replication.ledger.base import Ledger, Peer, ReplayCheckpoint
from replication.master.retire import retire
from replication.writer.wal.commit_clock import CommitClock
from replication.writer.wal.registration import lock_path
from replication.writer.wal.wal_series import Place, WalSeries
from tests.fakes.ledger import MemoryLedger
from tests.fakes.link import LinkFaults
from tests.simulation.faulty_files import FaultyFiles, lose
from tests.simulation.worker import HOST, Worker

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
WAL_BYTES = 3000
LANDING_BYTES = 5000


class Lease:
    """A role lease that is lost now and then."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def epoch(self) -> int:
        return 1

    def publish(self, epoch: int, publish: Callable[[], None]) -> None:
        if self._cluster.happens(0.01):
            raise LeaseLostError("the lease was not confirmed in time")
        publish()


class SteppedLanding(Landing):
    """Landing whose thread is the simulation."""

    _settled = 0

    def step(self) -> None:
        """Land what has arrived."""
        self.run_once((self._queue.take() or []) if self._queue else [])

    def wait_until_empty(self, timeout_s: float) -> None:
        """What waits lands while somebody waits for that, or the disk is too slow: each every other time."""
        self._settled += 1
        if self._settled % 2:
            self.step()


@dataclass
class Master:
    """A candidate; it may believe that it leads when another was elected."""

    term: int = 0
    believes: bool = False


class Cluster:
    """See the module.

    Attributes:
        acked: the last sequence of each stream that its writer acknowledged to a caller.
    """

    def __init__(self, name: str, number: int, folder: Path, chance: random.Random, clock: Callable[[], int]) -> None:
        self.id = ClusterId(name, UUID(int=number))
        self.chance = chance
        self.clock = clock
        self.real = MemoryLedger(self.id)
        self.ledger: Ledger = self.real
        self.trouble = 0.0
        self.real.fault = lambda call: self._fault(LedgerBusyError(f"{call}: locked"))
        self.real.fault_after = lambda call: self._fault(CoordinationError(f"{call}: the answer was lost"))
        self.wal_dir, self.landing_dir = str(folder / name / "wal"), str(folder / name / "landing")
        for directory in (self.wal_dir, self.landing_dir):
            Path(directory).mkdir(parents=True)
        self.synced: dict[int, int] = {}
        self.boot = f"{name}-0"
        self.tables: list[TableSpec] = []
        self.peers: dict[str, Cluster] = {}
        self.acked: dict[StreamId, int] = {}
        self.links: dict[str, LinkFaults] = {}
        self.assigned = Assignment(0)
        self.role_epoch = 1
        self.masters = [Master(), Master()]
        self.commits: dict[UUID, int] = {}
        self.events: dict[str, int] = {}
        self._writers = 0
        self._applied: dict[UUID, dict[FileId, int]] = {}
        self.series: WalSeries | None = None
        self.reception: Reception | None = None
        self.worker: Worker | None = None

    def happens(self, odds: float) -> bool:
        """A fault, while there is trouble."""
        return self.trouble > 0 and self.chance.random() < odds * self.trouble

    def did(self, what: str) -> None:
        """Count what happened, to see that a run was worth something."""
        self.events[what] = self.events.get(what, 0) + 1

    def send_to(self, peer: Cluster) -> None:
        """Define the peer and enable every table."""
        self.peers[peer.id.name] = peer
        self.links[peer.id.name] = LinkFaults(self.chance.randrange(1 << 30))
        self.ledger.rules.define(Peer(peer.id.name, "zk:2181/x", peer.id), 0)
        for spec in self.tables:
            self.ledger.rules.enable(peer.id.name, spec.uuid, [g.name for g in spec.groups], spec.name, 0)

    # Writer.

    def write(self) -> None:
        """One group commit of the writer, which starts when it is not there."""
        if self.series is None:
            self.writer_files = FaultyFiles(self.chance, self.synced)
            self._writers += 1
            writer = f"w{self._writers}"
            lock = self.writer_files.create(lock_path(self.wal_dir, writer))
            lock.lock()
            floor = self.ledger.time.register_writer(writer, HOST, 1, self.boot, 1)
            clock = CommitClock(self.ledger, HOST, floor, self.clock, lambda: self.clock() / 1e6)
            place = Place(self.wal_dir, HOST, self.boot, writer)
            self.series = WalSeries(self.ledger, self.writer_files, place, Lease(self), clock, WAL_BYTES, 1e9)
        if self.chance.random() < 0.3:
            self.series.tick()
            return
        self.writer_files.sync_failures = 0.02 * self.trouble
        spec = self.chance.choice(self.tables)
        ids = [self.chance.randrange(50) for _ in range(self.chance.randint(1, 3))]
        rows = pa.table({"id": ids, "text": [f"{self.clock()}" for _ in ids]}, schema=SCHEMA)
        written = self.series.write([EncodedBatch.encode(log, Codec.NONE) for log in upserts_from_arrow(rows, spec)])
        for placed in written.placed:
            self.acked[placed.stream] = placed.sequence
        self.did("acked")

    def crash_writer(self) -> None:
        """SIGKILL."""
        if self.series is not None:
            self.writer_files.crash()
            self.series = None
            self.did("writer killed")

    # Worker.

    def work(self) -> None:
        """One thing that the worker's threads do."""
        if self.worker is None:
            self.worker = Worker(self)
        self.worker.step()

    def crash_worker(self) -> None:
        """SIGKILL."""
        if self.worker is not None:
            self.worker.crash()
            self.worker = None
            self.did("worker killed")

    # Receiver and replay.

    def receive(self) -> None:
        """Land what has arrived; the receiver starts when it is not there."""
        if self.reception is None:
            self.receiver_files = FaultyFiles(self.chance, self.synced)
            limits = LandingLimits(
                self.landing_dir,
                f"{self.landing_dir}/withheld",
                HOST,
                self.boot,
                0,
                1 << 60,
                LANDING_BYTES,
                2.0,
                fault_s=0.0,  # it would be a wait of the machine's clock
            )
            self.landing = SteppedLanding(self.ledger, self.receiver_files, limits)
            self.landing.recover()
            self.reception = Reception(self.ledger, self.landing, SeenCluster())
        self.receiver_files.sync_failures = 0.02 * self.trouble
        self.landing.step()

    def crash_receiver(self) -> None:
        """SIGKILL."""
        if self.reception is not None:
            self.receiver_files.crash()
            self.reception = None
            self.did("receiver killed")

    def replay(self) -> None:
        """A table applies what is registered of some files."""
        spec = self.chance.choice(self.tables)
        pending = self.ledger.replay.pending()
        if pending:
            positions = self._applied.setdefault(spec.uuid, {})
            positions.update({p.row.file: p.end for p in pending})
            number = self.commits[spec.uuid] = self.commits.get(spec.uuid, 0) + 1
            self.ledger.replay.checkpoint_applied(ReplayCheckpoint(spec.uuid, 1, number, number, dict(positions)))
            self.did("applied")

    # Masters.

    def lead(self) -> None:
        """One round of a candidate; sometimes one that was followed by another and does not know."""
        master = self.chance.choice(self.masters)
        if self.happens(0.1) or not any(m.believes for m in self.masters):
            master.believes, master.term = True, 0  # elected; who led before learns it later, or from the ledger
        if not master.believes:
            return
        if not master.term:
            master.term = self.ledger.terms.raise_to_next()
            self.did("master elected")
        if self.happens(0.05):
            self.did("master died between term and plan")
            master.believes = False
            return
        if self.ledger.terms.current() != master.term:
            master.believes = False
            self.did("stale master stood down")
            return
        retirable = self.ledger.files.retirable(HOST)
        peers = tuple(PeerView(name, peer.id, False, peer.id, (f"{name}:1",)) for name, peer in self.peers.items())
        snapshot = PlannerInput(self.clock() / 1e6, (HostView(HOST),), peers, (), {HOST: self.assigned})
        made = plan(snapshot, Limits())
        for assignment in made.assignments.values():
            self.assigned = replace(assignment, term=master.term)
        for row in retirable:
            if not self.happens(0.1):
                retire(self.ledger, FaultyFiles(self.chance, self.synced), row, master.term, HOST)
                self.did("retired")

    # The machine.

    def lose_power(self) -> None:
        """Every process is gone, and what was never synced; another boot follows."""
        self.crash_writer()
        self.crash_worker()
        self.crash_receiver()
        for directory in (self.wal_dir, self.landing_dir):
            lose(directory, self.synced, self.chance)
        self.check_disk()
        self.boot = f"{self.id.name}-{self.clock()}"
        self.did("power lost")

    def check_disk(self) -> None:
        """What the ledger knows of is whole on the disk: nothing counts before it is durable."""
        for row in self.real._real.files.all():
            if Path(row.path).exists() and row.length > FILE_HEADER_BYTES:
                content = Path(row.path).read_bytes()[: row.length]
                end = FILE_HEADER_BYTES
                for frame in scan(content, FILE_HEADER_BYTES):
                    check_payload(frame, content[frame.payload_begin : frame.end])
                    end = frame.end
                assert end == row.length, f"{row.path}: {row.length} bytes are registered, {end} are there"

    def _fault(self, error: ReplicationError) -> None:
        if self.happens(0.01):
            raise error


def claimed(cluster: Cluster) -> Mapping[StreamId, Ranges]:
    """What a cluster has claimed, without the faults."""
    return cluster.real._real.landing.coverage()
