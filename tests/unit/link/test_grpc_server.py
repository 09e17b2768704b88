"""What the servicer of the link answers, call by call, without a socket."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import grpc
import grpc_testing
import pytest

from replication.core.grants import Caller
from replication.errors import CoordinationError
from replication.link import refusals, wire
from replication.link._pb import walship_pb2 as pb
from replication.link.base import PROTOCOL, Ack, Hello, OpenReply, Reason, Refusal
from replication.link.grpc_servicer import LinkServicer
from replication.link.places import Places
from replication.link.statuses import decode_progress
from tests.contract.link_service import EAST, FILE, HELLO, ROUTE, SPEC, THERE, WEST, Service, data

LINK = pb.DESCRIPTOR.services_by_name["Link"]
CALLER = Caller(EAST, frozenset({"east"}))


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def server(service: Service) -> grpc_testing.Server:
    servicer = LinkServicer(service, lambda _: CALLER, Places(1, 2))
    return grpc_testing.server_from_dictionary({LINK: servicer}, grpc_testing.strict_real_time())


def call(server: grpc_testing.Server, method: str, request: bytes) -> tuple[bytes, grpc.StatusCode, str]:
    """Answer, code and details of a unary call."""
    rpc = server.invoke_unary_unary(LINK.methods_by_name[method], (), request, None)
    response, _, code, details = rpc.termination()
    return response, code, details


def stream(server: grpc_testing.Server, method: str, *requests: bytes) -> Any:
    """A call whose first messages are ``requests``; more may follow."""
    rpc = server.invoke_stream_stream(LINK.methods_by_name[method], (), None)
    for request in requests:
        rpc.send_request(request)
    return rpc


def compare_open(protocol: int = PROTOCOL, expected: str = str(WEST)) -> bytes:
    opening = pb.CompareOpen(protocol=protocol, source=str(EAST), expected=expected, version="0.9")
    return bytes(pb.CompareRequest(open=opening).SerializeToString())


def open_route() -> bytes:
    asked = pb.OpenRouteRequest(source=str(EAST), expected=str(WEST), routes=[wire.encode_route(ROUTE)])
    return bytes(asked.SerializeToString())


def refusal_of_route(raw: bytes) -> Refusal:
    return refusals.decode_refusal(pb.RouteReply.FromString(raw).refusal)


def test_every_call_of_the_service_is_answered() -> None:
    servicer = LinkServicer(Service(), lambda _: CALLER, Places(1, 1))
    assert all(callable(getattr(servicer, name)) for name in LINK.methods_by_name)


def test_single_calls_answer_what_the_service_says(server: grpc_testing.Server, service: Service) -> None:
    files = pb.ProgressRequest(files=[str(FILE)]).SerializeToString()
    assert wire.decode_description(call(server, "Describe", b"")[0]) == service.describe()
    assert decode_progress(call(server, "Progress", files)[0]) == {FILE: THERE}


def test_a_route_opens_without_a_refusal_and_the_service_learns_who_called(
    server: grpc_testing.Server, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers = []
    opened = service.open_route
    monkeypatch.setattr(service, "open_route", lambda *asked: (callers.append(asked[3]), opened(*asked)))
    answer, code, _ = call(server, "OpenRoute", open_route())
    assert code is grpc.StatusCode.OK and not pb.RouteReply.FromString(answer).HasField("refusal")
    assert (service.routes, callers) == ([ROUTE], [CALLER])


def test_a_refused_route_is_an_answer_with_reason_what_and_remedy(
    server: grpc_testing.Server, service: Service
) -> None:
    service.refuse_open = Refusal(Reason.WRONG_CLUSTER, "this is north", "look at the map")
    answer, code, _ = call(server, "OpenRoute", open_route())
    assert code is grpc.StatusCode.OK and refusal_of_route(answer) == service.refuse_open


def test_a_failure_here_reaches_the_caller_with_its_hint(
    server: grpc_testing.Server, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> NoReturn:
        raise CoordinationError("the ledger at /west failed", "Look at its disk")

    for name in ("describe", "open_route"):
        monkeypatch.setattr(service, name, failing)
    _, code, details = call(server, "Describe", b"")
    assert (code, details) == (
        grpc.StatusCode.ABORTED,
        "the receiver answers: the ledger at /west failed\nLook at its disk",
    )
    refusal = refusal_of_route(call(server, "OpenRoute", open_route())[0])
    assert (refusal.reason, refusal.what, refusal.remedy) == (
        Reason.NOT_READY,
        "the receiver answers: the ledger at /west failed",
        "Look at its disk",
    )


def test_an_error_that_nobody_foresaw_is_an_answer_and_not_shown_to_the_caller(
    server: grpc_testing.Server, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> NoReturn:
        raise ZeroDivisionError("a secret of this host")

    for name in ("describe", "open_route"):
        monkeypatch.setattr(service, name, failing)
    _, code, details = call(server, "Describe", b"")
    told = ("ZeroDivisionError in the receiver", "Its log has the error")
    assert (code, details) == (grpc.StatusCode.ABORTED, "\n".join(told))
    refusal = refusal_of_route(call(server, "OpenRoute", open_route())[0])
    assert (refusal.reason, refusal.what, refusal.remedy) == (Reason.NOT_READY, *told)
    rpc = stream(server, "Ship", wire.encode_request(HELLO))
    rpc.take_response()
    monkeypatch.setattr("replication.link.grpc_servicer.wire.decode_request", failing)
    rpc.send_request(wire.encode_request(data(300, 400, b"frames")))
    refusal = wire.decode_reply(rpc.take_response())
    assert isinstance(refusal, Refusal) and (refusal.reason, refusal.what, refusal.remedy) == (Reason.NOT_READY, *told)
    rpc.termination()


def test_a_stream_opens_acks_and_ends_with_the_caller(server: grpc_testing.Server, service: Service) -> None:
    rpc = stream(server, "Ship", wire.encode_request(HELLO))
    opened = wire.decode_reply(rpc.take_response())
    assert isinstance(opened, OpenReply) and opened.refused[SPEC.uuid, "default"].reason is Reason.TABLE_CONFLICT
    rpc.send_request(wire.encode_request(data(300, 400, b"frames")))
    assert wire.decode_reply(rpc.take_response()) == Ack(FILE, ((300, 400),))
    assert service.messages == [data(300, 400, b"frames")]
    rpc.requests_closed()
    rpc.termination()
    assert service.closed.wait(10)


@pytest.mark.parametrize(
    ("first", "what"),
    [
        (wire.encode_request(data(1, 2)), "begins with Open"),
        (b"\xff\xff", "unknown field"),
        (wire.encode_request(HELLO) + 64 * b"\x0a\x00", "more than 64 fields"),
    ],
)
def test_a_stream_that_does_not_begin_with_open_is_refused_as_another_version(
    server: grpc_testing.Server, service: Service, first: bytes, what: str
) -> None:
    rpc = stream(server, "Ship", first)
    refusal = wire.decode_reply(rpc.take_response())
    assert isinstance(refusal, Refusal) and refusal.reason is Reason.VERSION and what in refusal.what
    assert rpc.termination()[1] is grpc.StatusCode.OK and not service.opened


def test_a_nonce_is_read_as_text_that_every_ledger_takes() -> None:
    """PostgreSQL takes no NUL: who sent one got an error that no check foresaw, and who received one did."""
    opening = wire.decode_request(wire.encode_request(replace(HELLO, term_history=((1, "n\0"),))))
    assert isinstance(opening, Hello) and opening.term_history == ((1, r"n\0"),)


def test_a_message_that_cannot_be_read_ends_the_stream_as_corrupt(server: grpc_testing.Server) -> None:
    rpc = stream(server, "Ship", wire.encode_request(HELLO))
    rpc.take_response()
    rpc.send_request(b"\xff\xff")
    refusal = wire.decode_reply(rpc.take_response())
    assert isinstance(refusal, Refusal) and refusal.reason is Reason.CORRUPT
    rpc.termination()


def test_one_stream_too_many_is_refused_and_has_room_when_another_ended(
    server: grpc_testing.Server, service: Service
) -> None:
    hello = wire.encode_request(HELLO)
    first = stream(server, "Ship", hello)
    first.take_response()
    refusal = wire.decode_reply(stream(server, "Ship", hello).take_response())
    assert isinstance(refusal, Refusal) and refusal.reason is Reason.NOT_READY and "1 streams open" in refusal.what
    first.requests_closed()
    first.termination()
    assert service.closed.wait(10)


@pytest.mark.parametrize("protocol", [0, PROTOCOL - 1, PROTOCOL + 1])
def test_a_comparison_under_another_protocol_is_refused(server: grpc_testing.Server, protocol: int) -> None:
    rpc = stream(server, "Compare", compare_open(protocol))
    refusal = refusals.decode_refusal(pb.CompareReply.FromString(rpc.take_response()).refusal)
    assert (refusal.reason, refusal.what) == (
        Reason.VERSION,
        f"walship 0.9 speaks protocol {protocol}, not {PROTOCOL}",
    )


def test_a_comparison_with_an_id_that_is_none_is_refused(server: grpc_testing.Server, service: Service) -> None:
    rpc = stream(server, "Compare", compare_open(expected="nonsense"))
    assert pb.CompareReply.FromString(rpc.take_response()).HasField("refusal") and service.echo is None


def test_a_comparison_answers_until_the_service_ends_it_and_says_why(
    server: grpc_testing.Server, service: Service
) -> None:
    rpc = stream(server, "Compare", compare_open(), pb.CompareRequest(question=b"one").SerializeToString())
    assert not pb.CompareReply.FromString(rpc.take_response()).HasField("refusal")
    assert pb.CompareReply.FromString(rpc.take_response()).answer == b"one"
    assert service.echo is not None and service.echo.began == (EAST, WEST)
    service.echo.close()
    _, code, details = rpc.termination()
    assert (code, details.partition("\n")[0]) == (grpc.StatusCode.ABORTED, "the conversation has ended")


def test_who_called_is_told_to_each_call_that_is_for_some_callers_only(
    server: grpc_testing.Server, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers = []

    def refuses(*asked: object) -> NoReturn:
        callers.append(asked[-1])
        raise Refusal(Reason.WRONG_CLUSTER, "not you", "").error()

    for name in ("ship", "compare", "open_route"):
        monkeypatch.setattr(service, name, refuses)
    calls: list[Callable[[], object]] = [
        lambda: stream(server, "Ship", wire.encode_request(HELLO)).take_response(),
        lambda: stream(server, "Compare", compare_open()).take_response(),
        lambda: call(server, "OpenRoute", open_route()),
    ]
    for one in calls:
        one()
    assert callers == [CALLER] * 3
