"""Several receivers of one cluster, on hosts with one ledger: what two take at once counts once; they come and go."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from replication.core.frame import encode_envelope, scan
from replication.core.ids import ClusterId, FileId
from replication.ledger.base import FileKind
from replication.link.base import Ack, Data, Hello, Route, ShipSession
from replication.link.grpc_client import connect
from tests.graphs import Graph, Node
from tests.sites import Site, Wal, rows, table
from tests.waiting import wait_until

FRAMES = 20
HEADER = 256


class Sender:
    """A cluster's end of one stream to one receiver, with the bytes of one of its files."""

    def __init__(self, site: Site, to: Site, port: int, route: Route, file: FileId, content: bytes) -> None:
        self._link = connect(f"127.0.0.1:{port}", to.cluster.name, site.cluster, timeout_s=20.0)
        hello = Hello(site.cluster, to.cluster, 1, "test", (route,), ((file, 1),))
        self._session: ShipSession = self._link.ship(hello)
        self._file, self._content = file, content
        self.ends = [frame.end for frame in scan(content, HEADER)]

    def send(self, number: int) -> None:
        """One frame, until it is acked."""
        begin = self.ends[number - 1] if number else HEADER
        end = self.ends[number]
        self._session.send(Data(self._file, begin, end, HEADER, 1, self._content[begin:end]))
        assert self._session.receive(20) == Ack(self._file, ((begin, end),))

    def close(self) -> None:
        self._session.close()
        self._link.close()


def passed_on(wal: Wal, through: Sequence[ClusterId]) -> bytes:
    """The file of a cluster to which all frames of a WAL came ``through`` these."""
    content = Path(wal.path).read_bytes()[: wal.length]
    made = content[:HEADER]
    for frame in scan(content, HEADER):
        sealed = content[frame.sealed_begin : frame.end]
        made += encode_envelope(tuple(through), len(sealed)) + sealed
    return made


def at_once(senders: Sequence[Sender]) -> None:
    """Every sender sends each frame at the moment the others send it."""
    barrier = threading.Barrier(len(senders))
    failed: list[BaseException] = []

    def run(sender: Sender) -> None:
        try:
            for number in range(FRAMES):
                barrier.wait(120)
                sender.send(number)
        except BaseException as error:
            failed.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(sender,)) for sender in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.mark.parametrize("routes", ["two routes", "one route"])
def test_a_frame_that_arrives_at_two_receivers_at_the_same_moment_counts_once(
    stack: ExitStack, tmp_path: Path, routes: str
) -> None:
    """By two routes from relays b and c, or the same bytes of one file by two streams of a."""
    a, b, c, d = (Node(tmp_path, name) for name in "abcd")
    for node in (a, b, c, d):
        stack.callback(node.close)
    spec = table()
    a.ledger.tables.create(spec)
    wal = a.wal()
    for n in range(FRAMES):
        wal.append(spec, rows(n * 10, 10))
    route = Route(spec, "default", spec.name, 1, {}, tuple(spec.versions.values()))
    first = stack.enter_context(d.running())
    second = stack.enter_context(stack.enter_context(d.host("h1")).receiver())
    senders = []
    for sender, receiver in ((b, first), (c, second)) if routes == "two routes" else ((a, first), (a, second)):
        file = wal.file if sender is a else FileId(sender.cluster, "h0", 7)
        through = (a.cluster,) if sender is a else (a.cluster, sender.cluster)
        senders.append(Sender(sender, d, receiver.port, route, file, passed_on(wal, through)))
        stack.callback(senders[-1].close)
    at_once(senders)
    landed = [row for row in d.ledger.files.all() if row.kind is FileKind.LANDING]
    assert {row.host for row in landed} == {"h0", "h1"}, "both receivers landed it"
    assert len(d.landed(spec)) == 2 * FRAMES
    (covered,) = d.ledger.landing.coverage(spec.uuid).values()
    assert covered.spans == ((0, FRAMES),)
    wait_until(lambda: len(d.changes(spec)) >= FRAMES * 10 and not d.ledger.replay.pending(), what="all is applied")
    assert Counter((row["_seq"], row["_row"]) for row in d.changes(spec)) == Counter(
        {(n, r): 1 for n in range(FRAMES) for r in range(10)}
    )
    (stream,) = d.ledger.landing.coverage(spec.uuid)
    again = [len(d.ledger.landing.repeats(stream, n)) for n in range(FRAMES)]
    assert again == [1] * FRAMES, "every frame counts in one of the two files only"


def test_receivers_come_and_go_and_data_flows_on(stack: ExitStack, tmp_path: Path) -> None:
    """A relay's receivers on two more hosts: one joins, one goes, it comes back at another port, the other goes."""
    spec = table()
    graph = Graph(tmp_path, stack, "a>b b>c", spec)
    graph.define()
    graph.start()
    a, b, c = (graph[name] for name in "abc")
    hosts = [stack.enter_context(b.host(slot)) for slot in ("h1", "h2")]
    for host in hosts:
        stack.enter_context(host.worker())
        host.assign_receivers(c.cluster, c.port)
    written: dict[int, str] = {}

    def flows(*ports: int) -> None:
        """Rows go on arriving at c, before and after a's worker has heard of these receivers."""
        for _ in range(2):
            written[len(written)] = f"row {len(written)}"
            position = a.write(spec, {max(written): written[max(written)]})
            a.assign_receivers(b.cluster, *ports)
            a.wait(position, c)
        assert c.rows(spec) == written

    with ExitStack() as first, ExitStack() as second:
        one = first.enter_context(hosts[0].receiver()).port
        flows(one)
        two = second.enter_context(hosts[1].receiver()).port
        flows(one, two)
        first.close()
        flows(one, two)
        flows(two)
        again = first.enter_context(hosts[0].receiver()).port
        flows(again, two)
        second.close()
        flows(again, two)
    flows(again, two, b.port)
    landed = {row.host for row in b.ledger.files.all() if row.kind is FileKind.LANDING}
    assert landed == {"h0", "h1", "h2"}, "each has taken some"
    for node in graph.nodes.values():
        versions = graph.versions(spec)[node.name]
        assert node.rows(spec) == written and len(versions) == len(set(versions)) == len(written)
