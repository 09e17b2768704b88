"""Connections and senders that want all of a receiver: they are closed or wait, and an honest sender is served."""

from __future__ import annotations

import os
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from socket import create_connection, socket
from uuid import uuid4

import pyarrow as pa
import pytest

from peer.receive import definitions, landing, landing_queue
from peer.receive.landing_queue import Item
from replication.core.definition.schema import SchemaVersion
from replication.errors import PeerRefusedError
from replication.link import channel, grpc_server, grpc_servicer, wire
from replication.link.base import Ack, Reason, Refusal
from tests.certificates import tls_section
from tests.hostile import memory_below, metadata, of_other_users, raw_channel
from tests.integration.receiving import Pair, answer, secured_pair, serves
from tests.integration.test_hostile_frames import forged, sent
from tests.integration.test_link_tls import AUTHORITY
from tests.waiting import wait_until

PING, SETTINGS, HEADERS, RESET, CONTINUATION, GOAWAY = 6, 4, 1, 3, 9, 7
ENHANCE_YOUR_CALM = 11
DESCRIBE = b"\x83\x87\x04\x15/walship.Link/Describe\x41\x04west"  # HPACK without tables: POST, https, path, authority


_pair = pytest.fixture(name="pair")(secured_pair)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2 (RFC 9113, 4.1)."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def spoken(port: int, folder: Path) -> ssl.SSLSocket:
    """A connection of HTTP/2 with east's certificate, after its first SETTINGS."""
    files = tls_section(folder, AUTHORITY.issue("east"), f"{uuid4()}-")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(files["ca"])
    context.load_cert_chain(files["cert"], files["key"])
    context.set_alpn_protocols(["h2"])
    made = context.wrap_socket(create_connection(("127.0.0.1", port)), server_hostname="west")
    made.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))
    return made


def flooded(made: ssl.SSLSocket, parts: Sequence[bytes], silent_s: float = 2.0) -> list[tuple[int, bytes]]:
    """What the receiver said (kinds and payloads of frames) to a flood, until it hung up or said nothing for long."""
    heard = bytearray()
    made.settimeout(silent_s)
    try:
        for part in parts:
            made.sendall(part)
    except OSError:
        pass
    try:
        while got := made.recv(1 << 16):
            heard += got
    except OSError:
        pass
    made.close()
    found, at = [], 0
    while at + 9 <= len(heard):
        size = int.from_bytes(heard[at : at + 3], "big")
        found.append((heard[at + 3], bytes(heard[at + 9 : at + 9 + size])))
        at += 9 + size
    return found


def test_a_flood_of_pings_is_told_to_calm_down_and_hung_up_on(pair: Pair, tmp_path: Path) -> None:  # hostile row 53
    with pair.west.receiver() as receiver:
        session = pair.ship(receiver)
        made = spoken(receiver.port, tmp_path)
        heard = flooded(made, [frame(PING, 0, 0, b"12345678")] * 20_000)
        (end,) = [payload for kind, payload in heard if kind == GOAWAY]
        assert int.from_bytes(end[4:8], "big") == ENHANCE_YOUR_CALM and b"too_many_pings" in end
        assert isinstance(answer(session, pair.data(256, pair.ends[0])), Ack), "another connection of the same peer"
        serves(pair, receiver)


HEAD = frame(HEADERS, 0, 1, b"\x82")
FLOODS: dict[str, Callable[[], list[bytes]]] = {
    "settings": lambda: [frame(SETTINGS, 0, 0) * 1000] * 100,
    "headers that never end": lambda: [HEAD, *[frame(CONTINUATION, 0, 1, b"\x40\x01a\x01b" * 2000)] * 2000],
    "calls that are reset at once": lambda: [
        frame(HEADERS, 4, number, DESCRIBE) + frame(RESET, 0, number, struct.pack(">I", 8))
        for number in range(1, 20_000, 2)
    ],
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_of_other_frames_takes_little_memory_and_no_place(pair: Pair, tmp_path: Path, flood: str) -> None:
    parts = FLOODS[flood]()
    with pair.west.receiver() as receiver, memory_below(128):
        for _ in range(3):
            flooded(spoken(receiver.port, tmp_path), parts, 0.3)
        serves(pair, receiver)


def is_closed(made: socket) -> bool:
    made.setblocking(False)
    try:
        return made.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_connections_that_say_nothing_are_closed_and_are_few(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "HANDSHAKE_S", 2.0)
    monkeypatch.setattr(grpc_server, "CONNECTIONS_MAX", 20)
    with pair.west.receiver() as receiver, ExitStack() as stack:
        session = pair.ship(receiver)
        before = len(os.listdir("/proc/self/fd"))
        silent = [stack.enter_context(create_connection(("127.0.0.1", receiver.port))) for _ in range(200)]
        assert isinstance(answer(session, pair.data(256, pair.ends[0])), Ack), "who was there before goes on"
        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before + 200 + 20, what="connections past the limit")
        wait_until(lambda: all(map(is_closed, silent)), what="silent connections to be closed")
        serves(pair, receiver)


