"""Forged messages of role changes over gRPC and TLS: refused, with bounded memory, and nothing of them lasts."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from uuid import uuid4

import grpc
import pytest

from peer.receive.receiver import Receiver
from replication.core import succession
from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.roles import Role, RoleState
from replication.core.succession import EPOCH_AHEAD_MAX, Succession
from replication.errors import FormatError, PeerRefusedError, SuccessionError
from replication.link import channel, takeovers, wire
from replication.link._pb import walship_pb2 as pb
from replication.link.base import Ack, Refusal, TakeOver
from replication.roles import takeover
from tests.hostile import calling, memory_below, metadata, raw_channel
from tests.integration.receiving import Pair, answer, secured_pair
from tests.integration.test_link_tls import AUTHORITY

PRINTER, NORTH = ClusterId("printer", uuid4()), ClusterId("north", uuid4())
FAR = 1 << 61


_pair = pytest.fixture(name="pair")(secured_pair)


@pytest.fixture
def receiver(pair: Pair) -> Iterator[Receiver]:
    """West's; afterwards it has the role and the epochs that it had, and serves east."""
    before = role(pair)
    with pair.west.receiver() as made:
        yield made
        assert role(pair) == before
        assert pair.west.ledger.landing.keep_epoch(pair.east.cluster, 1) == 1
        assert isinstance(answer(pair.ship(made), pair.data(256, pair.ends[2])), Ack)


def role(pair: Pair) -> RoleState:
    return pair.west.coordination.role().state


def of_east(pair: Pair, epoch: int, successor: ClusterId | None = None, planned: bool = True) -> Succession:
    return Succession(pair.east.cluster, successor or pair.west.cluster, epoch, 7, is_planned=planned)


def packed(text: str) -> bytes:
    return zlib.compress(text.encode(), 1)


