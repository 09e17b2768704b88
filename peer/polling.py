"""Looking again and again, up to a time limit, for what nothing tells of."""

from __future__ import annotations

import time
from collections.abc import Iterator


def polls(timeout_s: float, poll_s: float) -> Iterator[None]:
    """Yield at once, then every ``poll_s`` seconds: the caller looks, and returns when it finds what it waits for.

    The iterator ends when a look is over later than ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        yield
        if time.monotonic() > deadline:
            return
        time.sleep(poll_s)
