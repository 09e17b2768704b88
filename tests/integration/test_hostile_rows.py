"""Hostile rows 46 to 55 over gRPC and TLS: refused by type, with bounded memory, and the receiver goes on.

Others of them: certificates and plain text in ``test_link_tls.py`` (46), grants in ``test_granted.py`` (47), bombs of
zstd in ``test_hostile_frames.py`` (50), silent streams there and floods in ``test_peer_bounds.py`` (53), old terms and
epochs in ``test_stream_opening.py`` (54).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from uuid import uuid4

import grpc
import pytest

from peer.receive import definitions
from peer.receive.receiver import Receiver
from replication.core.frame import FRAME_BYTES_MAX
from replication.core.grants import Grant
from replication.core.ids import ClusterId, FileId
from replication.errors import PeerRefusedError, TransferError
from replication.link import channel, refusals, wire
from replication.link._pb import walship_pb2 as pb
from replication.link.base import Ack, Reason, Refusal
from replication.link.tls import LinkTls
from tests.hostile import calling, memory_below, metadata, raw_channel
from tests.integration.receiving import Pair, answer, refused, secured_pair
from tests.integration.test_hostile_frames import forged, sent
from tests.integration.test_link_tls import AUTHORITY, STRANGERS
from tests.sites import table

PRINTER, NORTH = ClusterId("printer", uuid4()), ClusterId("north", uuid4())


_pair = pytest.fixture(name="pair")(secured_pair)


@pytest.fixture
def receiver(pair: Pair) -> Iterator[Receiver]:
    with pair.west.receiver() as made:
        yield made
        assert isinstance(answer(pair.ship(made), pair.data(256, pair.ends[2])), Ack), "it serves others afterwards"
        assert set(pair.landed) == set(pair.sealed) and pair.west.ledger.time.seen() > 0


def streamed(pair: Pair, made: grpc.Channel, *messages: bytes, **call: object) -> grpc.StatusCode:
    """How a stream of these messages ends, after its opening."""
    assert pair.tls is not None
    opening = wire.encode_request(pair.hello())
    asked = made.stream_stream(channel.SHIP)(iter((opening, *messages)), 30, metadata(pair.east.cluster), **call)
    with pytest.raises(grpc.RpcError):
        for _ in asked:
            pass
    code = asked.code()
    assert isinstance(code, grpc.StatusCode)
    return code


def test_messages_and_metadata_past_their_size_are_refused_before_they_are_read(  # hostile row 48
    pair: Pair, receiver: Receiver
) -> None:
    assert pair.tls is not None
    large = bytes(FRAME_BYTES_MAX + (65 << 10))
    with raw_channel(receiver.port, "west", pair.tls, max_send_message_length=-1) as made, memory_below(192):
        assert streamed(pair, made, large) is grpc.StatusCode.RESOURCE_EXHAUSTED
        describe = made.unary_unary(channel.DESCRIBE)
        with pytest.raises(grpc.RpcError) as caught:
            describe(b"", 20, metadata(pair.east.cluster, ("more", "x" * (64 << 10))))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_what_gzip_packs_is_refused_before_it_is_unpacked(pair: Pair, receiver: Receiver) -> None:  # hostile row 49
    assert pair.tls is not None
    bomb = bytes(60 << 20)  # 60 KB on the way, and less than a message may have
    with (
        raw_channel(receiver.port, "west", pair.tls, compression_enabled_algorithms_bitset=7) as made,
        memory_below(96),  # the sender's copy is in this process, too
    ):
        code = streamed(pair, made, bomb, compression=grpc.Compression.Gzip)
        assert code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL)


@pytest.mark.parametrize("slot", ["../../etc/x", "/etc/x", "..", "h0/../../x", "a\0b"])
def test_a_host_that_is_a_path_is_no_host(pair: Pair, receiver: Receiver, slot: str) -> None:  # hostile row 51
    hostile = FileId(pair.east.cluster, slot, 3)
    frame = sent(pair, forged(pair, wal=hostile), 91)
    assert refused(pair.ship(receiver), frame).reason is Reason.CORRUPT
    reply = answer(pair.ship(receiver), replace(frame, file=hostile))
    assert isinstance(reply, Refusal) and reply.reason is Reason.CORRUPT
    folder = pair.west.config.data_dir
    assert not [path for path in folder.parent.rglob("*") if path.name == "x"]


def test_nesting_without_measure_is_refused(pair: Pair, receiver: Receiver) -> None:  # hostile row 52
    assert pair.tls is not None
    with raw_channel(receiver.port, "west", pair.tls) as made, memory_below(64):
        groups = b"\x7b" * 1_000_000  # groups in groups
        asked = made.stream_stream(channel.SHIP)(iter((groups,)), 20, metadata(pair.east.cluster))
        reply = wire.decode_reply(next(asked))
        assert isinstance(reply, Refusal) and reply.reason is Reason.VERSION
        for text in ("[" * 1_000_000, '{"a":' * 200_000):
            route = pb.Route(table=text, group="default", remote_table="ops.deep", generation=1)
            raw = pb.OpenRouteRequest(source=str(pair.east.cluster), expected=str(pair.west.cluster), routes=[route])
            answered = made.unary_unary(channel.OPEN_ROUTE)(raw.SerializeToString(), 20, metadata(pair.east.cluster))
            found = refusals.decode_refusal(pb.RouteReply.FromString(answered).refusal)
            assert "definition cannot be read" in found.what


def test_a_recorded_stream_is_of_no_use_to_another_cluster_or_incarnation(  # hostile row 54
    pair: Pair, receiver: Receiver
) -> None:
    session = pair.ship(receiver)
    assert isinstance(answer(session, pair.data(256, pair.ends[0])), Ack)
    for caller, name in ((PRINTER, "printer"), (ClusterId("east", uuid4()), "east")):
        with calling(receiver.port, "west", caller, AUTHORITY.issue(name)) as link:
            with pytest.raises(PeerRefusedError) as caught:
                link.ship(pair.hello())
            assert caught.value.reason in (Reason.NOT_GRANTED, Reason.WRONG_CLUSTER)
            with pytest.raises(PeerRefusedError):
                link.ship(replace(pair.hello(), source=caller))
    assert isinstance(answer(session, pair.data(256, pair.ends[0])), Ack), "a repeated message changes nothing"
    assert pair.landed == pair.sealed[:1]


def test_a_definition_from_a_peer_names_no_code_and_no_place(pair: Pair, receiver: Receiver) -> None:  # hostile row 55
    spec = table("ops.placed")
    text = json.loads(spec.to_json())
    for name, value in (
        ("py-io-impl", "os.system"),
        ("write.data.path", "s3://169.254.169.254/latest"),
        ("write.metadata.path", "file:///etc"),
        ("write.parquet.compression-codec", "zstd"),
    ):
        text.setdefault("properties", {})[name] = value
    opening = pb.ShipRequest.FromString(wire.encode_request(pair.hello(pair.route(), pair.route(spec=spec))))
    opening.open.routes[1].table = json.dumps(text)
    assert pair.tls is not None
    with raw_channel(receiver.port, "west", pair.tls) as made:
        held = threading.Event()
        messages = iter((opening.SerializeToString(),))
        asked = made.stream_stream(channel.SHIP)(messages, 20, metadata(pair.east.cluster))
        assert not isinstance(wire.decode_reply(next(asked)), Refusal)
        held.set()
    known = pair.west.ledger.tables.get("ops.placed").properties
    assert set(known) <= {"write.parquet.compression-codec"}


def test_an_opening_with_more_of_anything_than_a_cluster_has_is_refused(pair: Pair, receiver: Receiver) -> None:
    own, many = pair.hello(), tuple((number, "n") for number in range(1, 100))
    before = pair.west.ledger.landing.routes()
    for asked, said in (
        (replace(own, term_history=many), "99 terms"),
        (replace(own, former=tuple(ClusterId("east", uuid4()) for _ in range(1001))), "1001 former ids"),
        (replace(own, files=tuple((FileId(own.source, "h0", n), 1) for n in range(100_001))), "100001 files"),
    ):
        with pytest.raises(PeerRefusedError, match=said):
            pair.ship(receiver, asked)
    assert pair.west.ledger.landing.routes() == before
    session = pair.ship(receiver, replace(own, version="v" * 100_000, term_history=((1, "n" * 100_000),)))
    session.close()
    again = pair.ship(receiver, replace(own, term_history=((1, "n" * 64),)))
    assert isinstance(answer(again, pair.data(256, pair.ends[0])), Ack), "64 letters of a nonce are kept"


def test_a_peer_makes_no_more_tables_than_a_cluster_may_have(
    pair: Pair, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definitions, "TABLES_MAX", 3)
    link = pair.link(receiver)
    refused_names = []
    for number in range(6):
        spec = table(f"ops.t{number}")
        try:
            link.open_route(pair.east.cluster, pair.west.cluster, pair.route(spec=spec))
        except PeerRefusedError as error:
            assert error.reason == Reason.TABLE_CONFLICT and "createtable ops.t" in error.hint
            refused_names.append(spec.name)
    assert refused_names == ["ops.t3", "ops.t4", "ops.t5"]
    monkeypatch.setattr(definitions, "TABLES_MAX", 100)


Hostile = Callable[[Pair, Receiver], str]


def without_grants(pair: Pair, receiver: Receiver) -> str:
    with calling(receiver.port, "west", PRINTER, AUTHORITY.issue("printer")) as link:
        return reason_of(lambda: link.ship(replace(pair.hello(), source=PRINTER)))


def granted_another_table(pair: Pair, receiver: Receiver) -> str:
    pair.west.ledger.grants.put(Grant(PRINTER, ("ops.other",)), 1)
    with calling(receiver.port, "west", PRINTER, AUTHORITY.issue("printer")) as link:
        opened = replace(pair.hello(pair.route(spec=table("ops.other"))), source=PRINTER)
        session = link.ship(opened)
        file = FileId(PRINTER, "h0", 1)
        frame = forged(pair, wal=file, hops=(PRINTER,))
        return refused(session, replace(sent(pair, frame), file=file)).reason.value


def forwarding_what_it_may_not(pair: Pair, receiver: Receiver) -> str:
    frame = forged(pair, wal=FileId(NORTH, "h0", 3), hops=(NORTH, pair.east.cluster))
    return refused(pair.ship(receiver), sent(pair, frame)).reason.value


def local_user(pair: Pair, receiver: Receiver) -> str:
    with calling(receiver.port, "west", pair.east.cluster, None) as link:
        return reason_of(link.describe)


def with_a_foreign_certificate(pair: Pair, receiver: Receiver) -> str:
    own = STRANGERS.issue("east")
    tls = LinkTls(AUTHORITY.ca, own.cert, own.key)
    with calling(receiver.port, "west", pair.east.cluster, tls) as link:
        return reason_of(link.describe)


def reason_of(call: Callable[[], object]) -> str:
    try:
        call()
    except PeerRefusedError as error:
        return error.reason
    except TransferError:
        return "UNREACHED"
    return "TAKEN"


@pytest.mark.parametrize(
    ("hostile", "reason"),
    [
        (without_grants, "NOT_GRANTED"),
        (granted_another_table, "NOT_GRANTED"),
        (forwarding_what_it_may_not, "NOT_GRANTED"),
        (local_user, "UNREACHED"),
        (with_a_foreign_certificate, "UNREACHED"),
    ],
)
def test_a_hostile_client_that_tries_again_and_again_changes_nothing_and_disturbs_nobody(  # hostile rows 46, 47
    pair: Pair, receiver: Receiver, hostile: Hostile, reason: str
) -> None:
    before = {spec.name for spec in pair.west.ledger.tables.all()} | {"ops.other", "ops.flights"}
    stop, found = threading.Event(), set[str]()

    def attack() -> None:
        while not stop.is_set():
            found.add(hostile(pair, receiver))

    attacker = threading.Thread(target=attack)
    session, begin = pair.ship(receiver), 256  # the table is there from now on
    with memory_below(96):
        attacker.start()
        try:
            for end in pair.ends:
                assert isinstance(answer(session, pair.data(begin, end)), Ack)
                begin = end
        finally:
            stop.set()
            attacker.join()
    assert found == {reason}
    assert pair.landed == pair.sealed
    assert {spec.name for spec in pair.west.ledger.tables.all()} <= before
