"""What the client of the link sends, and the errors it makes of what comes back, without a socket."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
import grpc_testing
import pytest

from replication.core.coverage import Ranges
from replication.core.status import reported
from replication.errors import PeerRefusedError, PeerUnavailableError, RequestError
from replication.link import ranges, refusals, wire
from replication.link._pb import walship_pb2 as pb
from replication.link.base import PROTOCOL, Ack, FileStatus, OpenReply, Reason, Refusal
from replication.link.grpc_client import GrpcLink, connect
from replication.link.statuses import encode_progress
from tests.contract.link_service import EAST, FILE, HELLO, ROUTE, WEST, Service, data

LINK = pb.DESCRIPTOR.services_by_name["Link"]
WRONG = Refusal(Reason.WRONG_CLUSTER, "this is north", "look at the map")
OPENED = OpenReply(WEST, "1.0", {FILE: FileStatus(reported(Ranges.of((256, 300))))})


class Peer:
    """The other end of a link: takes one call after another and ends them as a test says."""

    def __init__(self) -> None:
        self.channel = grpc_testing.channel([LINK], grpc_testing.strict_real_time())
        self.link = GrpcLink(self.channel, "peer:7000", EAST, 5.0)
        self._caller = ThreadPoolExecutor(1)

    def asked(self, ask: Callable[[], Any]) -> Future[Any]:
        """Begin a call."""
        return self._caller.submit(ask)

    def unary(self, method: str, answer: bytes | None, code: grpc.StatusCode, details: str = "") -> bytes:
        """End a unary call; what was asked."""
        _, request, rpc = self.channel.take_unary_unary(LINK.methods_by_name[method])
        rpc.terminate(answer, (), code, details)
        return bytes(request)

    def stream(self, method: str) -> Any:
        """A call of messages both ways."""
        return self.channel.take_stream_stream(LINK.methods_by_name[method])[1]

    def close(self) -> None:
        self._caller.shutdown()


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.close()


OK = grpc.StatusCode.OK


def test_a_call_is_sent_as_the_protocol_says_and_its_answer_read(peer: Peer) -> None:
    service = Service()
    described = peer.asked(peer.link.describe)
    assert peer.unary("Describe", wire.encode_description(service.describe()), OK) == b""
    assert described.result(10) == service.describe()
    progress = peer.asked(lambda: peer.link.progress([FILE]))
    there = {FILE: FileStatus(reported(Ranges.of((256, 300)), 280))}
    asked = peer.unary("Progress", encode_progress(there), OK)
    assert list(pb.ProgressRequest.FromString(asked).files) == [str(FILE)] and progress.result(10) == there


def test_a_fork_of_a_process_that_has_called_is_refused_before_grpc_aborts_it() -> None:
    connect("127.0.0.1:1", "west", EAST).close()
    if not (pid := os.fork()):
        try:
            connect("127.0.0.1:1", "west", EAST)
        except RequestError as error:
            os._exit(7 if str(os.getppid()) in error.what and "spawn" in error.hint else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_a_route_is_opened_or_refused(peer: Peer) -> None:
    opened = peer.asked(lambda: peer.link.open_route(EAST, WEST, ROUTE))
    asked = pb.OpenRouteRequest.FromString(peer.unary("OpenRoute", b"", OK))
    assert opened.result(10) is None
    assert (asked.source, asked.expected, wire.decode_route(*asked.routes)) == (str(EAST), str(WEST), ROUTE)
    refused = peer.asked(lambda: peer.link.open_route(EAST, WEST, ROUTE))
    peer.unary("OpenRoute", pb.RouteReply(refusal=refusals.encode_refusal(WRONG)).SerializeToString(), OK)
    with pytest.raises(PeerRefusedError, match="this is north") as caught:
        refused.result(10)
    assert (caught.value.reason, caught.value.hint) == ("WRONG_CLUSTER", "look at the map")


@pytest.mark.parametrize(
    ("code", "details", "error", "says"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, "", PeerRefusedError, "not a walship receiver of this version"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "too many", PeerRefusedError, "is at a limit: too many"),
        (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "CLIENT: Sent message larger than max (67174405 vs. 67174400)",
            PeerRefusedError,
            r"larger than max .*message_bytes_max here and \[receiver\] message_bytes_max there higher",
        ),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", PeerUnavailableError, "did not answer in time"),
        (grpc.StatusCode.ABORTED, "its ledger failed\nlook at it", PeerUnavailableError, "its ledger failed"),
        (grpc.StatusCode.ABORTED, "a\0b\x1b[2J\nh\0", PeerUnavailableError, r"^a b \[2J. h $"),
        (grpc.StatusCode.PERMISSION_DENIED, "NOT_READY\nbad \0\nh\x07", PeerRefusedError, "^bad  . h $"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "\x9b" + "x" * 9999, PeerRefusedError, r"limit:  x{3999}\."),
        (grpc.StatusCode.UNAVAILABLE, "refused", PeerUnavailableError, r"cannot be reached \(unavailable: refused\)"),
        (grpc.StatusCode.UNKNOWN, "x" * 999, PeerUnavailableError, r"cannot be reached \(unknown: x{200}\)"),
    ],
)
def test_each_status_is_an_error_that_says_whether_to_try_again(
    peer: Peer, code: grpc.StatusCode, details: str, error: type[Exception], says: str
) -> None:
    asked = peer.asked(peer.link.describe)
    peer.unary("Describe", None, code, details)
    with pytest.raises(error, match=says):
        asked.result(10)


def test_the_hint_of_the_other_end_comes_with_the_error(peer: Peer) -> None:
    asked = peer.asked(peer.link.describe)
    peer.unary("Describe", None, grpc.StatusCode.ABORTED, "its ledger failed\nLook at its disk")
    with pytest.raises(PeerUnavailableError) as caught:
        asked.result(10)
    assert (caught.value.what, caught.value.hint) == ("its ledger failed", "Look at its disk")


def test_a_stream_sends_hello_first_then_data_and_reads_replies(peer: Peer) -> None:
    opening = peer.asked(lambda: peer.link.ship(HELLO))
    rpc = peer.stream("Ship")
    assert wire.decode_request(rpc.take_request()) == HELLO
    rpc.send_response(wire.encode_reply(OPENED))
    session = opening.result(10)
    assert session.opened == OPENED
    session.send(data(300, 400, b"frames"))
    assert wire.decode_request(rpc.take_request()) == data(300, 400, b"frames")
    rpc.send_response(wire.encode_reply(Ack(FILE, ((300, 400),))))
    assert session.receive(10) == Ack(FILE, ((300, 400),))
    rpc.terminate((), OK, "")
    with pytest.raises(PeerUnavailableError, match="ended the stream"):
        session.receive(10)
    with pytest.raises(PeerUnavailableError, match="ended the stream"):
        session.send(data(400, 500))
    session.close()


def test_a_refused_stream_is_an_error_with_its_reason(peer: Peer) -> None:
    opening = peer.asked(lambda: peer.link.ship(HELLO))
    rpc = peer.stream("Ship")
    rpc.send_response(wire.encode_reply(WRONG))
    with pytest.raises(PeerRefusedError) as caught:
        opening.result(10)
    assert caught.value.reason == "WRONG_CLUSTER"


def test_a_reply_that_cannot_be_read_asks_for_an_upgrade(peer: Peer) -> None:
    opening = peer.asked(lambda: peer.link.ship(HELLO))
    rpc = peer.stream("Ship")
    rpc.send_response(wire.encode_reply(OPENED))
    session = opening.result(10)
    rpc.send_response(b"\xff\xff")
    with pytest.raises(PeerRefusedError) as caught:
        session.receive(10)
    assert caught.value.reason == "VERSION" and "Upgrade" in caught.value.hint
    session.close()


def test_a_stream_that_breaks_is_an_error_that_may_be_retried(peer: Peer) -> None:
    opening = peer.asked(lambda: peer.link.ship(HELLO))
    rpc = peer.stream("Ship")
    rpc.send_response(wire.encode_reply(OPENED))
    session = opening.result(10)
    rpc.terminate((), grpc.StatusCode.UNAVAILABLE, "connection reset")
    with pytest.raises(PeerUnavailableError, match="connection reset") as caught:
        session.receive(10)
    assert caught.value.retryable
    session.close()


def test_a_comparison_names_its_protocol_and_both_clusters(peer: Peer) -> None:
    opening = peer.asked(lambda: peer.link.compare(EAST, WEST))
    rpc = peer.stream("Compare")
    asked = pb.CompareRequest.FromString(rpc.take_request()).open
    assert (asked.protocol, asked.source, asked.expected) == (PROTOCOL, str(EAST), str(WEST))
    rpc.send_response(pb.CompareReply().SerializeToString())
    conversation = opening.result(10)
    conversation.ask(b"question")
    assert pb.CompareRequest.FromString(rpc.take_request()).question == b"question"
    rpc.send_response(pb.CompareReply(answer=b"answer").SerializeToString())
    assert conversation.answer() == b"answer"
    rpc.send_response(pb.CompareReply(refusal=refusals.encode_refusal(WRONG)).SerializeToString())
    with pytest.raises(PeerRefusedError, match="this is north"):
        conversation.answer()
    conversation.close()
    with pytest.raises(PeerUnavailableError, match="has ended"):
        conversation.ask(b"more")


def test_a_read_asks_for_its_ranges_and_gives_them_whole(peer: Peer) -> None:
    spans = [(256, 300), (400, 405)]
    reading = peer.asked(lambda: list(peer.link.read(WEST, FILE, spans)))
    _, request, rpc = peer.channel.take_unary_stream(LINK.methods_by_name["Read"])
    assert ranges.decode_ask(request) == ranges.ReadAsk(WEST, FILE, tuple(spans))
    for piece in ranges.encode_pieces(lambda: iter([b"a" * 44, b"b" * 5])):
        rpc.send_response(piece)
    rpc.terminate((), OK, "")
    assert reading.result(10) == [b"a" * 44, b"b" * 5]


def test_a_read_that_finds_all_calls_taken_is_asked_again(peer: Peer) -> None:
    """Else a host whose receiver has more callers than places, as of a Spark application, would count as away."""
    reading = peer.asked(lambda: list(peer.link.read(WEST, FILE, [(256, 300)])))
    rpc = peer.channel.take_unary_stream(LINK.methods_by_name["Read"])[2]
    rpc.terminate((), grpc.StatusCode.RESOURCE_EXHAUSTED, "the receiver has as many calls of west as it takes")
    with pytest.raises(TimeoutError):  # it goes on
        reading.result(0.2)
    rpc = peer.channel.take_unary_stream(LINK.methods_by_name["Read"])[2]
    for piece in ranges.encode_pieces(lambda: [b"a" * 44]):
        rpc.send_response(piece)
    rpc.terminate((), OK, "")
    assert reading.result(10) == [b"a" * 44]
    headers = peer.asked(lambda: list(peer.link.read_heads(WEST, FILE, 256, 300)))
    rpc = peer.channel.take_unary_stream(LINK.methods_by_name["Read"])[2]
    rpc.terminate((), grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
    with pytest.raises(PeerRefusedError, match="is at a limit"):
        headers.result(10)
