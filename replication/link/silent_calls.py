"""Ends calls on which nothing comes. One thread looks at all of them: a timer of its own would delay each call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from replication import log

_log = log.get(__name__)


class SilentCalls:
    """Calls that wait for a message. Safe for threads; its thread ends once no call has waited for a while."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[object, tuple[float, Callable[[], object]]] = {}
        self._looks_s = 0.0  # when the thread looks again, of the monotonic clock; 0 without a thread

    @contextmanager
    def ended_after(self, timeout_s: float, end: Callable[[], object]) -> Iterator[None]:
        """Call ``end`` if the block takes longer than ``timeout_s``."""
        call, due_s = object(), time.monotonic() + timeout_s
        with self._changed:
            self._waiting[call] = due_s, end
            if not self._looks_s:
                threading.Thread(target=self._run, name="silent calls", daemon=True).start()
                self._looks_s = due_s
            elif due_s < self._looks_s:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._waiting.pop(call, None)

    def _run(self) -> None:
        while ends := self._due():
            for end in ends:
                try:
                    end()
                except Exception as error:  # else nobody would end the calls after it
                    _log.warning("silent_call_not_ended", error=repr(error))

    def _due(self) -> list[Callable[[], object]]:
        """Wait until calls are due and return how they end; nothing when no call waits."""
        with self._changed:
            while self._waiting:
                now_s = time.monotonic()
                due = [call for call, (due_s, _) in self._waiting.items() if due_s <= now_s]
                if due:
                    return [self._waiting.pop(call)[1] for call in due]
                self._looks_s = min(due_s for due_s, _ in self._waiting.values())
                self._changed.wait(self._looks_s - now_s)
            self._looks_s = 0.0
            return []
