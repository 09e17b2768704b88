"""A sender with a WAL and a receiver to send it to, over real sockets, with SQLite ledgers and real files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from peer.receive.landing_queue import Item, LandingQueue
from peer.receive.receiver import Receiver
from replication.core.definition.schema import TableSpec
from replication.core.frame import scan
from replication.core.ids import FileId
from replication.link.base import Ack, Data, Hello, PeerLink, Refusal, Reply, Route, ShipSession
from replication.link.grpc_client import connect
from replication.link.tls import LinkTls
from tests.certificates import tls_section
from tests.frames_on_disk import registered
from tests.hostile import of_other_users
from tests.integration.test_link_tls import AUTHORITY
from tests.sites import Site, rows, table


def gather(patch: pytest.MonkeyPatch) -> None:
    """Have messages wait for 0.3 s before they land, so that several land together."""
    take = LandingQueue.take

    def taken(queue: LandingQueue, idle_s: float = 1.0) -> list[Item] | None:
        time.sleep(0.3)
        return take(queue, 0.0)

    patch.setattr(LandingQueue, "take", taken)


class Pair:
    """East, or another cluster by ``name``, with a WAL of three frames of one table, and a link to west's receiver.

    ``of`` is a pair whose west it shares.
    """

    def __init__(self, folder: Path, name: str = "east", of: Pair | None = None, **west: dict[str, object]) -> None:
        self.east: Site = Site(folder, name)
        self.west: Site = of.west if of else Site(folder, "west", **west)
        self._owns_west = of is None
        self.spec = table("ops.flights" if of is None else f"ops.{name}")
        self.east.ledger.tables.create(self.spec)
        self.wal = self.east.wal()
        self.ends = [self.wal.append(self.spec, rows(n * 10, 10)) for n in range(3)]
        self.content = Path(self.wal.path).read_bytes()
        self.links: list[PeerLink] = []
        self.tls: LinkTls | None = None

    @classmethod
    def secured(cls, folder: Path, issue: Callable[[str], LinkTls]) -> Pair:
        """Both have certificates that ``issue`` makes for a name, and east is defined at west."""
        made = cls(folder, tls=tls_section(folder, issue("west")))
        made.tls = issue("east")
        made.west.send_to_cluster(made.east.cluster)
        return made

    def close(self) -> None:
        for link in self.links:
            link.close()
        self.east.close()
        if self._owns_west:
            self.west.close()

    def route(self, generation: int = 1, spec: TableSpec | None = None) -> Route:
        spec = spec or self.spec
        return Route(spec, "default", spec.name, generation, {}, tuple(spec.versions.values()))

    def hello(self, *routes: Route, files: tuple[FileId, ...] = ()) -> Hello:
        return Hello(
            self.east.cluster,
            self.west.cluster,
            1,
            "test",
            routes or (self.route(),),
            tuple((file, 1) for file in files),
        )

    def link(self, receiver: Receiver) -> PeerLink:
        self.links.append(
            connect(f"127.0.0.1:{receiver.port}", "west", self.east.cluster, tls=self.tls, timeout_s=20.0)
        )
        return self.links[-1]

    def ship(self, receiver: Receiver, hello: Hello | None = None) -> ShipSession:
        return self.link(receiver).ship(hello or self.hello())

    def data(self, begin: int, end: int, term: int = 1) -> Data:
        return Data(self.wal.file, begin, end, 256, term, self.content[begin:end])

    @property
    def landed(self) -> list[bytes]:
        """Sealed bytes of every registered frame in west's landing files, in order."""
        found: list[bytes] = []
        for row in self.west.ledger.files.all():
            content, frames = registered(row)
            found += [content[frame.sealed_begin : frame.end] for frame in frames]
        return found

    @property
    def sealed(self) -> list[bytes]:
        return [self.content[frame.sealed_begin : frame.end] for frame in scan(self.content, 256)]


def answer(session: ShipSession, message: Data) -> Reply:
    session.send(message)
    reply = session.receive(20)
    assert reply is not None
    return reply


def refused(session: ShipSession, message: Data) -> Refusal:
    reply = answer(session, message)
    assert isinstance(reply, Refusal) and reply.remedy, reply
    return reply


def serves(pair: Pair, receiver: Receiver) -> None:
    """Assert that the receiver takes all that east sends."""
    assert isinstance(answer(pair.ship(receiver), pair.data(256, pair.ends[2])), Ack)
    assert set(pair.landed) == set(pair.sealed)


def secured_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """A fixture: east calls west with a certificate, and is a peer there, which grants it what a usual route needs."""
    of_other_users(monkeypatch)
    made = Pair.secured(tmp_path, AUTHORITY.issue)
    yield made
    made.close()
