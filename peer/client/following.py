"""A handle that follows the ACTIVE cluster over role changes: ``connect(…, follow=True)``.

A refused append is sent again to the successor, in the order of the calls. Nothing of it was published where it was
refused, except for earlier frames of a large one. So a large append to a table without a key needs a batch id, by which
only what is missing is written.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from peer.client.cluster import Cluster
from peer.client.search import ActiveSearch, OpenedCluster
from replication import log
from replication.core.arrow import pa
from replication.core.position import Position
from replication.core.roles import Role
from replication.core.rows.input import kept
from replication.errors import (
    BackpressureError,
    CoordinationError,
    ReadOnlyClusterError,
    ReplicationError,
    RequestError,
)

_MAKE_ACTIVE = "To make one ACTIVE, there: walship readonly off; if the last one is lost: walship failover CLUSTER"
_POLL_S = 0.25
_READ_CHECK_S, _READ_CHECK_MAX_S = 1.0, 10.0
_TRIES = 8
_WAITING_MAX = 4096
_P = ParamSpec("_P")
_R = TypeVar("_R")
_log = log.get(__name__)


@dataclass(order=True, slots=True)
class _Sent:
    """An asynchronous append: its place in the order of calls, the caller's future, how it is sent, its refusals."""

    number: int
    future: Future[Position] = field(compare=False)
    send: Callable[[], Future[Position]] = field(compare=False)
    is_repeatable: Callable[[CoordinationError], bool] = field(compare=False)
    error: CoordinationError | None = field(default=None, compare=False)
    tries: int = field(default=0, compare=False)