BOMBS: dict[str, Callable[[], bytes]] = {
    "nested": lambda: packed('{"cut":{},"x":[' + "[]," * 3_000_000 + "0]}"),
    "one text": lambda: packed('{"cut":"' + "x" * (65 << 20) + '"}'),
    "deep": lambda: packed("[" * 1_000_000),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_what_a_stranger_packs_into_a_succession_is_not_unpacked(pair: Pair, receiver: Receiver, bomb: str) -> None:
    """Tens of kilobytes; with a grant they are unpacked to 64 MiB of text at most, one after the other."""
    own, content = AUTHORITY.issue("printer"), BOMBS[bomb]()
    hello = replace(pair.hello(), source=PRINTER, successions=(content,) * 8)
    refused = pytest.raises(PeerRefusedError, match="grants nothing to printer")
    with memory_below(24), calling(receiver.port, "west", PRINTER, own) as link, refused:
        link.ship(hello)
    with memory_below(200):
        pair.ship(receiver, replace(pair.hello(), successions=(content,) * 2)).close()
        with pytest.raises(FormatError):
            Succession.decode(content)
    assert not pair.west.ledger.successions.known().all


def test_a_stream_reports_no_more_successions_than_a_cluster_does(pair: Pair, receiver: Receiver) -> None:
    many = tuple(of_east(pair, epoch, NORTH).encode() for epoch in range(2, 80))
    with pytest.raises(PeerRefusedError, match="78 successions"):
        pair.ship(receiver, replace(pair.hello(), successions=many))
    assert not pair.west.ledger.successions.known().all


def test_an_epoch_that_no_role_changes_led_to_is_refused_however_it_comes(pair: Pair, receiver: Receiver) -> None:
    """Once stored, none above it would be left for the next failover."""
    far = of_east(pair, FAR, NORTH)
    pair.ship(receiver, replace(pair.hello(), successions=(far.encode(), of_east(pair, 1 << 30, NORTH).encode())))
    with pytest.raises(PeerRefusedError, match=r"too far above"):
        pair.ship(receiver, replace(pair.hello(), role_epoch=FAR))
    link = pair.link(receiver)
    for asked in (
        TakeOver(pair.east.cluster, pair.west.cluster, "zk:2181/east", of_east(pair, FAR)),
        TakeOver(pair.east.cluster, pair.west.cluster, "zk:2181/east", cancelled=FAR),
        TakeOver(pair.east.cluster, pair.west.cluster, "zk:2181/east", cancelled=2 + EPOCH_AHEAD_MAX),
    ):
        with pytest.raises(PeerRefusedError, match="too far above"):
            link.take_over(asked)
    assert not pair.west.ledger.successions.known().all and pair.west.ledger.successions.highest_epoch() <= 1


def test_a_peer_that_is_sent_to_makes_no_cluster_step_down_under_such_an_epoch(pair: Pair, receiver: Receiver) -> None:
    step_down = Succession(pair.west.cluster, pair.east.cluster, FAR, 7, is_planned=False)
    pair.ship(receiver, replace(pair.hello(), successions=(step_down.encode(),)))
    made = takeover.Takeover(pair.west.ledger, pair.west.coordination)
    with pytest.raises(SuccessionError, match="too far above"):
        made.learn(step_down, pair.east.cluster)  # as the answer of a receiver that a worker asked


def test_successions_of_one_origin_are_kept_up_to_a_bound(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "_KEPT_MAX", 5)
    with pair.west.receiver() as receiver:
        for epochs in (3, 3, 10):
            others = tuple(ClusterId(f"n{epochs}x{each}", uuid4()) for each in range(10))
            reported = tuple(
                of_east(pair, 2 + each % epochs, other, planned=False) for each, other in enumerate(others)
            )
            packed = tuple(one.encode() for one in reported)
            pair.ship(receiver, replace(pair.hello(), role_epoch=20, successions=packed)).close()
    known = pair.west.ledger.successions
    assert (len(known.known().all), len(known.contradictions())) == (5, 5)


@pytest.mark.parametrize("share", [16, pytest.param(1, marks=pytest.mark.slow)])
def test_a_cut_grows_no_larger_than_can_be_read_again(pair: Pair, share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a ledger cannot read again would break every process of the cluster."""
    monkeypatch.setattr(succession, "_JSON_ITEMS_MAX", succession._JSON_ITEMS_MAX // share)
    file, table = FileId(pair.east.cluster, "h0", 1), pair.spec.uuid
    halves = []
    for half in range(2):
        spans = Ranges.union_of((n * 4 + half * 2, n * 4 + half * 2 + 1) for n in range(800_000 // share))
        halves.append(replace(of_east(pair, 2, NORTH, planned=False), cut={StreamId(file, table, "default"): spans}))
    with memory_below(900 // share + 50):
        made = takeover.Takeover(pair.west.ledger, pair.west.coordination)
        made.learn(halves[0], pair.east.cluster)
        with pytest.raises(FormatError, match="more streams than a succession may"):
            made.learn(halves[1], pair.east.cluster)
    assert (
        pair.west.ledger.successions.known().all == (halves[0],) and not pair.west.ledger.successions.contradictions()
    )


def test_the_cuts_that_another_cluster_reports_take_bounded_memory_together(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every process of the cluster keeps all of them in memory."""
    monkeypatch.setattr(takeover, "_SIZE_MAX", 8)
    spans = Ranges.of((0, 1), (3, 4))
    streams = [StreamId(FileId(site.cluster, "h0", 1), pair.spec.uuid, "default") for site in (pair.east, pair.west)]
    reported = [replace(of_east(pair, epoch, NORTH, planned=False), cut={streams[0]: spans}) for epoch in range(2, 8)]
    packed = tuple(one.encode() for one in reported)
    with pair.west.receiver() as receiver:
        pair.ship(receiver, replace(pair.hello(), role_epoch=20, successions=packed)).close()
    assert pair.west.ledger.successions.known().all == tuple(reported[:2])
    own = Succession(pair.west.cluster, pair.east.cluster, 9, 7, is_planned=False, cut={streams[1]: spans})
    takeover.Takeover(pair.west.ledger, pair.west.coordination).learn(own, pair.east.cluster)
    assert role(pair) == RoleState(Role.STANDBY, 9), "a cluster steps down all the same"


def test_orders_that_are_no_messages_or_in_anothers_name_are_refused(pair: Pair, receiver: Receiver) -> None:
    assert pair.tls is not None
    own, here = str(pair.east.cluster), str(pair.west.cluster)
    forged = (
        pb.TakeOverRequest(source=str(NORTH), expected=here),
        pb.TakeOverRequest(source=own, expected=str(NORTH)),
        pb.TakeOverRequest(source=own, expected=here, succession=BOMBS["nested"]()),
        pb.TakeOverRequest(source=own, expected=here, succession=b"\x00" * 99),
        pb.TakeOverRequest(source=own, expected=here, cancelled=2**64 - 1),
        pb.TakeOverRequest(source=own, expected=here, zookeepers="x" * 100_000),
        pb.TakeOverRequest(source="../..", expected=here),
    )
    with raw_channel(receiver.port, "west", pair.tls) as made, memory_below(200):
        for message in (*(each.SerializeToString() for each in forged), b"\xff" * 50):
            raw = made.unary_unary(channel.TAKE_OVER)(message, 20, metadata(pair.east.cluster))
            assert pb.RouteReply.FromString(raw).HasField("refusal")
        for source, expected, lease in ((str(NORTH), here, 5), (own, str(NORTH), 5), (own, here, 2**32 - 1)):
            asked = pb.SuccessionsRequest(source=source, expected=expected, lease_ms=lease, role_epoch=FAR)
            raw = made.unary_unary(channel.GET_SUCCESSIONS)(asked.SerializeToString(), 20, metadata(pair.east.cluster))
            with pytest.raises(PeerRefusedError):
                takeovers.decode_successions(raw)
        hello = pb.ShipRequest.FromString(wire.encode_request(pair.hello()))
        hello.open.role_epoch = 2**64 - 1
        asked = made.stream_stream(channel.SHIP)(iter((hello.SerializeToString(),)), 20, metadata(pair.east.cluster))
        assert isinstance(wire.decode_reply(next(asked)), Refusal)
    assert pair.west.ledger.successions.lease(pair.east.cluster) == (0, 0.0)


def test_another_cluster_cannot_report_or_order_a_role_change(pair: Pair, receiver: Receiver) -> None:
    """It has a certificate and a grant for the table."""
    pair.west.send_to_cluster(NORTH)
    with calling(receiver.port, "west", NORTH, AUTHORITY.issue("north")) as link:
        lies = (of_east(pair, 2, NORTH, planned=False), of_east(pair, 2, pair.west.cluster))
        link.ship(replace(pair.hello(), source=NORTH, successions=tuple(each.encode() for each in lies))).close()
        for source in (pair.east.cluster, NORTH):
            order = TakeOver(source, pair.west.cluster, "zk:2181/north", of_east(pair, 2))
            with pytest.raises(PeerRefusedError):
                link.take_over(order)
        with pytest.raises((PeerRefusedError, grpc.RpcError)):
            link.successions(pair.east.cluster, pair.west.cluster)
    assert not pair.west.ledger.successions.known().all
