"""Pending appends, and the steps in which they are queued."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from copy import copy
from dataclasses import dataclass
from typing import Any

from replication.core.definition.schema import TableSpec
from replication.core.position import Position
from replication.core.rows.batch import EncodedBatch, LogBatch
from replication.errors import ReplicationError, WaitTimeoutError

_STEP_BYTES = 512  # about what the objects of a queued step take in memory
_FUTURE_BYTES = 1536
_BATCH_BYTES = 2048
_VALUE_BYTES = 100


class PendingAppend:
    """One append. The commit thread acks or fails it once, after its last step.

    A future costs much more than a lock, so only asynchronous appends have one.
    """

    __slots__ = ("_done", "_is_finished", "error", "future", "on_done", "position")

    def __init__(self, future: Future[Position] | None = None) -> None:
        self._done = threading.Lock()
        self._done.acquire()
        self._is_finished = False
        self.future = future
        self.on_done: Callable[[], None] | None = None
        self.position: Position | None = None
        self.error: ReplicationError | None = None

    def reached(self, position: Position) -> None:
        """Note that a step of the append is durable at ``position``."""
        self.position = position if self.position is None else self.position.join(position)

    def finish(self) -> None:
        """Ack, or fail with ``error`` when any step failed. Idempotent: an aborted append may end twice."""
        if self._is_finished:
            return
        self._is_finished = True
        if self.on_done is not None:
            self.on_done()
        if self.future is not None:
            with contextlib.suppress(InvalidStateError):  # the caller has set the future
                if self.error is not None:
                    self.future.set_exception(self._failure(self.error))
                else:
                    self.future.set_result(self._result())
        self._done.release()

    def result(self, timeout_s: float) -> Position:
        """Wait for the ack.

        Raises:
            WaitTimeoutError: no ack came; the append may still become durable.
            ReplicationError: the append failed.
        """
        if not self._done.acquire(timeout=timeout_s):
            raise WaitTimeoutError(
                f"no ack within {timeout_s:g} s: the disk is slow or stuck; the append may still become durable",
                "Use a batch id: an append with one can be repeated safely",
            )
        if self.error is not None:
            raise self._failure(self.error)
        return self._result()

    def _failure(self, error: ReplicationError) -> ReplicationError:
        """The error for this append: that of its group, marked when steps of this append are durable."""
        if self.position is None:
            return error
        own = copy(error)
        own.is_partial = True
        return own

    def _result(self) -> Position:
        assert self.position is not None, "acked without a position"
        return self.position


@dataclass(frozen=True, slots=True)
class FewRows:
    """A few rows, not converted. The commit thread converts them together with the rows of other callers."""

    spec: TableSpec
    rows: Sequence[Mapping[str, Any]]
    delete: bool


@dataclass(frozen=True, slots=True)
class AppendStep:
    """One step of an append in the queue; ``size`` is its content's approximate size in bytes.

    The content is rows or a small log batch to merge with others, or an encoded batch, or a future of one. A flush
    and the end of an aborted append have no content.
    """

    append: PendingAppend
    size: int
    content: FewRows | LogBatch | EncodedBatch | Future[EncodedBatch] | None
    is_last: bool = False
    values: int = 0  # of few rows; a row counts as one more

    @property
    def memory(self) -> int:
        """About the bytes that the step takes in memory."""
        size = self.size + _VALUE_BYTES * self.values
        if self.append.future is not None:
            size += _FUTURE_BYTES
        if self.content is None:
            return size
        return size + _STEP_BYTES + (_BATCH_BYTES if isinstance(self.content, LogBatch) else 0)

    @property
    def is_ready(self) -> bool:
        """Whether the step can be merged without waiting for an encoder."""
        return not isinstance(self.content, Future) or self.content.done()
