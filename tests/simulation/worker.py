"""A simulated cluster's worker process, moved on a step at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import FileId
from replication.core.shipping.chunk import Assignment
from replication.errors import PeerUnavailableError, ReplicationError
from replication.ledger.base import FileKind
from replication.settings import WorkerSection
from replication.worker.files.closed_time import ClosedTime
from replication.worker.files.control_log import ControlLog
from replication.worker.files.host_files import HostFiles
from replication.worker.files.register import Registrar
from replication.worker.report.progress import ProgressLog
from replication.worker.ship.opening import Destination, open_shipment
from replication.worker.ship.peer_context import PeerContext
from replication.worker.ship.shipment import Shipment
from replication.worker.ship.throttle import Throttle
from replication.writer.wal.recovery import Recovery, recover_file
from tests.fakes.link import MemoryLink
from tests.simulation.faulty_files import FaultyFiles

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

HOST = "h0"
SHIP = WorkerSection(window_bytes=4000, message_bytes_max=1500, ack_timeout_s=3.0)


@dataclass
class Stream:
    """A tail to one peer, as far as it has got."""

    assignment: Assignment
    shipment: Shipment
    begins: dict[FileId, tuple[int, Ranges]]
    done: set[FileId] = field(default_factory=set)


class Worker:
    """A worker process: what its threads do, one thing at a time."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.files = FaultyFiles(cluster.chance, cluster.synced)
        ledger = cluster.ledger
        self.host_files = HostFiles(ledger, self.files, HOST, cluster.wal_dir)
        self.registrar = Registrar(ledger, self.host_files)
        self.progress = ProgressLog(ledger)
        self.control = ControlLog(ledger, self.files, cluster.wal_dir, HOST, cluster.boot)
        self.control.roll_bytes = 4000
        self.closed_time = ClosedTime(
            ledger, HOST, self.host_files, self.registrar, self.control, cluster.clock, lambda: cluster.role_epoch
        )
        self.streams: dict[str, Stream] = {}
        for row in ledger.files.all(HOST, open_only=True):
            if row.kind is FileKind.CONTROL:
                recover_file(ledger, self.files, row, cluster.boot)
        self.recover()

    def step(self) -> None:
        cluster = self.cluster
        todo: list[Callable[[], object]] = [self.registrar.run_once, self.progress.flush, self.recover]
        todo += [self.close_time] + [lambda peer=peer: self.ship(peer) for peer in cluster.peers.values()] * 4
        todo += [lambda peer=peer: self.ask_applied(peer) for peer in cluster.peers.values()]
        cluster.chance.choice(todo)()

    def recover(self) -> None:
        Recovery(self.cluster.ledger, self.files, self.cluster.wal_dir, HOST, self.cluster.boot).run_once()

    def close_time(self) -> None:
        self.files.sync_failures = 0.02 * self.cluster.trouble
        try:
            self.closed_time.run_once()
        finally:
            self.files.sync_failures = 0.0

    def crash(self) -> None:
        self.files.crash()
        for stream in self.streams.values():
            stream.shipment.close()
        self.streams.clear()

    def ship(self, peer: Cluster) -> None:
        """A few messages of the tail to a peer; the stream is opened again after anything went wrong."""
        name = peer.id.name
        stream = self.streams.get(name)
        try:
            if stream is None or stream.assignment != self.cluster.assigned or self.cluster.happens(0.02):
                self.leave(name)
                stream = self.open(peer)
                if stream is None:
                    return
                self.streams[name] = stream
            for source in self.host_files.poll():
                if source.file in stream.done:
                    continue
                if source.file not in stream.shipment.window.files:
                    stream.shipment.follow(source.file, *stream.begins.get(source.file, (FILE_HEADER_BYTES, Ranges())))
                stream.shipment.step(source)
                if source.closed and stream.shipment.window.files[source.file].finished(source.length):
                    stream.done.add(source.file)
                    stream.shipment.leave(source.file)
            stream.shipment.drain(0.0)
        except ReplicationError:
            self.cluster.did("stream failed")
            self.leave(name)

    def leave(self, name: str) -> None:
        stream = self.streams.pop(name, None)
        if stream is not None:
            stream.shipment.close()

    def open(self, peer: Cluster) -> Stream | None:
        cluster, name = self.cluster, peer.id.name
        ledger, assigned = cluster.ledger, cluster.assigned
        if assigned.tail(name) is None:
            return None
        rules = [rule for rule in ledger.rules.all() if rule.peer == name]
        self.progress.flush()
        begins: dict[FileId, tuple[int, Ranges]] = {}
        for file, _, status in ledger.files.statuses(name):
            begin, shipped = begins.get(file, (status.begin, Ranges()))
            begins[file] = (min(begin, status.begin), shipped.union(status.shipped))
        sources = self.host_files.poll()
        shipment, resume = open_shipment(
            self.link(peer),
            PeerContext(ledger, self.progress, SHIP, Throttle(lambda: cluster.clock() / 1e6)),
            Destination(name, peer.id, rules, assigned.term, cluster.role_epoch),
            [source.file for source in sources],
        )
        for source in sources:
            start, shipped = begins.get(source.file, (FILE_HEADER_BYTES, Ranges()))
            shipment.follow(source.file, start, resume.durable(source.file, shipped))
        cluster.did("stream opened")
        return Stream(assigned, shipment, begins)

    def ask_applied(self, peer: Cluster) -> None:
        """How far files are applied at a peer."""
        name = peer.id.name
        link = self.link(peer)
        known = {progress.file: progress for progress in self.cluster.ledger.files.progress(name)}
        for file, there in link.progress(list(known)).items():
            if there.status.applied > known[file].applied:
                self.progress.report(replace(known[file], applied=there.status.applied, shipped=Ranges()))

    def link(self, peer: Cluster) -> MemoryLink:
        """A new connection; PeerUnavailableError when nobody listens."""
        if peer.reception is None:
            raise PeerUnavailableError(f"{peer.id.name} does not listen")
        return MemoryLink(peer.reception, self.cluster.links[peer.id.name])
