"""Apply bootstraps that have arrived completely: claim their rows, then commit them in one snapshot."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar
from uuid import UUID

from peer.bootstrap.decode import plan_bootstrap
from peer.bootstrap.purged import is_awaited, purged_of, tombstone_rows
from peer.bootstrap.received import ReceivedBootstrap, ReceivedBootstraps
from peer.frames.hosts import HostReader, Hosts
from peer.replay.commit import TableReplay
from peer.replay.context import ReplayContext
from peer.replay.held_tables import HeldTables, retry_wait
from peer.replay.open_tables import OpenTables
from peer.replay_report import AWAITS, TAKING
from replication import log
from replication.core.ids import FileId
from replication.ledger.base import Pending
from replication.retries import Backoff
from replication.wall_clock import now_us

_PROMPT_S = 1.0  # a round waits so long for a bootstrap
_R = TypeVar("_R")
_log = log.get(__name__)


@dataclass(slots=True)
class BootstrapRound:
    """What a round did for bootstraps."""

    frames: int = 0
    tables: int = 0
    held: dict[str, str] = field(default_factory=dict)  # why they wait, by the name of the table or file


class BootstrapReplay:
    """Applies bootstraps one after another. For one thread.

    One that takes long goes on beside the rounds. Its table is held back meanwhile; other tables are not delayed.

    Args:
        fail: closes a table after an error and holds it back; raises an error that ends the replayer.
        pool: a thread of it applies a bootstrap; None applies it in the round.
    """

    def __init__(
        self,
        context: ReplayContext,
        tables: OpenTables,
        held: HeldTables,
        fail: Callable[[UUID, Exception], None],
        pool: ThreadPoolExecutor | None,
    ) -> None:
        self._context = context
        self._tables = tables
        self._held = held
        self._fail = fail
        self._pool = pool
        self._received = ReceivedBootstraps()
        self._failed: dict[UUID, tuple[Backoff, str]] = {}  # by table, and why
        self._waits: dict[FileId, Backoff] = {}  # of those that wait for frames, by their first file
        self._running: tuple[ReceivedBootstrap, Future[bool]] | None = None

    def round(self, reader: HostReader, pending: list[Pending], hosts: Hosts) -> BootstrapRound:
        """Apply those of the ``pending`` ranges that have arrived completely, or go on with one."""
        result = BootstrapRound()
        if self._end(0.0, result) or not pending:  # of one that has ended, ``pending`` may have ranges still
            return result
        whole, broken = self._received.whole(reader, pending)
        result.held |= {f"file {file.local}": reason for file, reason in broken.items()}
        routes = {(route.source, route.table) for route in self._context.ledger.landing.routes()}
        ended = self._received.ended(reader, pending, routes)
        for table, ranges in ended.items():  # first: once a later one is taken, nothing shows that it was replaced
            if self._may(table, result):
                self._settle(table, partial(self._pass_ended, table, ranges, hosts))
        for received in whole:
            if not self._waits.get(min(received.ranges), Backoff()).due(time.monotonic()):
                result.held[self._tables.name(received.table)] = AWAITS
            elif self._running is None and self._may(received.table, result):
                self._running = received, self._start(partial(self._take, received, hosts))
                self._end(_PROMPT_S, result)
        if self._running is not None and self._running[0].table not in self._held:
            self._held.occupy(self._running[0].table, TAKING)
        return result

    def _end(self, wait_s: float, result: BootstrapRound) -> bool:
        """End the bootstrap that is being applied, if it is done within ``wait_s``; return whether it ended."""
        if self._running is None or not wait([self._running[1]], wait_s).done:
            return False
        received, future = self._running
        self._running = None
        taken = self._settle(received.table, future.result)
        if taken is not None and received.table in self._held:
            self._held.retry_now(received.table)  # for frames that have come since
        waited = self._waits.pop(min(received.ranges), Backoff())
        if taken:
            result.frames += len(received.rows)
            result.tables += 1
        elif taken is not None:
            self._waits[min(received.ranges)] = waited.failed(time.monotonic(), retry_wait)
            result.held[self._tables.name(received.table)] = AWAITS
        return True

    def _may(self, table: UUID, result: BootstrapRound) -> bool:
        """Whether to try a table now. After failures it is tried more and more rarely; its frames go on meanwhile."""
        failed, reason = self._failed.get(table, (Backoff(), ""))
        if table not in self._held and failed.due(time.monotonic()):
            return True
        if reason:
            result.held[self._tables.name(table)] = reason
        return False

    def _settle(self, table: UUID, act: Callable[[], _R]) -> _R | None:
        """Return what ``act`` returns for a table; None when it failed and the table is held."""
        failed, _ = self._failed.pop(table, (Backoff(), ""))
        try:
            return act()
        except Exception as error:
            self._fail(table, error)
            self._failed[table] = failed.failed(time.monotonic(), retry_wait), self._held.reasons()[table]
            return None

    def _start(self, act: Callable[[], bool]) -> Future[bool]:
        if self._pool is not None:
            return self._pool.submit(act)
        done: Future[bool] = Future()
        try:
            done.set_result(act())
        except Exception as error:
            done.set_exception(error)
        return done

    def _take(self, received: ReceivedBootstrap, hosts: Hosts) -> bool:
        replay = self._tables.open(received.table, ((file, begin) for file, (begin, _) in received.ranges.items()))
        if replay is None:
            self._tables.pass_dropped(received.table, received.ranges)
            return True
        return take_bootstrap(self._context, replay, received, hosts)

    def _pass_ended(self, table: UUID, ranges: Mapping[FileId, tuple[int, int]], hosts: Hosts) -> None:
        replay = self._tables.open(table) if ranges else None
        if replay is not None:
            replay.apply([], ranges, hosts)  # they count as applied, so that their files can go
            _log.warning("bootstrap_ended_incomplete", table=replay.spec.name, files=len(ranges))
        elif ranges:
            self._tables.pass_dropped(table, ranges)


def take_bootstrap(context: ReplayContext, replay: TableReplay, received: ReceivedBootstrap, hosts: Hosts) -> bool:
    """Claim the rows that no other source has claimed, and commit exactly those.

    Returns False when frames that landed earlier must be replayed first. The commit is durable; after a crash the
    snapshot's commit metadata shows it.

    Raises:
        CommitConflictError: another process committed rows first; only the claims were changed.
        PoisonFrameError: a frame of it cannot be decoded.
    """
    spec, ledger = replay.spec, context.ledger
    claimed = ledger.bootstraps.adopt([(at.file, at.begin, at.end, coverage) for at, coverage in received.coverages])
    versions = ledger.tables.schemas(received.table)
    if purged := purged_of(received):
        if is_awaited(ledger, received, claimed):
            return False
        ledger.bootstraps.note_purged(spec.uuid, purged)
        for tombstones in tombstone_rows(context.tables, spec, versions, received, hosts, context.scratch):
            replay.write_tombstones(tombstones)
            _log.info("purged_deletes_restored", table=spec.name, rows=tombstones.num_rows)
    now = now_us()
    replay.take(
        lambda number: plan_bootstrap(spec, versions, received, claimed, number, context.tables.parallel, now, hosts),
        received.ranges,
    )
    _log.info("bootstrap_taken", table=spec.name, frames=len(received.rows), streams=len(claimed))
    return True
