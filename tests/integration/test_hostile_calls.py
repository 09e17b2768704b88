"""Calls that want all of a receiver's places, time or memory: they are refused early, and others are served."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import grpc
import pytest

from replication.core.grants import Grant
from replication.core.ids import ClusterId, FileId, StreamId
from replication.errors import FormatError, PeerRefusedError
from replication.link import callers, channel, refusals, wire
from replication.link._pb import walship_pb2 as pb
from replication.link.base import Hello, Refusal
from tests.hostile import calling, memory_below, metadata, of_other_users, raw_channel
from tests.integration.receiving import Pair, secured_pair, serves
from tests.integration.test_link_tls import AUTHORITY
from tests.waiting import wait_until

PRINTER = ClusterId("printer", uuid4())


_pair = pytest.fixture(name="pair")(secured_pair)


@pytest.fixture
def ask(pair: Pair) -> Iterator[Callable[[str, Any], bytes]]:
    """Makes a call with a message, in east's name."""
    assert pair.tls is not None
    with pair.west.receiver() as receiver, raw_channel(receiver.port, "west", pair.tls) as made:

        def call(method: str, message: Any) -> bytes:
            asked = made.unary_unary(method)
            return bytes(asked(message.SerializeToString(), 60, metadata(pair.east.cluster)))

        yield call
        assert call(channel.DESCRIBE, pb.GetTableRequest())
        serves(pair, receiver)


@pytest.mark.parametrize("name", ["printer", "east"])
@pytest.mark.parametrize("method", [channel.DESCRIBE, channel.GET_TABLE, channel.OPEN_ROUTE, channel.READ])
def test_calls_whose_request_never_comes_hold_no_place(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, name: str, method: str
) -> None:
    """As many as all callers together may make, with a certificate; of a peer they are ended in time."""
    monkeypatch.setattr(callers, "FIRST_S", 1.0)
    caller, quiet = pair.east.cluster if name == "east" else PRINTER, threading.Event()
    with pair.west.receiver() as receiver, ExitStack() as stack:
        silent = []
        for _ in range(4):
            alone = raw_channel(receiver.port, "west", AUTHORITY.issue(name), use_local_subchannel_pool=1)
            made = stack.enter_context(alone)
            for _ in range(40):
                silent.append(made.stream_unary(method).future(iter(quiet.wait, True), 60, metadata(caller)))
        wait_until(lambda: all(call.done() for call in silent), what="the silent calls to end")
        serves(pair, receiver)
        quiet.set()


