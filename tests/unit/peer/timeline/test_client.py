"""The client of the timeline's server: it answers the same with the server away, and goes back to it by itself."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from peer.timeline.client import TimelineAddress, TimelineClient
from peer.timeline.listing import FolderListings
from peer.timeline.serving.server import TimelineServer
from peer.timeline.stores.memory import MemoryViews
from peer.timeline.views import Views
from replication.core.timeline.instants import Action, Changes, FileVersion
from replication.errors import RequestError
from replication.settings import TimelineSection, TlsSection
from replication.timeline.recorded import RecordedTimeline
from replication.timeline.stored import open_records

pytestmark = pytest.mark.heavy

OUT = "out"
SECTION = TimelineSection(service=True, timeout_s=20)


@dataclass
class Site:
    """A dataset in a folder, its timeline, its server, and a client with a clock of its own."""

    folder: Path
    now: float = 0.0
    section: TimelineSection = SECTION
    listings: FolderListings = field(default_factory=FolderListings)

    def __post_init__(self) -> None:
        self.url = f"file://{self.folder / 'timeline'}"
        self.timeline = RecordedTimeline(open_records(self.url))
        for name in ("a", "b"):
            self.write(f"p/{name}-0")
        self.publish("p/a-1", replaces="p/a-0")

    def write(self, path: str) -> None:
        file = self.folder / "out" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x")

    def publish(self, path: str, replaces: str = "") -> None:
        self.write(path)
        partition = path.rpartition("/")[0]
        changes = Changes((FileVersion(partition, path, 1),), replaces=((partition, replaces),) if replaces else ())
        self.timeline.record(Action.COPY, OUT, changes, root=(self.folder / "out").as_uri())

    @property
    def address(self) -> TimelineAddress:
        return TimelineAddress("east", self.url, self.section, TlsSection(), str(self.folder / "server"))

    @contextmanager
    def serving(self) -> Iterator[FolderListings]:
        listings = FolderListings()
        views = Views(RecordedTimeline(open_records(self.url)), MemoryViews(), listings)
        with TimelineServer("east", views, lambda name: None, self.section, TlsSection(), self.folder / "server"):
            yield listings
        views.close()

    def client(self) -> TimelineClient:
        return TimelineClient(self.address, self.listings, clock=lambda: self.now)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def paths(client: TimelineClient, partition: str = "p") -> list[str]:
    return [each.whole.path for each in client.latest(OUT, partition) if each.whole]


def test_many_clients_ask_one_server_which_lists_once(site: Site) -> None:  # 003-5, 003-9, 003-16
    with site.serving() as listings:
        clients = [site.client() for _ in range(5)]
        assert {tuple(paths(client)) for client in clients} == {("p/a-1", "p/b-0")}
        assert (listings.calls, site.listings.calls) == (1, 0)


def test_the_answers_are_the_same_with_the_server_and_without(site: Site) -> None:  # 003-8, 003-13
    first = site.timeline.state().instant
    site.publish("p/a-2", replaces="p/a-1")

    def answers(client: TimelineClient) -> list[object]:
        asked: list[Callable[[], object]] = [
            lambda: client.latest(OUT, "p"),
            lambda: client.latest(OUT, "p", "p/a-2"),
            lambda: client.as_of(OUT, "p", first),
            lambda: client.latest(OUT, "none"),
            lambda: client.partitions(OUT),
        ]
        return [ask() for ask in asked]

    with site.serving():
        served = answers(site.client())
        assert site.listings.calls == 0
    away = site.client()
    assert answers(away) == served
    with site.serving():
        pass
    for wrong in (lambda c: c.latest("none", ""), lambda c: c.latest(OUT, "p/../..")):
        with site.serving(), pytest.raises(RequestError) as refused:
            wrong(site.client())
        with pytest.raises(RequestError) as here:
            wrong(site.client())
        assert str(refused.value) == str(here.value)


def test_a_client_goes_back_to_a_server_that_answers_again(site: Site) -> None:
    (site.folder / "server").write_text("127.0.0.1:1")  # nobody listens there
    client = site.client()
    assert paths(client) == ["p/a-1", "p/b-0"]
    assert client.is_away
    with site.serving() as listings:
        assert paths(client) == ["p/a-1", "p/b-0"]
        assert listings.calls == 0, "the pause is not over"
        site.now += 60
        assert paths(client) == ["p/a-1", "p/b-0"]
        assert (client.is_away, listings.calls) == (False, 1)
    site.publish("p/c-2")
    assert paths(client) == ["p/a-1", "p/b-0", "p/c-2"]
    assert site.listings.calls == 1, "its own view was listed once and is kept by instants"


def test_what_a_writer_has_recorded_is_in_every_later_answer(site: Site) -> None:  # 003-14
    with site.serving():
        client = site.client()
        paths(client)
        site.publish("p/c-2")
        client.knows(site.timeline.state())
        assert paths(client) == ["p/a-1", "p/b-0", "p/c-2"]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{tor",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnull",
        b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"slices": []}',
        b"no HTTP at all\r\n\r\n",
    ],
)
def test_a_server_that_fails_or_talks_nonsense_is_done_without(site: Site, answer: bytes) -> None:  # 003-8
    with answering(lambda connection: connection.sendall(answer)) as address:
        (site.folder / "server").write_text(address)
        client = site.client()
        assert paths(client) == ["p/a-1", "p/b-0"]
        assert client.is_away


def test_a_server_that_is_slow_is_done_without(site: Site) -> None:
    stop = threading.Event()

    def trickle(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not stop.wait(0.02):
            connection.sendall(b" ")

    site.section = TimelineSection(service=True, timeout_s=0.3)
    try:
        with answering(trickle) as address:
            (site.folder / "server").write_text(address)
            client = site.client()
            assert paths(client) == ["p/a-1", "p/b-0"], "though each byte comes in time"
            assert client.is_away
            stop.set()
    finally:
        stop.set()


def test_the_service_has_a_switch(site: Site) -> None:  # 003-21
    with site.serving() as listings:
        site.section = TimelineSection(service=False)
        assert paths(site.client()) == ["p/a-1", "p/b-0"]
        assert (listings.calls, site.listings.calls) == (0, 1)


def test_a_client_goes_to_an_executor(site: Site) -> None:
    with site.serving() as listings:
        copy = pickle.loads(pickle.dumps(site.client()))
        assert paths(copy) == ["p/a-1", "p/b-0"]
        assert listings.calls == 1


def test_an_answer_of_several_pages_is_of_one_state(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.timeline.client._LIMIT", 2)
    for number in range(5):
        site.publish(f"q/{number}")
    with site.serving():
        client = site.client()
        assert paths(client, "q") == [f"q/{n}" for n in range(5)]
        assert not client.is_away


def test_pages_go_on_after_a_name_that_is_no_utf_8(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.timeline.client._LIMIT", 2)
    names = [f"q/\udce9{n}" for n in range(5)]
    for name in names:
        site.publish(name)
    with site.serving():
        assert paths(site.client(), "q") == names


def test_a_dataset_whose_name_is_no_utf_8_is_asked_for_with_the_server_as_without(site: Site) -> None:
    """A folder's name may be any bytes, and a copy that names no dataset is recorded by its target's address."""
    root = (site.folder / "out").as_uri()
    changes = Changes((FileVersion("p", "p/a-1", 1),))
    site.timeline.record(Action.COPY, "file:///caf\udce9", changes, root=root)
    with site.serving() as listings:
        client = site.client()
        assert client.partitions("file:///caf\udce9") == ["p"]
        assert [each.file for each in client.latest("file:///caf\udce9", "p")]
        assert paths(client) == ["p/a-1", "p/b-0"] and not client.is_away and listings.calls == 1


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that reads a request and answers with bytes; its address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.recv(1 << 16)
                    answer(connection)
                except OSError:
                    continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
