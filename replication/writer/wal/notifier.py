"""A bell by which writers of a host tell its worker that there is something new, so that it need not look all the time.

A datagram socket in Linux's abstract namespace: no file to be left over, and nothing to be set up before it is rung. A
ring that is lost delays bytes until the worker's next look, and loses nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from hashlib import sha256

_SUPPORTED = sys.platform == "linux"
_READ_MAX = 64


def _address(directory: str) -> bytes:
    return b"\0walship/" + sha256(os.path.realpath(directory).encode()).hexdigest().encode()


class Notifier:
    """The bell of one WAL directory, to ring. Safe for threads; ``close`` lets go of its socket."""

    def __init__(self, directory: str) -> None:
        self._address = _address(directory)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if _SUPPORTED else None
        if self._socket is not None:
            self._socket.setblocking(False)

    def ring(self) -> None:
        """Wake who listens; without effect when nobody does, or when it has rings to hear still."""
        made = self._socket  # another thread may close it now; ringing a closed one is an OSError
        if made is not None:
            with contextlib.suppress(OSError):
                made.sendto(b"", self._address)

    def close(self) -> None:
        """Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class NotificationListener:
    """Who listens for the bell of one WAL directory: one process of a host. ``close`` ends it.

    ``hears`` is False where there is no such bell, or another process listens already.
    """

    def __init__(self, directory: str) -> None:
        self._socket: socket.socket | None = None
        if not _SUPPORTED:
            return
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            made.bind(_address(directory))
        except OSError:
            made.close()
            return
        self._socket = made

    @property
    def hears(self) -> bool:
        """Whether ``wait`` is woken by rings."""
        return self._socket is not None

    def wait(self, timeout_s: float) -> bool:
        """Whether it rang, now or since the last call, within ``timeout_s``; for one thread."""
        if self._socket is None:
            return False
        self._socket.settimeout(timeout_s)
        try:
            self._socket.recv(1)
        except (TimeoutError, BlockingIOError):
            return False
        self._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            for _ in range(_READ_MAX):
                self._socket.recv(1)
        return True

    def close(self) -> None:
        """Idempotent; not while ``wait`` runs."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
