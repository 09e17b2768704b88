"""The queue of append steps before the commit thread: bounded in bytes, taken in groups that share one sync."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from enum import Enum, auto

from replication.errors import BackpressureError, ReplicationError, RequestError, StorageError
from replication.writer.pending import AppendStep, PendingAppend

GROUP_BYTES = 8 << 20
GROUP_STEPS = 4096


class QueueState(Enum):
    """The state of the queue."""

    OPEN = auto()
    CLOSING = auto()  # refuses new steps; queued steps are written
    ENDED = auto()  # the commit thread has taken the last step
    FAILED = auto()  # the commit thread ended by an unexpected error


_NEXT = {
    QueueState.OPEN: (QueueState.CLOSING, QueueState.FAILED),
    QueueState.CLOSING: (QueueState.ENDED, QueueState.FAILED),
    QueueState.ENDED: (QueueState.FAILED,),
    QueueState.FAILED: (),
}


class AppendQueue:
    """A queue that callers' threads fill and the commit thread empties.

    Args:
        bytes_max: the maximum bytes of memory for what is queued or being written; ``put`` blocks beyond it.
        timeout_s: how long ``put`` blocks at most.
    """

    def __init__(self, bytes_max: int, timeout_s: float) -> None:
        self._bytes_max = bytes_max
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._waiting: deque[threading.Condition] = deque()  # for space, in turn: small steps do not pass a large one
        self._steps: deque[AppendStep] = deque()
        self._bytes = 0
        self._state = QueueState.OPEN
        self._failure = ""

    def __len__(self) -> int:
        return len(self._steps)

    def put(self, step: AppendStep) -> None:
        """Queue a step.

        Raises:
            BackpressureError: the queue stayed full for ``timeout_s``; the step was not queued.
            RequestError: the writer is closed.
            StorageError: the commit thread has ended by an unexpected error.
        """
        with self._lock:
            if self._waiting and step.memory or not self._fits(step):
                self._wait_for_space(step)
            if self._state is QueueState.FAILED:
                raise self.failure()
            if self._state is not QueueState.OPEN:
                raise RequestError("the writer is closed", "Connect again")
            self._steps.append(step)
            self._bytes += step.memory
            if len(self._steps) == 1:
                self._work.notify()

    def put_end(self, append: PendingAppend) -> bool:
        """Queue the last step of an aborted append, without blocking; return False if the commit thread has ended."""
        with self._lock:
            if self._state in (QueueState.ENDED, QueueState.FAILED):
                return False
            step = AppendStep(append, 0, None, is_last=True)
            self._steps.append(step)
            self._bytes += step.memory
            self._work.notify()
            return True

    def take(self, idle_s: float) -> list[AppendStep] | None:
        """Take the next group of steps; None when the queue is closed and empty.

        Args:
            idle_s: how long to wait for a step; 0 while steps taken before are not acked.
        """
        with self._lock:
            if idle_s and not self._steps and self._state is QueueState.OPEN:
                self._work.wait(idle_s)
            if not self._steps:
                if not idle_s or self._state is QueueState.OPEN:
                    return []
                self._become(QueueState.ENDED)
                return None
            taken: list[AppendStep] = []
            size = 0
            while self._steps and len(taken) < GROUP_STEPS:
                head = self._steps[0]
                if taken and (size + head.size > GROUP_BYTES or not head.is_ready):
                    break
                taken.append(self._steps.popleft())
                size += head.size
            return taken

    def release(self, steps: Sequence[AppendStep]) -> None:
        """Free the space of taken steps, after they were written or refused."""
        with self._lock:
            self._bytes -= sum(step.memory for step in steps)
            self._wake_next()

    def close(self) -> None:
        """Refuse new steps from now on. Idempotent."""
        with self._lock:
            if self._state is QueueState.OPEN:
                self._become(QueueState.CLOSING)
            self._work.notify()
            self._wake_all()

    def fail(self, error: BaseException) -> list[AppendStep]:
        """Refuse new steps because of ``error``; return the queued steps."""
        with self._lock:
            self._become(QueueState.FAILED)
            self._failure = repr(error)
            queued = list(self._steps)
            self._steps.clear()
            self._bytes = 0
            self._wake_all()
            return queued

    def failure(self) -> ReplicationError:
        """Return the error for callers after ``fail``."""
        return StorageError(
            f"the writer has failed: {self._failure}; appends under way may or may not be durable", "Connect again"
        )

    def _become(self, state: QueueState) -> None:
        assert state in _NEXT[self._state], f"{self._state.name} does not become {state.name}"
        self._state = state

    def _fits(self, step: AppendStep) -> bool:
        return self._bytes == 0 or self._bytes + step.memory <= self._bytes_max

    def _wait_for_space(self, step: AppendStep) -> None:
        deadline = time.monotonic() + self._timeout_s
        turn = threading.Condition(self._lock)
        self._waiting.append(turn)
        try:
            while self._state is QueueState.OPEN and not (self._waiting[0] is turn and self._fits(step)):
                if not turn.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    raise BackpressureError(
                        f"{self._bytes} bytes wait for the disk, and there was no room for more within"
                        f" {self._timeout_s:g} s",
                        "The disk is slow, stuck or full; append again later. Parts of a large append may be written:"
                        " with a batch id, repeating it is safe",
                    )
        finally:
            self._waiting.remove(turn)
            self._wake_next()

    def _wake_next(self) -> None:
        if self._waiting:
            self._waiting[0].notify()

    def _wake_all(self) -> None:
        for turn in self._waiting:
            turn.notify()
