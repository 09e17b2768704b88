"""How tests wait: for a condition, as short as it takes, and never for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

_PAUSES_S = (0.002, 0.005, 0.01, 0.02)
_LONGEST_PAUSE_S = 0.5


def wait_until(
    condition: Callable[[], Any],
    *,
    timeout_s: float = 300.0,
    what: str = "the condition",
    despite: type[Exception] | tuple[type[Exception], ...] = (),
) -> Any:
    """Wait until ``condition`` returns something true, and return that.

    Args:
        condition: asked at once, and then ever more rarely: up to 50 times a second, and a third of the time at most,
            so that a costly question does not slow down what it waits for.
        timeout_s: how long to wait at most. A test that passes never waits so long, so let it be generous.
        what: named in the error.
        despite: exceptions of ``condition`` that mean "not yet".

    Raises:
        AssertionError: the condition did not come true in time.
    """
    deadline, pause, asked = time.monotonic() + timeout_s, threading.Event(), 0
    while True:
        began = time.monotonic()
        try:
            if found := condition():
                return found
        except despite as error:
            last = f"; last {type(error).__name__}: {error}"
        else:
            last = ""
        assert time.monotonic() < deadline, f"{what} did not come true within {timeout_s} s{last}"
        took = time.monotonic() - began
        pause.wait(max(_PAUSES_S[min(asked // 4, len(_PAUSES_S) - 1)], min(2 * took, _LONGEST_PAUSE_S)))
        asked += 1
