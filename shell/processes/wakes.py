"""What a supervisor sleeps for: signals, the end of a child or of its lifeline, and whoever connects to its socket.

All in one thread, so that the process can be forked at any time.
"""

from __future__ import annotations

import math
import os
import select
import signal
from collections.abc import Callable

from shell.processes.stopping import DETACH

_STOPPING = (signal.SIGINT, signal.SIGTERM)


class Wakes:
    """Waits for all of them; a context, for the main thread. It ends by SIGINT, SIGTERM or the end of the lifeline.

    Args:
        lifeline: file descriptor of a pipe from whoever started this process, or None.
    """

    def __init__(self, lifeline: int | None) -> None:
        self._lifeline = lifeline
        self._poll = select.poll()
        self._calls: dict[int, Callable[[], None]] = {}
        self._stopping = False
        self._child_ended: Callable[[], None] = lambda: None

    def __enter__(self) -> Wakes:
        """Handle signals."""
        self._readable, self._writable = os.pipe()
        os.set_blocking(self._readable, False)
        os.set_blocking(self._writable, False)
        self.call_when_readable(self._readable, self._signalled)
        if self._lifeline is not None:
            self.call_when_readable(self._lifeline, self._lifeline_spoke)
        # Python calls a handler only after a poll that begins right after the signal; this descriptor ends that poll
        self._woken_before = signal.set_wakeup_fd(self._writable, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._handle) for number in (*_STOPPING, signal.SIGCHLD)}
        return self

    def __exit__(self, *_: object) -> None:
        """Handle them as before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._woken_before)
        os.close(self._readable)
        os.close(self._writable)

    def call_when_readable(self, descriptor: int, call: Callable[[], None]) -> None:
        """Have ``wait`` call ``call`` whenever there is something to read or accept, or the other end has gone."""
        self._calls[descriptor] = call
        self._poll.register(descriptor, select.POLLIN)

    def call_when_child_ended(self, call: Callable[[], None]) -> None:
        """Have ``wait`` call ``call`` after one or more children have ended."""
        self._child_ended = call

    def wait(self, timeout: float | None = None) -> bool:
        """Whether to stop: True as soon as that is so; False after ``timeout`` seconds, or once anything happened."""
        if not self._stopping:
            for descriptor, _ in self._poll.poll(None if timeout is None else math.ceil(timeout * 1000)):
                self._calls[descriptor]()
        return self._stopping

    def _handle(self, number: int, _: object) -> None:
        self._stopping |= number in _STOPPING  # also when the pipe is full of earlier signals

    def _signalled(self) -> None:
        signalled = os.read(self._readable, 4096)
        self._stopping |= any(number in _STOPPING for number in signalled)
        if signal.SIGCHLD in signalled:
            self._child_ended()

    def _lifeline_spoke(self) -> None:
        assert self._lifeline is not None
        if os.read(self._lifeline, 1) == DETACH:
            self._poll.unregister(self._lifeline)
        else:
            self._stopping = True
