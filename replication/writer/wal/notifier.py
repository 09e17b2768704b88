"""Notifications from a host's writers to its worker that there are new bytes, so that it need not poll all the time.

Each is a datagram on a socket in Linux's abstract namespace, which needs no file and no set-up. One that is lost delays
bytes until the worker's next poll, and loses nothing.
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
    """Sends notifications for one WAL directory. Safe for threads; ``close`` releases its socket."""

    def __init__(self, directory: str) -> None:
        self._address = _address(directory)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if _SUPPORTED else None
        if self._socket is not None:
            self._socket.setblocking(False)

    def notify(self) -> None:
        """Wake the listener; without effect when there is none, or when it has notifications to read still."""
        made = self._socket  # another thread may close it now; sending on a closed one is an OSError
        if made is not None:
            with contextlib.suppress(OSError):
                made.sendto(b"", self._address)

    def close(self) -> None:
        """Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class NotificationListener:
    """Receives the notifications for one WAL directory, in one process of a host. ``close`` ends it."""

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
    def is_listening(self) -> bool:
        """False where notifications are not supported, or another process listens already."""
        return self._socket is not None

    def wait(self, timeout_s: float) -> bool:
        """Whether a notification came since the last call or comes within ``timeout_s``; for one thread."""
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
