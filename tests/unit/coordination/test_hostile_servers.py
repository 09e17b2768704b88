"""What claims to be another cluster's ZooKeeper, and answers anything."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from replication.coordination.zookeeper import connect_public
from replication.errors import CoordinationError

_WELCOME = struct.pack(">iiqi", 0, 10_000, 77, 16) + bytes(16)


def answer(xid: int, body: bytes = b"", error: int = 0) -> bytes:
    return struct.pack(">iqi", xid, 1, error) + body


@pytest.fixture
def serve() -> Iterator[Callable[..., int]]:
    """Serves frames to each client, one after each request, then ``end`` again and again; returns the port."""
    servers = []

    def serving(*frames: bytes, end: bytes = b"") -> int:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def run() -> None:
            while True:
                try:
                    client, _ = server.accept()
                    with client:
                        client.settimeout(5.0)
                        for frame in frames:
                            client.recv(4096)
                            client.sendall(struct.pack(">i", len(frame)) + frame)
                        client.recv(4096)
                        while end:
                            client.sendall(end)
                            time.sleep(0.1)
                except OSError:
                    if server.fileno() < 0:
                        return

        threading.Thread(target=run, daemon=True).start()
        return int(server.getsockname()[1])

    yield serving
    for server in servers:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


@pytest.mark.parametrize(
    "frames",
    [
        (struct.pack(">iiqi", 0, 10_000, 77, -5),),
        (_WELCOME, b"zz"),
        (_WELCOME, answer(99)),
        (_WELCOME, answer(1, b"\0")),
        (_WELCOME, answer(1, struct.pack(">i", 1 << 30))),
        (_WELCOME, answer(1, error=-9999)),
        (_WELCOME, answer(-1, struct.pack(">iii", 1, 3, 2) + b"\xff\xfe")),
    ],
)
def test_no_answer_ends_a_thread_and_with_it_the_master_and_all_are_failures_of_the_peer(
    frames: tuple[bytes, ...], serve: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", ended.append)
    with pytest.raises(CoordinationError):
        connect_public(f"127.0.0.1:{serve(*frames)}", "/walship/west", timeout_s=1.0)
    assert not ended


@pytest.mark.parametrize(
    ("frames", "end"),
    [
        ((), struct.pack(">i", 1000)),
        ((_WELCOME,), struct.pack(">i", 1000)),
        ((_WELCOME,), struct.pack(">i", 1 << 30)),
        ((_WELCOME,), struct.pack(">i", 16) + answer(-2)),
        ((struct.pack(">iiqi", 0, (1 << 31) - 1, 77, 16) + bytes(16),), struct.pack(">i", 1000)),
    ],
)
def test_an_answer_that_never_ends_costs_a_bounded_wait(
    frames: tuple[bytes, ...], end: bytes, serve: Callable[..., int]
) -> None:
    failed: list[CoordinationError] = []

    def read() -> None:
        try:
            connect_public(f"127.0.0.1:{serve(*frames, end=end)}", "/walship/west", timeout_s=0.5)
        except CoordinationError as error:
            failed.append(error)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(15.0)
    assert failed and not reading.is_alive()


def test_an_answer_that_is_said_to_be_large_is_not_waited_for(serve: Callable[..., int]) -> None:
    with pytest.raises(CoordinationError, match="ConnectionLoss"):
        connect_public(f"127.0.0.1:{serve(_WELCOME, end=struct.pack('>i', 1 << 30))}", "/walship/west", timeout_s=60.0)
