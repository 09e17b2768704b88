"""Any graph, filters and order of shipping: each group is claimed once, and only where it has a way to."""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from peer.receive.landing import Landing
from peer.receive.limits import LandingLimits
from peer.receive.reception import Reception, SeenCluster
from replication.core.coverage import Ranges
from replication.ledger.base import FileKind, Peer
from replication.settings import WorkerSection
from replication.worker.files.host_files import HostFiles
from replication.worker.files.register import Registrar
from replication.worker.report.progress import ProgressLog
from replication.worker.ship.opening import Destination, open_shipment
from replication.worker.ship.peer_context import PeerContext
from replication.worker.ship.throttle import Throttle
from tests.budget import examples
from tests.fakes.link import MemoryLink
from tests.frames_on_disk import registered
from tests.sites import Site, Wal
from tests.tables_made import grouped

NAMES = "abcd"
SPEC = grouped("ops.t")
GROUPS = [group.name for group in SPEC.groups]
LIMITS = WorkerSection(window_bytes=1 << 20, message_bytes_max=4000, ack_timeout_s=20.0)


class Node:
    """A cluster without threads of its own but landing's; ``ship`` brings a peer level with it."""

    def __init__(self, folder: Path, name: str, stack: ExitStack) -> None:
        self.site = Site(folder, name)
        stack.callback(self.site.close)
        self.site.ledger.tables.create(SPEC)
        data_dir = self.site.config.data_dir
        limits = LandingLimits(
            str(self.site.config.landing_dir), str(data_dir / "q"), "h0", self.site.boot, 0, 1 << 40, 20_000
        )
        self.landing = Landing(self.site.ledger, self.site.files, limits)
        self.landing.start()
        stack.callback(self.landing.stop)
        self.link = MemoryLink(Reception(self.site.ledger, self.landing, SeenCluster()))
        self.files = HostFiles(self.site.ledger, self.site.files, "h0", str(self.site.config.wal_dir))
        stack.callback(self.files.close)
        self.registrar = Registrar(self.site.ledger, self.files)
        self.wal: Wal | None = None

    def write(self, first: int) -> None:
        self.wal = self.wal or self.site.wal()
        ids = range(first, first + 3)
        self.wal.append(SPEC, pa.table({"k": [str(i) for i in ids], "a": list(ids), "b": [f"b{i}" for i in ids]}))
        self.registrar.run_once()

    def send_to(self, peer: Node, groups: set[str]) -> None:
        """Open the route to a peer for these groups."""
        to, term = peer.site.cluster, self.site.term
        self.site.ledger.rules.define(Peer(to.name, "zk:2181/x", to), term)
        self.site.ledger.rules.enable(to.name, SPEC.uuid, sorted(groups), SPEC.name, term)

    def ship(self, peer: Node) -> bool:
        """Send what the peer lacks; whether anything went."""
        ledger, moved = self.site.ledger, False
        rules = [rule for rule in ledger.rules.all() if rule.peer == peer.site.cluster.name]
        self.registrar.run_once()
        wanted = [s for s in self.files.poll() if s.row.source is None or s.row.source.cluster != peer.site.cluster]
        progress = ProgressLog(ledger)
        to = Destination(peer.site.cluster.name, peer.site.cluster, rules, 1, 1)
        context = PeerContext(ledger, progress, LIMITS, Throttle())
        shipment, resume = open_shipment(peer.link, context, to, [s.file for s in wanted])
        shipped = {known.file: known.shipped for known in ledger.files.progress(peer.site.cluster.name)}
        with closing(shipment):
            for source in wanted:
                before = resume.durable(source.file, shipped.get(source.file, Ranges()))
                shipment.follow(source.file, 256, before)
                while not shipment.window.files[source.file].finished(source.length):
                    shipment.step(source)
                    shipment.drain(0.002)
                moved |= not before.contains(256, source.length)
        progress.flush()
        return moved


@examples(5)
@given(
    st.dictionaries(
        st.sampled_from([a + b for a in NAMES for b in NAMES if a != b]),
        st.sets(st.sampled_from(GROUPS), min_size=1),
        min_size=1,
        max_size=8,
    ),
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=4),
    st.data(),
)
def test_in_any_graph_each_frame_of_a_group_is_claimed_once_wherever_routes_that_take_the_group_lead(
    routes: dict[str, set[str]], writers: list[str], data: st.DataObject
) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        nodes = {name: Node(folder, name, stack) for name in NAMES}
        for (source, peer), groups in sorted(routes.items()):
            nodes[source].send_to(nodes[peer], groups)
        order = sorted(routes)
        for number, writer in enumerate(writers):
            nodes[writer].write(number * 10)
            for source, peer in data.draw(st.lists(st.sampled_from(order), max_size=3)):
                nodes[source].ship(nodes[peer])
        for _ in range(len(NAMES) + 2):
            if not [route for route in data.draw(st.permutations(order)) if nodes[route[0]].ship(nodes[route[1]])]:
                break
        for name, node in nodes.items():
            expected = {}
            for group in GROUPS:
                origins = {name}
                for _ in NAMES:
                    origins |= {
                        source for (source, peer), taken in routes.items() if group in taken and peer in origins
                    }
                frames = Counter(writer for writer in writers if writer in origins)
                expected |= {(origin, group): ((0, count),) for origin, count in frames.items()}
            have = node.site.ledger.landing.coverage(SPEC.uuid)
            assert {(s.wal.cluster.name, s.group): r.spans for s, r in have.items()} == expected
            by_route: Counter[tuple[object, ...]] = Counter()
            for row in node.site.ledger.files.all():
                if row.kind is FileKind.LANDING and row.source is not None:
                    frames = registered(row)[1]
                    by_route.update((row.source.cluster, f.header.stream, f.header.sequence) for f in frames)
            assert not by_route or max(by_route.values()) == 1