def _followed(method: Callable[Concatenate[Any, _P], _R]) -> Callable[Concatenate[Any, _P], _R]:
    """A method of ``Cluster`` that is called again on the successor when this cluster refuses it."""

    @wraps(method)
    def call(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        followed: FollowingCluster = self
        return followed.again(lambda: method(self, *args, **kwargs))

    return call


def _read_there(method: Callable[Concatenate[Any, _P], _R]) -> Callable[Concatenate[Any, _P], _R]:
    """A method of ``Cluster`` that reads, from the ACTIVE cluster; while there is none, from the last one."""

    @wraps(method)
    def call(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        followed: FollowingCluster = self
        followed.follow_if_due()
        return method(self, *args, **kwargs)

    return call


class FollowingCluster(Cluster):
    """As ``Cluster``, of whichever cluster is ACTIVE: ``name``, ``ledger`` and the rest are of that one.

    Positions that were returned before a move stay valid: ``wait`` waits for them on the cluster of now. After a
    failover, those of lost writes are never reached.

    A call that writes waits for ``writer.append_timeout_s`` for a cluster to be ACTIVE. Then it raises why it was
    refused, with what was found at each cluster.
    """

    def __init__(self, place: OpenedCluster, open_at: Callable[[str], OpenedCluster]) -> None:
        self.config, self._opened = place.config, place.parts
        self._open_at = open_at
        self._newest = 0
        self._moves = 0
        self._moving = threading.Lock()
        self._past: OpenedCluster | None = None
        self._check_at_s = 0.0
        self._closing = threading.Event()
        self._order = threading.Condition()
        self._number = 0
        self._starting = 0  # appends on their way to the writer; the resender waits until there are none
        self._waiting: list[_Sent] = []
        self._resender: threading.Thread | None = None

    create_table = _followed(Cluster.create_table)
    alter_table = _followed(Cluster.alter_table)
    set_table = _followed(Cluster.set_table)
    derive_table = _followed(Cluster.derive_table)
    drop_table = _followed(Cluster.drop_table)
    restate = _followed(Cluster.restate)
    read = _read_there(Cluster.read)
    sql = _read_there(Cluster.sql)

    def close(self) -> None:
        """See ``Cluster``. Appends that wait for an ACTIVE cluster fail."""
        if threading.current_thread() is self._resender:
            raise RequestError("a callback of an append cannot close the handle", "Close it in another thread")
        for place in filter(None, (self._here(), self._past)):
            place.parts.check_may_close()
        with self._order:
            self._closing.set()
            resender = self._resender
        if resender is not None:
            resender.join()
        super().close()
        if self._past is not None:
            self._past.parts.close()

    def go_to_active(self) -> None:
        """Move to the ACTIVE cluster, unless it is this one. Raises ReadOnlyClusterError as the class says."""
        try:
            if self.coordination.role().state.role is Role.ACTIVE:
                return
            error = CoordinationError(f"cluster {self.name} is STANDBY")
        except CoordinationError as silent:
            error = silent
        self._move(self._moves, error, self._deadline())

    def again(self, call: Callable[[], _R], repeatable: Callable[[CoordinationError], bool] = lambda _: True) -> _R:
        """Call; when it is refused since the cluster is not ACTIVE, move and call again.

        Raises:
            ReadOnlyClusterError: no cluster is ACTIVE; or the call cannot be repeated, and the handle has moved.
        """
        deadline = self._deadline()
        for left in reversed(range(_TRIES)):
            self._await_resent(deadline)
            moves = self._moves
            try:
                return call()
            except CoordinationError as error:
                if not left:
                    raise
                self._move(moves, error, deadline)
                if not repeatable(error):
                    raise self._unrepeatable(error) from error
        raise AssertionError("the last try returns or raises")

    def upsert(self, table: str, rows: object, batch_id: str | None = None) -> Position:
        """See ``Cluster``."""
        send = partial(super().upsert, table, rows, batch_id)
        return self.again(send, partial(self._is_repeatable, table, rows, batch_id))

    def delete(self, table: str, keys: object) -> Position:
        """See ``Cluster``."""
        return self.again(partial(super().delete, table, keys), partial(self._is_repeatable, table, keys, None))

    def apply(self, table: str, mutations: Any) -> Position:
        """See ``Cluster``."""
        return self.again(
            partial(super().apply, table, mutations), partial(self._is_repeatable, table, mutations, None)
        )

    def import_files(self, table: str, paths: str | Path | Iterable[str | Path], **options: Any) -> Position:
        """See ``Cluster``."""
        files = paths if isinstance(paths, str | Path) else list(paths)
        batch_id = None if options.get("again") else "of each file"
        send = partial(super().import_files, table, files, **options)
        return self.again(send, partial(self._is_repeatable, table, files, batch_id))

    def upsert_async(self, table: str, rows: object, batch_id: str | None = None) -> Future[Position]:
        """See ``Cluster``. An append that cannot be repeated, as of a stream, fails at a role change."""
        return self._send(super().upsert_async, table, kept(rows), batch_id)

    def delete_async(self, table: str, keys: object) -> Future[Position]:
        """See ``Cluster``."""
        return self._send(super().delete_async, table, kept(keys), None)

    def apply_async(self, table: str, mutations: Any) -> Future[Position]:
        """See ``Cluster``."""
        return self._send(super().apply_async, table, kept(mutations), None)

    def _deadline(self) -> float:
        return time.monotonic() + self.config.writer.append_timeout_s

    def _here(self) -> OpenedCluster:
        return OpenedCluster(self.config, self._opened)

    def _move(self, moves: int, error: CoordinationError, deadline: float) -> None:
        """Move to the ACTIVE cluster, unless another thread has moved since ``moves``. Returns where it is this one."""
        with self._moving:
            while self._moves == moves:
                search = ActiveSearch(self._open_at, self._newest)
                found = search.run(self._here())
                if found is not None:
                    self._adopt(found)
                    if self._moves == moves:
                        self._closing.wait(_POLL_S)  # its writers are about to know that it is ACTIVE
                    return
                if self._closing.is_set() or time.monotonic() > deadline:
                    notes = "; ".join(dict.fromkeys(search.notes))
                    raise ReadOnlyClusterError(
                        f"no cluster takes writes: {notes}",
                        f"{error.what}. {_MAKE_ACTIVE}",
                    ) from error
                self._closing.wait(_POLL_S)

    def _adopt(self, found: OpenedCluster) -> None:
        self._newest = max(self._newest, found.epoch)
        if found.parts is self._opened:
            return
        past, self._past = self._past, self._here()
        if past is not None:
            past.parts.close()
        self.config, self._opened = found.config, found.parts
        self._moves += 1
        _log.info("cluster_followed", cluster=found.name, before=self._past.name, epoch=found.epoch)

    def follow_if_due(self) -> None:
        """Before a read: move if the cluster is ACTIVE no more and another one is. Not each time."""
        now = time.monotonic()
        if now < self._check_at_s:
            return
        self._check_at_s = now + _READ_CHECK_MAX_S
        pause_s = _READ_CHECK_S if self._is_active() or self._has_moved() else _READ_CHECK_MAX_S
        self._check_at_s = time.monotonic() + pause_s  # from its end: where nobody answers, it takes as long

    def _is_active(self) -> bool:
        with suppress(ReplicationError):
            return self.coordination.role().state.role is Role.ACTIVE
        return False

    def _has_moved(self) -> bool:
        """Move to the ACTIVE cluster if there is one; not while a call that writes waits for it."""
        if not self._moving.acquire(blocking=False):
            return False
        try:
            found = ActiveSearch(self._open_at, self._newest).run(self._here())
            if found is not None:
                self._adopt(found)
            return found is not None
        except ReplicationError:
            return False
        finally:
            self._moving.release()

    def _is_repeatable(self, table: str, rows: object, batch_id: str | None, error: CoordinationError) -> bool:
        """Whether the rows can be read again, and what is durable of them is not written twice."""
        read_once = isinstance(rows, Iterator | pa.RecordBatchReader)
        return not read_once and (batch_id is not None or not error.is_partial or bool(self.table(table).key))

    def _unrepeatable(self, error: CoordinationError) -> ReadOnlyClusterError:
        return ReadOnlyClusterError(
            f"{error.what}. {self.name} is ACTIVE, but these rows were read from a stream, or are of a table without a"
            " key and partly written, so they are not sent again",
            "Repeat the append; with a batch id, or an import without again, only what is missing is written",
        )

    def _send(
        self, send: Callable[..., Future[Position]], table: str, rows: object, batch_id: str | None
    ) -> Future[Position]:
        """Send an asynchronous append; behind those that wait, if any do."""
        future: Future[Position] = Future()
        future.set_running_or_notify_cancel()
        given = (table, rows) if batch_id is None else (table, rows, batch_id)
        timeout_s = self.config.writer.append_timeout_s
        with self._order:
            if not self._order.wait_for(lambda: len(self._waiting) < _WAITING_MAX, timeout_s):
                raise BackpressureError(f"{_WAITING_MAX} appends wait for an ACTIVE cluster", "Try again later")
            self._number += 1
            repeatable = partial(self._is_repeatable, table, rows, batch_id)
            sent = _Sent(self._number, future, partial(send, *given), repeatable)
            if self._resender is not None:
                self._waiting.append(sent)
                return future
            self._starting += 1
        try:
            self._start(sent)
        finally:
            with self._order:
                self._starting -= 1
                self._order.notify_all()
        return future

    def _start(self, sent: _Sent) -> None:
        """Send it. Raises what the call raises, but for a refusal: then it waits."""
        try:
            sent.send().add_done_callback(partial(self._done, sent))
        except CoordinationError as error:
            self._postpone(sent, error)

    def _done(self, sent: _Sent, done: Future[Position]) -> None:
        error = done.exception()
        if isinstance(error, CoordinationError):
            self._postpone(sent, error)
        elif error is not None:
            sent.future.set_exception(error)
        else:
            sent.future.set_result(done.result())

    def _postpone(self, sent: _Sent, error: CoordinationError) -> None:
        with self._order:
            is_closing = self._closing.is_set()
            if not is_closing:
                sent.error = error
                self._waiting.append(sent)
                if self._resender is None:
                    self._resender = threading.Thread(target=self._resend, name="resend", daemon=True)
                    self._resender.start()
        if is_closing:
            sent.future.set_exception(error)

    def _resend(self) -> None:
        """Move, and send what waits in the order of the calls. The thread ends when nothing waits."""
        while True:
            with self._order:
                self._order.wait_for(lambda: not self._starting)
            with suppress(Exception):  # an error that nobody foresaw must not end the thread
                self._opened.writer.flush()  # so that everything that is refused here waits by then
            with self._order:
                first = min(self._waiting)
            failure: Exception | None = None
            if first.error is not None:  # else it came while others were sent again
                try:
                    self._move(self._moves, first.error, self._deadline())
                except Exception as error:
                    failure = error
            with self._order:
                batch = sorted(self._waiting)
                self._waiting.clear()
            for sent in batch:
                self._send_again(sent, failure)
            with self._order:
                self._order.notify_all()
                if not self._waiting:
                    self._resender = None
                    return

    def _send_again(self, sent: _Sent, failure: Exception | None) -> None:
        sent.tries += 1
        error = sent.error
        try:
            if failure is not None:
                raise failure
            if error is not None and not sent.is_repeatable(error):
                raise self._unrepeatable(error)
            if error is not None and sent.tries > _TRIES:
                raise error
            self._start(sent)
        except Exception as failed:  # also what the caller's iterator of rows raises
            sent.future.set_exception(failed)

    def _await_resent(self, deadline: float) -> None:
        """Wait until asynchronous appends of before were sent again, so that the order of calls is kept."""
        with self._order:
            if not self._order.wait_for(lambda: self._resender is None, max(0.0, deadline - time.monotonic())):
                raise ReadOnlyClusterError(
                    "earlier appends still wait for an ACTIVE cluster",
                    _MAKE_ACTIVE,
                )
