"""Notifications of new bytes from a host's writers to its worker, so that the worker can poll less often.

Each is a datagram on a socket in Linux's abstract namespace, which needs no file and no set-up. A lost notification
delays bytes until the worker's next poll.
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
        """Wake the listener. No effect when there is none, or when its queue is full."""
        current = self._socket  # another thread may close it: sending then raises OSError
        if current is not None:
            with contextlib.suppress(OSError):
                current.sendto(b"", self._address)

    def close(self) -> None:
        """Close the socket. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class NotificationListener:
    """Receives the notifications for one WAL directory, in one process of a host. ``close`` ends it."""

    def __init__(self, directory: str) -> None:
        self._socket: socket.socket | None = None
        if not _SUPPORTED:
            return
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            listening.bind(_address(directory))
        except OSError:
            listening.close()
            return
        self._socket = listening

    @property
    def is_listening(self) -> bool:
        """False when notifications are not supported, or another process listens already."""
        return self._socket is not None

    def wait(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s``; return whether a notification came since the last call. For one thread."""
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
        """Close the socket; do not call it during ``wait``. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
