"""A graph of clusters in one process: real receivers, workers and replay on in-memory warehouses, routes as drawn."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from peer.client.contacts import Contacts
from peer.client.peering import Peering
from peer.client.waiting import Waiting
from peer.frames.quarantine import Quarantine
from peer.receive.receiver import Receiver
from peer.replay.context import ReplayContext
from peer.replay.rounds import Replayer
from peer.tables.read import read
from peer.verify.digest import content_hash
from replication.core.definition.schema import TableSpec
from replication.core.frame import FrameView
from replication.core.ids import NIL_UUID, StreamId
from replication.core.position import Position
from replication.errors import PeerUnavailableError
from replication.ledger.base import FileKind, Peer
from replication.link.base import PeerLink
from replication.link.grpc_client import connect
from replication.tables.layout import landing_name
from tests.fakes.tables import MemoryTables
from tests.frames_on_disk import registered
from tests.sites import SCHEMA, Site, Wal

SETTINGS: dict[str, dict[str, Any]] = {
    "worker": {
        "retry_min_s": 0.05,
        "retry_max_s": 0.5,
        "heartbeat_interval_s": 0.1,
        "closed_time_interval_s": 0.1,
    }
}


class Node(Site):
    """A cluster of a graph, replaying into memory."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder, name, **SETTINGS)
        self.tables = MemoryTables()
        self.port = 0
        self.peers: list[Node] = []
        self._wal: Wal | None = None
        self._sequences: dict[StreamId, int] = {}

    @property
    def name(self) -> str:
        return self.cluster.name

    @contextmanager
    def running(self) -> Iterator[Receiver]:
        """Receive and replay."""
        stop = threading.Event()

        def replay() -> None:
            replayer = Replayer(
                ReplayContext(
                    self.ledger,
                    self.tables,
                    Quarantine(self.config.data_dir / "quarantine", self.ledger.replay),
                    self.ledger.replay.raise_epoch(),
                ),
                parallel=1,
            )
            while not stop.wait(0.02):
                replayer.round()
            replayer.close()

        thread = threading.Thread(target=replay, name=f"replay {self.name}")
        with self.receiver() as receiver:
            self.port = receiver.port
            thread.start()
            try:
                yield receiver
            finally:
                stop.set()
                thread.join()

    def plan(self, *, without: Sequence[str] = ()) -> None:
        """Tails to the receivers of all peers but some."""
        self.assign_all([(peer.cluster, peer.port) for peer in self.peers if peer.name not in without])

    def write(self, spec: TableSpec, rows: Mapping[int, str]) -> Position:
        """One frame; where it is."""
        if self._wal is None:
            self._wal = self.wal()
        wal = self._wal
        data = pa.table({"id": list(rows), "text": list(rows.values())}, SCHEMA)
        end = wal.append(spec, data)
        ends = {wal.file: end}
        for group in spec.groups:
            stream = StreamId(wal.file, spec.uuid, group.name)
            self._sequences[stream] = self._sequences.get(stream, -1) + 1
        own = {stream: last for stream, last in self._sequences.items() if stream.table == spec.uuid}
        return Position(self.cluster, ends, own)

    def wait(self, position: Position, at: Node | None = None, until: str = "visible", timeout_s: float = 30.0) -> None:
        """As ``Cluster.wait``."""
        known = () if at is None else (at,)
        Waiting(self.ledger, self.contacts(*known)).wait(position, None if at is None else at.name, until, timeout_s)

    def peering(self, *others: Node) -> Peering:
        """This cluster's, which finds these others without ZooKeeper."""
        return Peering(self.ledger, self.coordination, self.contacts(*others))

    def contacts(self, *others: Node) -> Contacts:
        """This cluster's, which find these others without ZooKeeper."""
        made = _Contacts(self.ledger, self.config.tls)
        made.__dict__["nodes"] = {other.name: other for other in others}
        return made

    def rows(self, spec: TableSpec) -> dict[int, str]:
        return {row["id"]: row["text"] for row in read(self.tables, spec).read_all().to_pylist()}

    def content(self, spec: TableSpec) -> tuple[int, str]:
        return content_hash(read(self.tables, spec))

    def changes(self, spec: TableSpec) -> list[dict[str, Any]]:
        """The change log, a row per version."""
        found = self.tables.query(f'select * from "{landing_name(spec)}" where _op >= 0')
        return [dict(row) for row in found.to_pylist()]

    def landed(self, spec: TableSpec | None = None) -> list[tuple[FrameView, bytes]]:
        """Every registered frame of a table (of none: control frames) in the landing files, with its sealed bytes."""
        table = NIL_UUID if spec is None else spec.uuid
        found = []
        for row in self.ledger.files.all():
            if row.kind is FileKind.LANDING:
                content, frames = registered(row)
                of_table = [frame for frame in frames if frame.header.table == table]
                found += [(frame, content[frame.sealed_begin : frame.end]) for frame in of_table]
        return found

    def replicated(self, origin: Node, spec: TableSpec | None = None) -> int:
        reached = self.ledger.time.replicated(None if spec is None else spec.uuid)
        return reached[origin.cluster].t if origin.cluster in reached else 0


class _Contacts(Contacts):
    """Find receivers without ZooKeeper."""

    nodes: dict[str, Node]
    __slots__ = ("__dict__",)

    def locate(self, name: str, deadline_s: float = 0.0) -> Peer:
        known = {peer.name: peer for peer in self.ledger.rules.peers()}
        return known.get(name) or Peer(name, "", self.nodes[name].cluster)

    @contextmanager
    def link(self, peer: Peer) -> Iterator[PeerLink]:
        node = self.nodes[peer.name]
        if not node.port:
            raise PeerUnavailableError(f"{peer.name} is down")
        made = connect(f"127.0.0.1:{node.port}", peer.name, self.ledger.cluster)
        try:
            yield made
        finally:
            made.close()


class Graph:
    """Clusters by name. ``routes`` is like ``"a>b b>c"``; every table goes along all of them unless said otherwise."""

    def __init__(self, folder: Path, stack: ExitStack, routes: str, *specs: TableSpec) -> None:
        self.routes = [tuple(route.split(">")) for route in routes.split()]
        self.nodes = {name: Node(folder, name) for name in sorted({name for route in self.routes for name in route})}
        for node in self.nodes.values():
            stack.callback(node.close)
        self._stack = stack
        self.specs = specs

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def define(self, *specs: TableSpec) -> None:
        """Make the tables where they are written and enable them on all routes."""
        for spec in specs or self.specs:
            for node in self.nodes.values():
                node.ledger.tables.create(spec)
            for source, peer in self.routes:
                self.connect(source, peer, spec)

    def connect(self, source: str, peer: str, *specs: TableSpec) -> None:
        """Enable tables on one route from now on."""
        one, two = self.nodes[source], self.nodes[peer]
        one.send_to(two, *specs)
        if two not in one.peers:
            one.peers.append(two)
        one.coordination.announce()

    def start(self) -> None:
        """Start everything and assign all routes."""
        for node in self.nodes.values():
            self._stack.enter_context(node.running())
        for node in self.nodes.values():
            self._stack.enter_context(node.worker())
            node.plan()

    def versions(self, spec: TableSpec) -> dict[str, list[tuple[str, str, int]]]:
        """Per cluster the (origin, WAL, sequence) of every version in its change log, sorted."""
        return {
            name: sorted((row["_origin"], row["_wal"], row["_seq"], row["_row"]) for row in node.changes(spec))
            for name, node in self.nodes.items()
        }