def test_an_opening_of_who_has_no_grant_is_not_read(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def reading(raw: bytes) -> None:
        read.append(len(raw))
        raise AssertionError

    with pair.west.receiver() as receiver:
        pair.west.ledger.grants.put(Grant(ClusterId("denied", uuid4()), ()), 1)
        monkeypatch.setattr(wire, "decode_request", reading)
        monkeypatch.setattr(wire, "decode_route", reading)
        for caller in (PRINTER, ClusterId("denied", uuid4())):
            with calling(receiver.port, "west", caller, AUTHORITY.issue(caller.name)) as link:
                with pytest.raises(PeerRefusedError, match=f"grants nothing to {caller.name}"):
                    link.ship(Hello(caller, pair.west.cluster, 1, "test", (pair.route(),)))
                with pytest.raises(PeerRefusedError, match=f"grants nothing to {caller.name}"):
                    link.open_route(caller, pair.west.cluster, pair.route())
        assert not read
        monkeypatch.undo()
        of_other_users(monkeypatch)
        serves(pair, receiver)


def test_refused_calls_of_several_strangers_leave_places_for_others(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three could take all places of calls, if each waited in all of its own."""
    go, waits = threading.Event(), threading.Semaphore(0)

    def sleep(_: float) -> None:
        waits.release()
        go.wait(120)

    monkeypatch.setattr(callers, "time", SimpleNamespace(sleep=sleep))
    with pair.west.receiver() as receiver, ExitStack() as stack:
        calls = []
        for name in ("printer", "scanner", "camera"):
            made = stack.enter_context(
                raw_channel(receiver.port, "west", AUTHORITY.issue(name), use_local_subchannel_pool=1)
            )
            for _ in range(48):
                calls.append(made.unary_unary(channel.PROGRESS).future(b"", 30, metadata(ClusterId(name, uuid4()))))
        assert waits.acquire(timeout=120)
        wait_until(lambda: sum(not call.done() for call in calls) <= 32, what="most of them to be refused at once")
        serves(pair, receiver)
        go.set()


def test_questions_past_any_measure_take_little(pair: Pair, ask: Callable[[str, Any], bytes]) -> None:
    east, table = pair.east.cluster, pair.spec.uuid
    files = [str(FileId(east, "h0", number)) for number in range(50_000)]
    streams = [
        pb.Sequences(stream=str(StreamId(FileId(east, "h0", number), table, "default")), last=1)
        for number in range(100_001)
    ]
    questions = (
        (channel.GET_TABLE, pb.GetTableRequest(name="ops." + "x" * (12 << 20)), b""),
        (channel.GET_TABLE, pb.GetTableRequest(name="\0' or 1 = 1; --"), b""),
        (channel.PROGRESS, pb.ProgressRequest(files=files), "more than 10000"),
        (channel.REACHED, pb.ReachedRequest(streams=streams), "more than 100000"),
    )
    for method, message, expected in questions:
        with memory_below(192):  # the caller is in this process, too
            if isinstance(expected, bytes):
                assert ask(method, message) == expected
                continue
            with pytest.raises(grpc.RpcError, match=expected) as caught:
                ask(method, message)
            assert caught.value.code() is grpc.StatusCode.ABORTED


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "history_s": lambda raw: raw.update(history_s=1.5),
    "no number": lambda raw: raw.update(history_s=float("nan")),
    "uuid": lambda raw: raw.update(uuid=str(UUID(int=0))),
    "kind": lambda raw: raw.update(kind="cell"),
    "key": lambda raw: raw.update(key=["id", "id"]),
    "groups": lambda raw: raw["groups"].append(["default", ["text"], 0]),
    "sort": lambda raw: raw["settings"].update(sort=["id", 1]),
    "text": lambda raw: raw["settings"].update({"commit.x": ["a\0b", 1]}),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_definition_that_createtable_would_refuse_makes_no_table(
    pair: Pair, ask: Callable[[str, Any], bytes], what: str
) -> None:
    raw = json.loads(pair.spec.to_json()) | {"uuid": str(uuid4()), "name": "ops.bad"}
    CHANGES[what](raw)
    refusal = opened(pair, ask, pb.Route(table=json.dumps(raw), group="default", remote_table="ops.bad", generation=1))
    assert "definition" in refusal.what and " in the receiver" not in refusal.what
    assert "ops.bad" not in {spec.name for spec in pair.west.ledger.tables.all()}


@pytest.mark.parametrize("group", ["a'b", "../x", "\x1b[31m", "g" * 5000])
def test_a_route_of_a_group_that_cannot_be_is_refused(pair: Pair, ask: Callable[[str, Any], bytes], group: str) -> None:
    asked = wire.encode_route(pair.route())
    asked.group = group
    refusal = opened(pair, ask, asked)
    assert "cannot be a group name" in refusal.what and refusal.what.isprintable()
    assert not pair.west.ledger.landing.routes()


def test_a_route_that_names_no_files_as_ended_is_refused(pair: Pair, ask: Callable[[str, Any], bytes]) -> None:
    asked = wire.encode_route(pair.route())
    asked.ended.append("../x")
    assert "is not a file id" in opened(pair, ask, asked).what
    assert not pair.west.ledger.landing.routes()


def test_an_error_about_what_cannot_be_read_is_short_since_it_is_logged(pair: Pair) -> None:
    """A phase of 60 megabytes, which is none, replaced all that a receiver had logged before."""
    asked = wire.encode_route(pair.route())
    asked.phase = "x" * 1_000_000
    with pytest.raises(FormatError, match="a route cannot be read: 'x") as caught:
        wire.decode_route(asked)
    assert len(str(caught.value)) < 1000


def opened(pair: Pair, ask: Callable[[str, Any], bytes], route: pb.Route) -> Refusal:
    asked = pb.OpenRouteRequest(source=str(pair.east.cluster), expected=str(pair.west.cluster), routes=[route])
    reply = pb.RouteReply.FromString(ask(channel.OPEN_ROUTE, asked))
    return refusals.decode_refusal(reply.refusal)


@pytest.mark.parametrize("name", ["EAST", "../east", "east ", "e" * 5000, "xn--ast-oqc", "east.", ""])
def test_a_name_that_looks_like_a_clusters_is_another(pair: Pair, name: str) -> None:
    assert pair.tls is not None
    said = ((channel.CALLER_KEY, f"{name}:{pair.east.cluster.incarnation}"),)
    with pair.west.receiver() as receiver, raw_channel(receiver.port, "west", pair.tls) as made:
        for who in (said, (*metadata(pair.east.cluster), *said)):
            with pytest.raises(grpc.RpcError) as caught:
                made.unary_unary(channel.DESCRIBE)(b"", 20, who)
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        serves(pair, receiver)