def test_a_connection_with_a_certificate_and_no_call_is_closed(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "IDLE_S", 1.0)
    with pair.west.receiver() as receiver:
        with spoken(receiver.port, tmp_path) as made:
            wait_until(lambda: is_closed(made) or made.pending() < 0, what="the idle connection to be closed")
        session = pair.ship(receiver)
        for begin, end in zip((256, *pair.ends), pair.ends, strict=False):
            assert isinstance(answer(session, pair.data(begin, end)), Ack), "a stream is a call: it stays"


def test_streams_that_are_silent_after_their_first_message_take_little(pair: Pair) -> None:
    """They may be: a table that nobody writes has such a stream. Their number is bounded, for each peer."""
    with pair.west.receiver() as receiver:
        pair.ship(receiver).close()
        with memory_below(64):
            silent = [pair.ship(receiver) for _ in range(15)]
            with pytest.raises(PeerRefusedError, match="peer_streams_max"):
                for _ in range(3):
                    silent.append(pair.ship(receiver))
            assert isinstance(answer(silent[0], pair.data(256, pair.ends[2])), Ack)


def test_replies_that_are_not_taken_take_little(pair: Pair) -> None:
    ended = threading.Event()
    with memory_below(32):
        waiting = grpc_servicer.Replies(ended.set)
        for number in range(200_000):
            waiting.put(Refusal(Reason.HOLE, f"bytes of {number} are missing", "The sender goes on from there"))
    assert ended.is_set()


def test_a_sender_that_reads_no_replies_is_cut_off_and_takes_little(pair: Pair) -> None:
    """Each of its messages is refused; over gRPC and TLS, with flow control that it never opens."""
    assert pair.tls is not None
    opening = wire.encode_request(pair.hello())
    bad = wire.encode_request(sent(pair, b"no frame at all" * 4))
    with pair.west.receiver() as receiver, raw_channel(receiver.port, "west", pair.tls) as made, memory_below(96):
        stop = threading.Event()

        def messages() -> Iterator[bytes]:
            yield opening
            for _ in range(20_000):
                if stop.is_set():
                    return
                yield bad

        call = made.stream_stream(channel.SHIP)(messages(), 60, metadata(pair.east.cluster))
        serves(pair, receiver)
        stop.set()
        call.cancel()


def test_comparisons_of_one_peer_take_little(pair: Pair) -> None:
    with pair.west.receiver() as receiver:
        with memory_below(160):  # each has a process of its own for its work
            opened = [pair.link(receiver).compare(pair.east.cluster, pair.west.cluster) for _ in range(2)]
            with pytest.raises(PeerRefusedError, match="2 of them of east"):
                pair.link(receiver).compare(pair.east.cluster, pair.west.cluster)
        for each in opened:
            each.close()
        serves(pair, receiver)


def test_schema_versions_that_a_peer_teaches_take_little(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "SCHEMAS_MAX", 100)
    version = next(iter(pair.spec.versions.values()))
    fields = list(version.arrow)
    with pair.west.receiver() as receiver:
        session = pair.ship(receiver)
        with memory_below(96):
            for number in range(120):
                wide = [pa.field(f"c{number}_{each}", pa.int64()) for each in range(400)]
                known = SchemaVersion.of(
                    version.table, version.group, pa.schema([*fields, *wide], version.arrow.metadata)
                )
                session.send((known,))
            refusal = session.receive(60)
            assert isinstance(refusal, Refusal)
        assert len(pair.west.ledger.tables.schemas(version.table)) == 100
        serves(pair, receiver)


def test_a_hostile_sender_beside_an_honest_one_takes_every_second_turn_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has filled the queue by many streams before the honest one begins. Counted in messages, not in time."""
    of_other_users(monkeypatch)
    monkeypatch.setattr(landing_queue, "_GROUP_COUNT", 4)
    east = Pair(tmp_path, tls=tls_section(tmp_path, AUTHORITY.issue("west")))
    north = Pair(tmp_path, "north", of=east)
    for pair in (east, north):
        pair.tls = AUTHORITY.issue(pair.east.cluster.name)
        pair.west.send_to_cluster(pair.east.cluster)
    order: list[str] = []
    taken: list[int] = []
    go = threading.Event()
    land = landing.Landing._land

    def counted(self: landing.Landing, group: Sequence[Item]) -> None:
        taken.append(len(group))
        go.wait(120)
        order.extend(item.incoming.data.file.cluster.name for item in group)
        land(self, group)

    monkeypatch.setattr(landing.Landing, "_land", counted)
    with east.west.receiver() as receiver:
        flood = [east.ship(receiver) for _ in range(8)]
        honest = north.ship(receiver)
        for number in range(200):
            flood[number % 8].send(sent(east, forged(east, sequence=2 * number + 2), 100 + number))
        queue = receiver._landing._queue
        wait_until(lambda: len(queue) + sum(taken) == 200, what="the flood to wait")
        begin = 256
        for end in north.ends:
            honest.send(north.data(begin, end))
            begin = end
        wait_until(lambda: len(queue) + sum(taken) == 203, what="the honest messages to wait")
        go.set()
        for _ in north.ends:
            assert isinstance(honest.receive(60), Ack)
        at = [place for place, name in enumerate(order) if name == "north"]
        assert len(at) == 3 and at[-1] < 4 + 2 * 3, Counter(order[: at[-1]])
        wait_until(lambda: len(order) == 203, what="the flood to land as well")
    north.close()
    east.close()
