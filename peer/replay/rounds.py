"""Replay rounds: registered ranges become rows. All tables are decoded as one job, and committed one by one.

One pass per round serves all tables. A table that fails leaves that pass. It is tried again with backoff in a pass of
its own, and returns to the shared pass when it has caught up. Other tables are not delayed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar
from uuid import UUID

from peer.frames.host_watch import HostWatch
from peer.frames.hosts import HostReader, Hosts
from peer.frames.select import ReplaySelection, Selector, split_by_kind
from peer.replay.bootstraps import BootstrapReplay
from peer.replay.commit import TableReplay
from peer.replay.context import ReplayContext
from peer.replay.held_tables import HeldTables, PositionsMovedError
from peer.replay.open_tables import OpenTables
from replication import log
from replication.core.ids import NIL_UUID, FileId
from replication.errors import HostAwayError, ReplicationError, StorageError
from replication.ledger.base import Pending, ReplayCheckpoint
from replication.tables.base import Decode, Staged

_CHECKED, _CHECKED_IDLE = 5, 50  # tables a round, of 2 ms each
_NAMED = 5  # tables in a job's title
_R = TypeVar("_R")
_log = log.get(__name__)


@dataclass(slots=True)
class RoundResult:
    """The result of one round."""

    frames: int = 0
    tables: int = 0
    seconds: float = 0.0
    more: bool = False
    pending: bool = False  # something was to be applied
    unchecked: bool = False  # some tables are not checked for lost commits yet
    held: dict[str, str] = field(default_factory=dict)  # reason by table name, or by file


@dataclass(frozen=True, slots=True)
class _Plan:
    """A table that is open, and what is decoded for its next commit."""

    replay: TableReplay
    decode: Decode


class Replayer:
    """One cluster's replay under one epoch. For one thread.

    Args:
        others: the other hosts, looked up once a round; None for a cluster of one host.
        parallel: how many tables are committed at the same time.
        round_bytes: about how many bytes of frames a round takes; None leaves it to the warehouse.

    Attributes:
        hosts: the hosts as of the last round.
        held: the tables that are held back.
    """

    def __init__(
        self,
        context: ReplayContext,
        others: HostWatch | None = None,
        *,
        parallel: int = 4,
        round_bytes: int | None = None,
    ) -> None:
        self.hosts = Hosts()
        self.held = HeldTables()
        self._context = context
        self._others = others
        self._round_bytes = round_bytes
        self._tables = OpenTables(context)
        self._unchecked: list[UUID] | None = None  # after a start every table is checked once
        self._without_commits: set[UUID] = set()
        self._passed: dict[FileId, int] = {}
        self._broken: dict[FileId, ReplicationError] = {}
        self._pool = ThreadPoolExecutor(parallel, thread_name_prefix="replay") if parallel > 1 else None
        self._bootstraps = BootstrapReplay(context, self._tables, self.held, self._fail, self._pool)

    def close(self) -> None:
        """Stop the threads."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def round(self) -> RoundResult:
        """Apply what is pending, up to about ``round_bytes``.

        Raises:
            SupersededError: a newer replayer has taken over; this one must end.
            EngineLostError: the Spark session is gone; this process must end.
        """
        started = time.monotonic()
        self.hosts = Hosts() if self._others is None else self._others.hosts()
        with HostReader(self.hosts, self._host_failed) as reader:
            pending, bootstraps = split_by_kind(self._context.ledger.replay.pending())
            applied = self._bootstraps.round(reader, bootstraps, self.hosts)
            result = RoundResult(applied.frames, applied.tables, held=applied.held)
            result.pending = bool(pending or bootstraps)
            if pending:
                self._shared_pass(reader, pending, result)
            if pending or self.held:
                self._own_passes(reader, result)
            self._check_some(_CHECKED if pending else _CHECKED_IDLE)
        result.unchecked = bool(self._unchecked)
        result.seconds = time.monotonic() - started
        result.held |= {self._tables.name(table): reason for table, reason in self.held.reasons().items()}
        return result

    def _shared_pass(self, reader: HostReader, pending: list[Pending], result: RoundResult) -> None:
        """Apply the next pending frames of all tables that are not held back."""
        self._passed = {part.row.file: self._passed.get(part.row.file, 0) for part in pending}
        selection = self._selector(reader, pending).shared(frozenset(self.held))
        self._report_broken(selection, result)
        for table in dict.fromkeys([*(frame.table for frame, _ in selection.lost), *selection.kept]):
            self._keep_lost(table, reader, selection)
        self._apply(selection, result)
        for file, (_, end) in selection.ranges.items():
            self._passed[file] = max(end, self._passed.get(file, 0))
        self._pass_empty(selection, pending)
        result.more = selection.more

    def _selector(self, reader: HostReader, pending: Sequence[Pending]) -> Selector:
        size = self._round_bytes or self._context.tables.round_bytes
        successions = self._context.ledger.successions.known()
        return Selector(reader, pending, size, self._passed, self._context.quarantine.holds, successions)

    def _apply(self, selection: ReplaySelection, result: RoundResult) -> None:
        for table, outcome in self._applied(selection, [table for table in selection.frames if table not in self.held]):
            if isinstance(outcome, Exception):
                self._hold(table, outcome)
            else:
                result.frames += outcome
                result.tables += 1

    def _applied(self, selection: ReplaySelection, tables: list[UUID]) -> Iterator[tuple[UUID, int | Exception]]:
        """Decode the frames of all tables as one job, then commit each table.

        Yields for each table how many frames were applied, or the error that holds it.
        """
        plans = dict(zip(tables, self._map(partial(self._plan, selection), tables), strict=True))
        planned = {table: plan for table, plan in plans.items() if isinstance(plan, _Plan)}
        work = [(plan.replay.name, plan.decode) for plan in planned.values()]
        staged = self._context.tables.stage(work, _title([name for name, _ in work])) if work else []
        commit = partial(self._commit, selection, plans, dict(zip(planned, staged, strict=True)))
        yield from zip(tables, self._map(commit, tables), strict=True)

    def _keep_lost(self, table: UUID, reader: HostReader, selection: ReplaySelection) -> bool:
        """Keep a table's lost writes, but for those that an earlier replayer committed.

        If the table has no other frames, its ranges then count as applied. False when that failed, and it is held.
        """
        lost = [(frame, succession) for frame, succession in selection.lost if frame.table == table]
        try:
            self._tables.open(table, ((frame.file, frame.begin) for frame, _ in lost))
            for frame, succession in lost:
                reason = f"written at {succession.origin.name} beyond the cut of {succession}"
                self._context.quarantine.add(frame, reason, reader, str(succession))
            if table not in selection.frames:
                self._pass(table, selection.ranges)
        except Exception as error:
            self._fail(table, error)
            return False
        return True

    def _map(self, act: Callable[[UUID], _R], tables: list[UUID]) -> list[_R]:
        """Call ``act`` for all tables, some in parallel."""
        return list(map(act, tables) if self._pool is None or len(tables) < 2 else self._pool.map(act, tables))

    def _plan(self, selection: ReplaySelection, table: UUID) -> _Plan | Exception | None:
        """Open a table and plan its commit; None when it was dropped. An error holds this table alone."""
        frames = selection.frames[table]
        try:
            replay = self._tables.open(table, ((frame.file, frame.begin) for frame in frames))
            return None if replay is None else _Plan(replay, replay.plan(frames, self.hosts))
        except Exception as error:
            self._close_after(table, error)
            return error

    def _commit(
        self,
        selection: ReplaySelection,
        plans: Mapping[UUID, _Plan | Exception | None],
        staged: Mapping[UUID, Staged],
        table: UUID,
    ) -> int | Exception:
        """Return how many frames were applied, or the error that holds the table."""
        plan = plans[table]
        try:
            if plan is None:
                self._tables.pass_dropped(table, selection.ranges)
                return 0
            if isinstance(plan, Exception):
                return plan
            return plan.replay.apply(selection.frames[table], selection.ranges, self.hosts, staged[table])
        except Exception as error:
            self._close_after(table, error)
            return error

    def _apply_one(self, table: UUID, selection: ReplaySelection) -> int | Exception:
        """Decode and commit one table by itself."""
        ((_, outcome),) = self._applied(selection, [table])
        return outcome

    def _close_after(self, table: UUID, error: Exception) -> None:
        """Close a table after an error, so that it is reconciled again, unless that has just happened."""
        if not isinstance(error, PositionsMovedError):
            self._tables.close(table)

    def _fail(self, table: UUID, error: Exception) -> None:
        """Close a table after an error, and hold it back."""
        self._close_after(table, error)
        self._hold(table, error)

    def _hold(self, table: UUID, error: Exception) -> None:
        if isinstance(error, HostAwayError):
            self._host_failed(error.host, error.reason)
        self.held.hold(table, self._tables.name(table), error)

    def _host_failed(self, host: str, why: str) -> None:
        """Note that a host did not answer."""
        if self._others is not None:
            self._others.failed(host, why)

    def _report_broken(self, selection: ReplaySelection, result: RoundResult) -> None:
        for file, error in selection.broken.items():
            result.held[f"file {file.local}"] = error.what
            if file not in self._broken or self._broken[file].what != error.what:
                report = _log.warning if isinstance(error, HostAwayError) else _log.error
                report("file_unreadable", file=str(file), reason=error.what)
        self._broken = selection.broken

    def _pass_empty(self, selection: ReplaySelection, pending: Sequence[Pending]) -> None:
        """Count ranges without pending rows as applied: duplicates, control frames, frames of dropped tables."""
        used = {frame.file for frames in selection.frames.values() for frame in frames}
        known = {part.row.file for part in pending if not part.behind}
        empty = {file: end for file, (_, end) in selection.ranges.items() if file not in used and file in known}
        if empty and not self.held:
            self._context.ledger.replay.checkpoint_applied(ReplayCheckpoint(NIL_UUID, self._context.epoch, 0, 0, empty))

    def _own_passes(self, reader: HostReader, result: RoundResult) -> None:
        """Try held tables again, each by itself, with the frames that shared passes left out."""
        for table in self.held.due():
            fresh, _ = split_by_kind(self._context.ledger.replay.pending())  # opening the table may have rewound it
            selector = self._selector(reader, fresh)
            selection = selector.own(table)
            if (selection.lost or selection.kept) and not self._keep_lost(table, reader, selection):
                continue
            if selection.frames.get(table):
                outcome = self._apply_one(table, selection)
                if isinstance(outcome, StorageError):
                    outcome = self._apply_readable(table, selector, selection, outcome, result)
                if isinstance(outcome, Exception):
                    self._hold(table, outcome)
                    continue
                result.frames += outcome
                result.tables += 1
            if selection.more:
                self.held.retry_now(table)
                result.more = True
            elif table not in self._without_commits or self._has_commits(table):
                self._rejoin(table, selection)

    def _apply_readable(
        self, table: UUID, selector: Selector, failed: ReplaySelection, error: StorageError, result: RoundResult
    ) -> Exception:
        """Apply the frames in files that can be read. Returns the error that still holds the table."""
        rest = selector.readable(table, failed)
        applied = self._apply_one(table, rest) if rest.frames else 0
        if isinstance(applied, Exception):
            return applied
        result.frames += applied
        return error

    def _rejoin(self, table: UUID, selection: ReplaySelection) -> None:
        for file in selection.broken:  # the shared pass takes its frames once it can be read
            self._passed[file] = 0
        self.held.release(table)

    def _check_some(self, count: int) -> None:
        """Check a few tables per round for lost commits, since perhaps no frame arrives that would show the loss."""
        if self._unchecked is None:
            self._unchecked = [spec.uuid for spec in self._context.ledger.tables.all()]
        some, self._unchecked = self._unchecked[:count], self._unchecked[count:]
        for table in some:
            if table not in self.held and table not in self._tables:
                self._has_commits(table)

    def _has_commits(self, table: UUID) -> bool:
        """Whether a table has its recorded commits. If not, it is reconciled again; if that fails, it is held."""
        try:
            if self._tables.lacks_commits(table):
                self._tables.open(table)
        except Exception as error:
            self._tables.close(table)
            self._without_commits.add(table)
            self._hold(table, error)
            return False
        self._without_commits.discard(table)
        return True

    def _pass(self, table: UUID, ranges: Mapping[FileId, tuple[int, int]]) -> None:
        replay = self._tables.open(table)
        if replay is not None:
            replay.apply([], ranges, self.hosts)
        else:
            self._tables.pass_dropped(table, ranges)


def _title(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"round: {', '.join(names[:_NAMED])}{more}"
