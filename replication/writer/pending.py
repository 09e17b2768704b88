"""Tickets: appends on their way to the disk, and what they become when they are there."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any

from replication.core.definition.schema import TableSpec
from replication.core.position import Position
from replication.core.rows.batch import LogBatch
from replication.core.rows.encoded import EncodedBatch
from replication.errors import ReplicationError, WaitTimeoutError


class PendingAppend:
    """One append; acked or failed exactly once, by the commit thread, when its last entry is dealt with.

    A future costs much more than a lock, so there is one only when it is asked for.
    """

    __slots__ = ("_done", "_future", "_is_finished", "_on_done", "error", "position")

    def __init__(self, future: Future[Position] | None = None, on_done: Callable[[], None] | None = None) -> None:
        self._done = threading.Lock()
        self._done.acquire()
        self._future = future
        self._on_done = on_done
        self._is_finished = False
        self.position: Position | None = None
        self.error: ReplicationError | None = None

    @property
    def is_future(self) -> bool:
        """Whether the caller goes on without waiting."""
        return self._future is not None

    def reached(self, position: Position) -> None:
        """A part of the append is durable at ``position``."""
        self.position = position if self.position is None else self.position.join(position)

    def finish(self) -> None:
        """Ack, or fail with ``error`` when any part did. Idempotent: one cut short as it was queued may end twice."""
        if self._is_finished:
            return
        self._is_finished = True
        if self._on_done is not None:
            self._on_done()
        if self._future is not None:
            with contextlib.suppress(InvalidStateError):  # the caller has set it
                if self.error is not None:
                    self._future.set_exception(self.error)
                else:
                    self._future.set_result(self._result())
        self._done.release()

    def result(self, timeout_s: float) -> Position:
        """Wait for the ack.

        Raises:
            WaitTimeoutError: no ack came; the append may still become durable.
            ReplicationError: what it failed with.
        """
        if not self._done.acquire(timeout=timeout_s):
            raise WaitTimeoutError(
                f"no ack within {timeout_s:g} s: the disk is slow or stuck; the append may still become durable",
                "Append with a batch id to make repeating it harmless",
            )
        if self.error is not None:
            raise self.error
        return self._result()

    def _result(self) -> Position:
        assert self.position is not None, "acked without a position"
        return self.position


@dataclass(frozen=True, slots=True)
class FewRows:
    """A few rows as given, to be made one batch together with others."""

    spec: TableSpec
    rows: Sequence[Mapping[str, Any]]
    delete: bool


@dataclass(frozen=True, slots=True)
class AppendStep:
    """One step of an append in the queue: rows or a small batch to merge, or a part, maybe still being encoded.

    A flush has no content.
    """

    ticket: PendingAppend
    size: int
    last: bool
    content: FewRows | LogBatch | EncodedBatch | Future[EncodedBatch] | None

    @property
    def ready(self) -> bool:
        """Whether it can be merged without waiting for an encoder."""
        return not isinstance(self.content, Future) or self.content.done()
