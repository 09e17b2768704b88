"""Notifications between the processes of a host, so that they can poll less often.

The worker is notified of bytes that were written or landed, and replay of frames that were registered. The master is
notified when rows come, or a peer fails. Who waits for what worker and replay do next subscribes, and they notify it in
turn. Each notification is a datagram on a socket in Linux's abstract namespace, which needs no file and no set-up. One
may get lost: then the receiver notices at its next poll.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from hashlib import sha256

_SUPPORTED = sys.platform == "linux"
_READ_MAX = 64
_CLOSED_TIME, _LANDED = b"c", b"l"
_SUBSCRIBED_S = 0.25
_SUBSCRIBERS_MAX = 256
_SELDOM_S = 5.0
_POLL_FIRST_S, _POLL_MAX_S = 0.005, 0.1


class Listening(StrEnum):
    """The processes of a host that are notified."""

    WORKER = "worker"
    REPLAY = "replay"
    MASTER = "master"


#: Those that are told of rows, and that tell subscribers of what they did.
OF_ROWS = (Listening.WORKER, Listening.REPLAY)


def _address(directory: str, process: Listening) -> bytes:
    named = f"{os.path.realpath(directory)}\n{process}"
    return b"\0walship/" + sha256(named.encode()).hexdigest().encode()


def _open() -> socket.socket | None:
    if not _SUPPORTED:
        return None
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    opened.setblocking(False)
    return opened


class Notifier:
    """Notifies a process of the host with this WAL directory. Safe for threads; ``close`` releases its socket."""

    def __init__(self, directory: str, process: Listening = Listening.WORKER) -> None:
        self._address = _address(directory, process)
        self._socket = _open()
        self._seldom_s = 0.0

    def notify(self) -> None:
        """Wake the listener. No effect when there is none, or when its queue is full."""
        self._send(b"")

    def notify_seldom(self) -> None:
        """As ``notify``, but every five seconds at most."""
        now_s = time.monotonic()
        if now_s >= self._seldom_s:
            self._seldom_s = now_s + _SELDOM_S
            self.notify()

    def tell_landed(self) -> None:
        """As ``notify``, of bytes that landed and nothing else."""
        self._send(_LANDED)

    def ask_closed_time(self) -> None:
        """Have the worker raise closed time within a second, also while nobody writes. No effect as ``notify``."""
        self._send(_CLOSED_TIME)

    def close(self) -> None:
        """Close the socket. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, what: bytes) -> None:
        current = self._socket  # another thread may close it: sending then raises OSError
        if current is not None:
            with contextlib.suppress(OSError):
                current.sendto(what, self._address)


class NotificationListener:
    """Receives notifications, in one process of a host, and notifies subscribers. ``close`` ends it."""

    def __init__(self, directory: str, process: Listening = Listening.WORKER) -> None:
        self._socket: socket.socket | None = None
        self._sending: socket.socket | None = None  # another one, since ``wait`` lets the first one block
        self._subscribers: dict[bytes, float] = {}  # until when, by address
        self._wants_closed_time = self._has_news = self._wants_more = False
        listening = _open()
        if listening is None:
            return
        try:
            listening.bind(_address(directory, process))
        except OSError:
            listening.close()
            return
        self._socket, self._sending = listening, _open()

    @property
    def is_listening(self) -> bool:
        """False when notifications are not supported, or another process listens already."""
        return self._socket is not None

    @property
    def has_subscribers(self) -> bool:
        """Whether somebody waits for ``publish``."""
        now_s = time.monotonic()
        return any(until_s > now_s for until_s in tuple(self._subscribers.values()))

    def wait(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s``; return whether a notification or a new subscriber came. For one thread.

        It may return False early: a subscriber that goes on waiting is not news.
        """
        if self._socket is None:
            return False
        self._socket.settimeout(0.0 if self._has_news else timeout_s)
        with contextlib.suppress(TimeoutError, BlockingIOError):
            self._take(self._socket)
            self._socket.setblocking(False)
            for _ in range(_READ_MAX):
                self._take(self._socket)
        has_news, self._has_news = self._has_news, False
        return has_news

    def meet_subscribers(self) -> None:
        """Learn who has subscribed by now, so that ``publish`` notifies them. For the thread of ``wait``."""
        self._has_news = self.wait(0.0)

    def has_only_landed(self) -> bool:
        """Return whether all news since the last call of this was ``tell_landed``. For the thread of ``wait``."""
        more, self._wants_more = self._wants_more, False
        return not more

    def closed_time_wanted(self) -> bool:
        """Return whether ``ask_closed_time`` was called since the last call of this. For the thread of ``wait``."""
        wanted, self._wants_closed_time = self._wants_closed_time, False
        return wanted

    def publish(self) -> None:
        """Notify the subscribers. Safe for threads."""
        now_s = time.monotonic()
        for address, until_s in tuple(self._subscribers.items()):
            if until_s < now_s:
                self._subscribers.pop(address, None)
            elif self._sending is not None:
                with contextlib.suppress(OSError):  # it has ended, or its queue is full
                    self._sending.sendto(b"", address)

    def close(self) -> None:
        """Close the socket; do not call it during ``wait``. Idempotent."""
        for opened in (self._socket, self._sending):
            if opened is not None:
                opened.close()
        self._socket = self._sending = None

    def _take(self, listening: socket.socket) -> None:
        what, address = listening.recvfrom(1)
        self._wants_closed_time |= what == _CLOSED_TIME
        now_s = time.monotonic()
        is_news = not address or self._subscribers.get(address, 0.0) < now_s
        self._has_news |= is_news
        self._wants_more |= is_news and what != _LANDED
        if address and (address in self._subscribers or len(self._subscribers) < _SUBSCRIBERS_MAX):
            self._subscribers[address] = now_s + _SUBSCRIBED_S


class Subscriber:
    """Waits for what processes of this host publish. For one thread; ``close``, or use it as a context.

    Args:
        directory: the WAL directory; "" for no process, so that ``wait_for`` polls.
    """

    def __init__(self, directory: str, *processes: Listening) -> None:
        self._addresses = [_address(directory, process) for process in processes] if directory else []
        self._socket = _open() if self._addresses else None
        if self._socket is not None:
            self._socket.bind(b"")  # the kernel chooses an address
        self.address: bytes = b"" if self._socket is None else self._socket.getsockname()

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_for(self, check: Callable[[], bool], deadline_s: float) -> bool:
        """Call ``check`` at every notification, and now and then without one, until it returns True.

        Returns False once ``deadline_s`` (of the monotonic clock) has passed. ``check`` is called at least once.
        """
        pause_s = _POLL_FIRST_S
        while True:
            is_heard = self._subscribe()  # before the check, so that nothing is missed in between
            if check():
                return True
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            self._wait(min(left_s, _POLL_MAX_S if is_heard else pause_s))
            pause_s = min(pause_s * 1.5, _POLL_MAX_S)

    def close(self) -> None:
        """Close the socket. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _subscribe(self) -> bool:
        """Subscribe for a while; return whether all processes listen."""
        if self._socket is None:
            return False
        reached = 0
        self._socket.setblocking(False)
        for address in self._addresses:
            with contextlib.suppress(OSError):
                self._socket.sendto(b"", address)
                reached += 1
        return reached == len(self._addresses)

    def _wait(self, timeout_s: float) -> None:
        if self._socket is None:
            time.sleep(timeout_s)
            return
        self._socket.settimeout(timeout_s)
        with contextlib.suppress(OSError):  # also when nothing came in time
            self._socket.recv(1)
            self._socket.setblocking(False)
            for _ in range(_READ_MAX):
                self._socket.recv(1)
