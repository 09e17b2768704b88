"""A route that lets only so many bytes a second through each connection, late, as a long one does: a loopback proxy."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

_PIECE = 16 << 10


@contextlib.contextmanager
def slow_route(port: int, bytes_per_s: float, delay_s: float = 0.0) -> Iterator[int]:
    """A port whose connections go on to ``port`` of this machine, each at ``bytes_per_s`` there.

    What is sent either way comes ``delay_s`` later, one piece after another.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    made: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def pump(source: socket.socket, target: socket.socket, rate: float) -> None:
        due = time.monotonic()
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE):
                due = max(due, time.monotonic() - 0.05) + len(piece) / rate
                time.sleep(max(0.0, due - time.monotonic()) + delay_s)
                target.sendall(piece)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = listener.accept()
                there = socket.create_connection(("127.0.0.1", port))
                here.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * _PIECE)
                made.extend((here, there))
                for one, other, rate in ((here, there, bytes_per_s), (there, here, 1e12)):
                    threads.append(threading.Thread(target=pump, args=(one, other, rate), daemon=True))
                    threads[-1].start()

    threads.append(threading.Thread(target=accept, daemon=True))
    threads[0].start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for each in made:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for each in made:
            each.close()
