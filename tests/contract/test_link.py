"""What the link promises, in memory and over gRPC on real sockets."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NoReturn

import pytest

from replication.core.coverage import Ranges
from replication.core.ids import StreamId
from replication.core.routes.freshness import Reach
from replication.errors import (
    ConfigError,
    CoordinationError,
    CorruptFrameError,
    PeerRefusedError,
    PeerUnavailableError,
    TransferError,
)
from replication.link import ranges
from replication.link.base import Ack, PeerLink, Reason, Refusal, ShipSession
from replication.link.grpc_client import connect
from replication.link.grpc_server import LinkServer
from tests.contract.link_service import (
    EAST,
    FILE,
    HELLO,
    REACH,
    ROUTE,
    SPEC,
    THERE,
    VERSION,
    WEST,
    Service,
    content,
    data,
)
from tests.fakes.link import LinkFaults, MemoryLink
from tests.slow_route import slow_route
from tests.waiting import wait_until


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture(params=["memory", "grpc"])
def link(request: pytest.FixtureRequest, service: Service) -> Iterator[PeerLink]:
    if request.param == "memory":
        yield MemoryLink(service)
        return
    server = LinkServer(service, "127.0.0.1:0")
    server.start()
    made = connect(f"127.0.0.1:{server.port}", "west", EAST, timeout_s=10)
    yield made
    made.close()
    server.stop()


@pytest.fixture
def session(link: PeerLink) -> Iterator[ShipSession]:
    made = link.ship(HELLO)
    yield made
    made.close()


def test_answers_who_is_there_and_how_far_files_are_applied(link: PeerLink, service: Service) -> None:
    assert link.describe() == service.describe()
    assert link.progress([FILE]) == {FILE: THERE}


def test_a_peer_far_away_is_reached_at_the_first_attempt(service: Service) -> None:
    server = LinkServer(service, "127.0.0.1:0")
    server.start()
    with slow_route(server.port, 1e9, delay_s=0.3) as port:
        link = connect(f"127.0.0.1:{port}", "west", EAST, timeout_s=10)
        assert link.describe() == service.describe()
        session = link.ship(HELLO)
        session.close()
        link.close()
    server.stop()


def test_answers_what_was_lost_when_asked_and_when_a_stream_opens(link: PeerLink, session: ShipSession) -> None:
    assert link.progress([FILE]) == {FILE: THERE} == session.opened.lost
    assert link.progress([]) == {}


def test_answers_what_is_reached_of_streams(link: PeerLink) -> None:
    near, far = StreamId(FILE, SPEC.uuid, "default"), StreamId(FILE, SPEC.uuid, "late.rows-2")
    assert link.reached({near: 1 << 40, far: 0}) == {near: REACH, far: Reach(False, False, False)}


def test_routes_arrive_whole_with_one_call(link: PeerLink, service: Service) -> None:
    another = replace(ROUTE, remote_table="ops.another")
    link.open_route(EAST, WEST, ROUTE, another)
    assert service.routes == [ROUTE, another]


def test_a_refused_route_or_stream_names_reason_and_remedy(link: PeerLink, service: Service) -> None:
    service.refuse_open = Refusal(Reason.WRONG_CLUSTER, "this is north", "look at the map")
    for call in (lambda: link.open_route(EAST, WEST, ROUTE), lambda: link.ship(HELLO)):
        with pytest.raises(PeerRefusedError) as caught:
            call()
        assert (caught.value.reason, caught.value.what, caught.value.hint) == (
            "WRONG_CLUSTER",
            "this is north",
            "look at the map",
        )


def test_a_refusal_of_any_length_keeps_its_reason(service: Service) -> None:
    server = LinkServer(service, "127.0.0.1:0")
    server.start()
    link = connect(f"127.0.0.1:{server.port}", "west", EAST, timeout_s=10)
    tables = ", ".join(f"ops.tisch_für_{number}" for number in range(5000))
    service.refuse_call = Refusal(Reason.NOT_GRANTED, f"west grants only {tables}", "On west: walship grants add")
    with pytest.raises(PeerRefusedError, match="west grants only ops.tisch_für_0, ") as caught:
        link.describe()
    assert (caught.value.reason, caught.value.hint) == ("NOT_GRANTED", "On west: walship grants add")
    link.close()
    server.stop()


def test_a_stream_opens_with_resume_ranges_and_closed_routes(session: ShipSession, service: Service) -> None:
    assert service.opened == [HELLO]
    assert session.opened.cluster == WEST
    assert session.opened.files[FILE].status.shipped == Ranges.of((256, 300), (400, 500))
    assert session.opened.refused[SPEC.uuid, "default"].reason is Reason.TABLE_CONFLICT


@pytest.mark.parametrize("size", [0, 1, 127, 128, 70_000, 12 << 20])
def test_frames_arrive_as_they_were_and_are_acked(session: ShipSession, service: Service, size: int) -> None:
    frames = bytes(range(256)) * (size // 256 + 1)
    sent = data(1 << 33, (1 << 33) + size, frames[:size])
    session.send(sent)
    assert session.receive(20) == Ack(FILE, ((sent.begin, sent.end),))
    assert service.messages == [sent]


def test_many_messages_are_acked_in_order(session: ShipSession, service: Service) -> None:
    for n in range(200):
        session.send(data(n, n + 1, b"x" * 1000))
    replies = [session.receive(20) for _ in range(200)]
    assert replies == [Ack(FILE, ((n, n + 1),)) for n in range(200)]
    assert session.receive(0) is None


def test_waking_ends_a_wait_and_takes_no_reply_away(session: ShipSession) -> None:
    timer = threading.Timer(0.1, session.wake)
    timer.start()
    begin = time.monotonic()
    assert session.receive(20) is None and time.monotonic() - begin < 10
    timer.join()
    for _ in range(3):
        session.wake()
    for n in range(3):
        session.send(data(n, n + 1))
    replies: list[object] = []
    while len(replies) < 3:
        replies += filter(None, [session.receive(20)])
    assert replies == [Ack(FILE, ((n, n + 1),)) for n in range(3)]
    assert session.receive(0) is None


def test_a_refusal_of_one_message_does_not_end_the_stream(session: ShipSession, service: Service) -> None:
    hole = Refusal(Reason.HOLE, "missing", "go back", FILE, 300, 400, 0, SPEC.uuid)
    service.refuse = lambda message: hole if message.begin == 300 else None
    session.send(data(300, 400))
    session.send(data(400, 500))
    assert session.receive(20) == hole
    assert session.receive(20) == Ack(FILE, ((400, 500),))


@pytest.mark.parametrize("link", ["grpc"], indirect=True)
def test_a_message_that_ends_the_stream_is_answered_with_its_own_reason(session: ShipSession, service: Service) -> None:
    ended = Refusal(Reason.STALE_EPOCH, "north took over", "The sender opens a stream under its new epoch")

    def refuse(_: object) -> NoReturn:
        raise ended.error()

    service.refuse = refuse
    session.send(data(256, 300, content(256, 300)))
    assert session.receive(10) == ended


def test_schema_versions_come_before_the_frames_that_use_them(session: ShipSession, service: Service) -> None:
    session.send((VERSION,))
    session.send(data(1, 2))
    assert session.receive(20) is not None
    assert service.versions == [VERSION]


def test_the_receiver_learns_that_a_stream_ended(session: ShipSession, service: Service) -> None:
    session.close()
    assert service.closed.wait(120)


def test_nobody_there_is_an_error_that_may_be_retried() -> None:
    for link in (connect("127.0.0.1:9", "west", EAST, timeout_s=5), MemoryLink(Service(), LinkFaults(down=True))):
        with pytest.raises(PeerUnavailableError) as caught:
            link.ship(HELLO)
        assert caught.value.retryable
        link.close()


def test_a_server_that_stops_ends_the_stream(service: Service) -> None:
    server = LinkServer(service, "127.0.0.1:0")
    server.start()
    link = connect(f"127.0.0.1:{server.port}", "west", EAST)
    session = link.ship(HELLO)
    server.stop(0.0)

    def ended() -> bool:
        try:
            session.receive(0.1)
        except PeerUnavailableError:
            return True
        return False

    wait_until(ended)
    with pytest.raises(PeerUnavailableError):
        session.send(data(1, 2))
    session.close()
    link.close()


def test_two_servers_cannot_share_a_port(service: Service) -> None:
    server = LinkServer(service, "127.0.0.1:0")
    with pytest.raises(ConfigError, match="cannot listen"):
        LinkServer(service, f"127.0.0.1:{server.port}")
    server.stop()


def test_plain_text_stays_on_this_machine(service: Service) -> None:
    with pytest.raises(ConfigError, match="not loopback"):
        connect("192.0.2.1:7000", "west", EAST)
    with pytest.raises(ConfigError, match="not loopback"):
        LinkServer(service, "0.0.0.0:0")
    connect("192.0.2.1:7000", "west", EAST, allow_plaintext=True).close()


def test_the_memory_link_loses_repeats_and_reorders_by_its_faults(service: Service) -> None:
    link = MemoryLink(service, LinkFaults(seed=3, repeat=0.5, reorder=0.5))
    session = link.ship(HELLO)
    for n in range(50):
        session.send(data(n, n + 1))
    while session.receive(0):
        pass
    begins = [message.begin for message in service.messages]
    assert sorted(set(begins)) == list(range(50)) and begins != sorted(begins) and len(begins) > 50
    link.faults.lose = 1.0
    service.messages.clear()
    session.send(data(1, 2))
    assert not service.messages


def test_a_conversation_passes_questions_and_answers_on_and_both_ends_know_its_end(
    link: PeerLink, service: Service
) -> None:
    conversation = link.compare(EAST, WEST)
    large = bytes(range(256)) * 8192
    for question in (b"one", large):
        conversation.ask(question)
        assert [conversation.answer(), conversation.answer()] == [question, question]
    assert service.echo is not None and service.echo.began == (EAST, WEST)
    conversation.close()
    wait_until(service.echo.ended.is_set)
    with pytest.raises(PeerUnavailableError):
        conversation.answer()


def test_a_conversation_is_refused_at_its_beginning_or_later_with_the_reason(link: PeerLink, service: Service) -> None:
    conversation = link.compare(EAST, WEST)
    conversation.ask(b"stop")
    with pytest.raises(PeerRefusedError, match="asked to stop"):
        conversation.answer()
    conversation.close()
    service.refuse_open = Refusal(Reason.WRONG_CLUSTER, "this is south", "call another")
    with pytest.raises(PeerRefusedError, match="this is south") as caught:
        link.compare(EAST, WEST)
    assert caught.value.reason == "WRONG_CLUSTER"


def test_a_conversation_that_ends_there_gives_the_reason(link: PeerLink, service: Service) -> None:
    conversation = link.compare(EAST, WEST)
    assert service.echo is not None
    service.echo.close()
    with pytest.raises(PeerUnavailableError, match="the conversation has ended"):
        conversation.answer()
    conversation.close()


def test_ranges_of_a_file_come_whole_and_in_the_order_asked_for(link: PeerLink) -> None:
    spans = [(5000, 5000 + (3 << 20)), (256, 257), (1000, 2000), *((n, n + 3) for n in range(300, 10_300, 2))]
    assert list(link.read(WEST, FILE, spans)) == [content(*span) for span in spans]
    assert b"".join(link.read_heads(WEST, FILE, 256, 999)) == b"heads"


def test_more_ranges_than_one_call_may_bring_take_several(link: PeerLink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "READ_BYTES_MAX", 10_000)
    spans = [(n, n + 4000) for n in range(1000, 50_000, 4000)] + [(0, 30_000)]
    assert list(link.read(WEST, FILE, spans)) == [content(*span) for span in spans]


def test_a_read_that_is_damaged_cut_short_or_refused_is_an_error(link: PeerLink, service: Service) -> None:
    service.damage = True
    with pytest.raises(CorruptFrameError, match="damaged in transit"):
        list(link.read(WEST, FILE, [(256, 300)]))
    service.damage, service.cut = False, True
    with pytest.raises(PeerUnavailableError):
        list(link.read(WEST, FILE, [(256, 3 << 20)]))
    service.cut = False
    service.refuse_open = Refusal(Reason.WRONG_CLUSTER, "not you", "go away")
    with pytest.raises(PeerRefusedError, match=r"not you\. go away") as caught:
        list(link.read(WEST, FILE, [(256, 300)]))
    assert caught.value.reason == "WRONG_CLUSTER"
    service.refuse_open = None
    with pytest.raises(PeerRefusedError, match="at once"):
        list(link.read_heads(WEST, FILE, 300, 300))


def test_a_peer_that_makes_many_tables_is_given_the_time_for_it(service: Service) -> None:
    service.opens_after_s = 0.6
    server = LinkServer(service, "127.0.0.1:0")
    server.start()
    link = connect(f"127.0.0.1:{server.port}", "west", EAST, timeout_s=0.3)
    try:
        with pytest.raises(PeerUnavailableError, match=r"did not answer within 0\.35 s"):
            link.ship(HELLO)
        link.ship(replace(HELLO, routes=(ROUTE,) * 100)).close()
    finally:
        link.close()
        server.stop()


def test_streams_leave_room_for_other_calls_and_one_too_many_is_refused(service: Service) -> None:
    server = LinkServer(service, "127.0.0.1:0", streams_max=2)
    server.start()
    link = connect(f"127.0.0.1:{server.port}", "west", EAST, timeout_s=10)
    try:
        first, second = (link.ship(HELLO) for _ in range(2))
        assert link.describe() == service.describe()
        with pytest.raises(PeerRefusedError, match=r"2 streams open already.*\[receiver\] streams_max") as caught:
            link.ship(HELLO)
        assert caught.value.reason == "NOT_READY"
        assert link.progress([FILE]) == {FILE: THERE}
        first.close()

        def opened() -> ShipSession | None:
            with contextlib.suppress(PeerRefusedError):
                return link.ship(HELLO)
            return None

        wait_until(opened, what="room for another stream").close()
        second.close()
    finally:
        link.close()
        server.stop()


def test_a_receiver_whose_ledger_fails_answers_with_its_error_whatever_is_asked(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> NoReturn:
        raise CoordinationError("the ledger at /west failed: disk I/O error", "Look at its disk")

    for name in ("ship", "open_route", "compare", "progress"):
        monkeypatch.setattr(service, name, failing)
    server = LinkServer(service, "127.0.0.1:0")
    server.start()
    link = connect(f"127.0.0.1:{server.port}", "west", EAST, timeout_s=10)
    calls: list[Callable[[], object]] = [
        lambda: link.ship(HELLO),
        lambda: link.open_route(EAST, WEST, ROUTE),
        lambda: link.compare(EAST, WEST),
        lambda: link.progress([FILE]),
    ]
    try:
        for call in calls:
            with pytest.raises(TransferError) as caught:
                call()
            assert caught.value.what == "the receiver answers: the ledger at /west failed: disk I/O error"
            assert caught.value.hint == "Look at its disk"
            assert caught.value.retryable
    finally:
        link.close()
        server.stop()
