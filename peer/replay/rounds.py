"""Replay rounds: what is registered becomes rows, table by table.

One pass per round serves all level tables. A table that is refused or in conflict leaves it, is tried again with
back-off on a pass of its own, and rejoins when level; it never holds the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import UUID

import structlog

from peer.bootstrap.arrived import Arrivals, Arrived
from peer.bootstrap.decode import plan_bootstrap
from peer.bootstrap.forgotten import forgotten_of, is_awaited, tombstone_rows
from peer.frames.hosts import HostReader, Hosts
from peer.frames.quarantine import Quarantine
from peer.frames.select import ReplaySelection, Selector, split_by_kind
from peer.replay.commit import TableReplay
from peer.tables.commit_metadata import CommitMetadata
from peer.tables.establish import establish
from replication.core.coverage import Ranges
from replication.core.definition.schema import TableSpec
from replication.core.ids import NIL_UUID, FileId, StreamId
from replication.errors import (
    CommitConflictError,
    EngineLostError,
    ForeignMaintenanceError,
    HostAwayError,
    ReplicationError,
    StorageError,
    SupersededError,
    UnknownTableError,
    one_line,
)
from replication.ledger.base import Ledger, Pending, ReplayCheckpoint
from replication.tables.base import Tables
from replication.tables.layout import landing_name

ROUND_BYTES = 128 << 20
_RETRY_MAX_S = 60.0
_LOOKED_AT, _LOOKED_AT_IDLE = 5, 50  # tables a round, of 2 ms each
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Held:
    reason: str
    tries: int
    again: float  # monotonic seconds


@dataclass(slots=True)
class RoundResult:
    """What one round did."""

    frames: int = 0
    tables: int = 0
    seconds: float = 0.0
    more: bool = False
    held: dict[str, str] = field(default_factory=dict)  # table name, or file, to reason


class Replayer:
    """One cluster's replay under one epoch. Its methods are for one thread.

    Args:
        ledger: what is registered and applied.
        tables: where rows go.
        quarantine: where frames go that cannot be decoded.
        epoch: from ``ledger.replay.raise_epoch``; a table that carries a higher one ends this replayer.
        hosts: how other hosts' files are read, asked once a round.
        failed: told of a host that did not answer, and why.
        tasks: executor tasks per commit.
        parallel: commits of different tables at a time.
        round_bytes: about how many bytes of frames a round takes.
        scratch: a directory for what of a comparison does not fit into memory; None when all of it is to.

    Attributes:
        hosts: as the last round read them.
    """

    def __init__(
        self,
        ledger: Ledger,
        tables: Tables,
        quarantine: Quarantine,
        epoch: int,
        *,
        hosts: Callable[[], Hosts] = Hosts,
        failed: Callable[[str, str], None] = lambda host, why: None,
        tasks: int = 2,
        parallel: int = 4,
        round_bytes: int = ROUND_BYTES,
        scratch: Path | None = None,
    ) -> None:
        self._ledger = ledger
        self._tables = tables
        self._quarantine = quarantine
        self._epoch = epoch
        self._read_hosts = hosts
        self._failed = failed
        self.hosts = Hosts()
        self._tasks = tasks
        self._round_bytes = round_bytes
        self._scratch = scratch
        self._open: dict[UUID, TableReplay] = {}
        self._unseen: list[UUID] | None = None
        self._lacking: set[UUID] = set()
        self._held: dict[UUID, _Held] = {}
        self._arrivals = Arrivals()
        self._passed: dict[FileId, int] = {}
        self._broken: dict[FileId, ReplicationError] = {}
        self._pool = ThreadPoolExecutor(parallel, thread_name_prefix="replay") if parallel > 1 else None

    def close(self) -> None:
        """Let go of the threads."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def round(self) -> RoundResult:
        """Apply what is pending, up to about ``round_bytes``.

        Raises:
            SupersededError: a newer replayer has taken over; this one must end.
            EngineLostError: the Spark session is gone; this process must end.
        """
        started = time.monotonic()
        result = RoundResult()
        self.hosts = self._read_hosts()
        with HostReader(self.hosts, self._failed) as reader:
            self._take_pending(reader, result)
        result.seconds = time.monotonic() - started
        result.held |= {self._spec_name(table): held.reason for table, held in self._held.items()}
        return result

    def _take_pending(self, reader: HostReader, result: RoundResult) -> None:
        pending, bootstraps = split_by_kind(self._ledger.replay.pending())
        if bootstraps:
            self._take_bootstraps(reader, bootstraps, result)
        if pending:
            self._passed = {part.row.file: self._passed.get(part.row.file, 0) for part in pending}
            selection = self._selector(reader, pending).level(frozenset(self._held))
            self._report_broken(selection, result)
            self._apply(selection, result)
            for file, (_, end) in selection.ranges.items():
                self._passed[file] = max(end, self._passed.get(file, 0))
            self._pass_empty(selection, pending)
            result.more = selection.more
        if pending or self._held:
            self._own_passes(reader, result)
        self._look(_LOOKED_AT if pending else _LOOKED_AT_IDLE)

    def _selector(self, reader: HostReader, pending: Sequence[Pending]) -> Selector:
        return Selector(reader, pending, self._round_bytes, self._passed, self._quarantine.holds)

    def _spec_name(self, table: UUID) -> str:
        spec = self._spec(table)
        return spec.name if spec is not None else str(table)

    def _spec(self, table: UUID) -> TableSpec | None:
        """The definition as it is now: frames of a newer one may be among what is pending."""
        return self._ledger.tables.by_uuid(table)

    def _apply(self, selection: ReplaySelection, result: RoundResult) -> None:
        work = [(table, frames) for table, frames in selection.frames.items()]
        if self._pool is None or len(work) < 2:
            outcomes = [self._apply_one(table, selection) for table, _ in work]
        else:
            outcomes = list(self._pool.map(lambda item: self._apply_one(item[0], selection), work))
        for (table, _), outcome in zip(work, outcomes, strict=True):
            if isinstance(outcome, int):
                result.frames += outcome
                result.tables += 1
            else:
                self._hold(table, outcome)

    def _apply_one(self, table: UUID, selection: ReplaySelection) -> int | Exception:
        """Frames applied, or why the table is now held."""
        try:
            replay = self._opened(table, ((frame.file, frame.begin) for frame in selection.frames[table]))
            if replay is None:
                self._release(table, selection.ranges)
                return 0
            return replay.apply(selection.frames[table], selection.ranges, self.hosts)
        except _PositionsMoved as error:
            return error
        except Exception as error:  # one table's trouble never stops another
            self._open.pop(table, None)
            return error

    def _release(self, table: UUID, ranges: Mapping[FileId, tuple[int, int]]) -> None:
        """Of a table that was dropped here, or never known, nobody waits for rows: none is applied."""
        if self._spec(table) is not None:
            ends = {file: end for file, (_, end) in ranges.items()}
            self._ledger.replay.checkpoint_applied(ReplayCheckpoint(table, self._epoch, 0, 0, ends))

    def _opened(self, table: UUID, selected: Iterable[tuple[FileId, int]]) -> TableReplay | None:
        """A table as it stands, None when it was dropped here or never known.

        _PositionsMoved when it is opened just now and what was ``selected`` is void.
        """
        spec = self._spec(table)
        if spec is None:
            return None
        replay = self._open.get(table)
        if replay is not None and (replay.spec != spec or not replay.follows()):
            replay = None
        if replay is None:
            if all(table != each.uuid for each in self._ledger.tables.all()):  # its name may be another's by now
                return None
            establish(self._tables, self._ledger, spec)
            replay = TableReplay(spec, self._tables, self._ledger, self._quarantine, self._epoch, self._tasks)
            moved = replay.open()
            self._open[table] = replay
            if moved or self._was_applied(table, selected):
                raise _PositionsMoved(f"positions of {spec.name} were settled anew")
        return replay

    def _look(self, count: int) -> None:
        """Whether tables have what was applied to them, a few a round: perhaps nothing comes that would tell."""
        if self._unseen is None:
            self._unseen = [spec.uuid for spec in self._ledger.tables.all()]
        some, self._unseen = self._unseen[:count], self._unseen[count:]
        for table in some:
            if table not in self._held and table not in self._open:
                self._has_all(table)

    def _has_all(self, table: UUID) -> bool:
        """Whether a table has what was applied to it; one that has not is settled anew, or else held."""
        try:
            if self._lacks(table):
                self._opened(table, ())
        except Exception as error:
            self._open.pop(table, None)
            self._lacking.add(table)
            self._hold(table, error)
            return False
        self._lacking.discard(table)
        return True

    def _lacks(self, table: UUID) -> bool:
        spec, mark = self._spec(table), self._ledger.replay.mark(table)
        if spec is None or mark is None or not mark.commit:
            return False
        try:
            history = self._tables.history(landing_name(spec))
        except UnknownTableError:
            return True
        numbers = [stamp.number for snapshot in history.chain() if (stamp := CommitMetadata.of(snapshot)) is not None]
        return history.current is None or bool(numbers) and max(numbers) < mark.commit

    def _was_applied(self, table: UUID, selected: Iterable[tuple[FileId, int]]) -> bool:
        """Whether a replayer before this one applied some of it after it was selected here."""
        left = {part.row.file: part.behind.get(table, part.begin) for part in self._ledger.replay.pending()}
        return any(file not in left or left[file] > begin for file, begin in selected)

    def _report_broken(self, selection: ReplaySelection, result: RoundResult) -> None:
        for file, error in selection.broken.items():
            result.held[f"file {file.local}"] = error.what
            if file not in self._broken or self._broken[file].what != error.what:
                report = _log.warning if isinstance(error, HostAwayError) else _log.error
                report("file cannot be read", file=str(file), reason=error.what)
        self._broken = selection.broken

    def _hold(self, table: UUID, error: Exception) -> None:
        if isinstance(error, EngineLostError | SupersededError):
            raise error
        if isinstance(error, HostAwayError):
            self._failed(error.host, error.reason)
        tries = self._held[table].tries + 1 if table in self._held else 0
        delay = (
            0.0
            if isinstance(error, CommitConflictError | HostAwayError | _PositionsMoved) and tries < 3
            else min(2.0**tries, _RETRY_MAX_S)
        )
        known = isinstance(error, ReplicationError)
        reason = str(error) if known else one_line(error)
        self._held[table] = _Held(reason, tries, time.monotonic() + delay)
        level = _log.error if isinstance(error, ForeignMaintenanceError) or not known else _log.warning
        level("table held back", table=self._spec_name(table), reason=reason, retry_s=round(delay, 1))

    def _take_bootstraps(self, reader: HostReader, pending: list[Pending], result: RoundResult) -> None:
        """Claim and commit what bootstraps have brought, once they are here as a whole."""
        whole, broken = self._arrivals.whole(reader, pending)
        result.held |= {f"file {file.local}": reason for file, reason in broken.items()}
        routes = {(route.source, route.table) for route in self._ledger.landing.routes()}
        ended = self._arrivals.ended(reader, pending, routes)
        for table, ranges in ended.items():  # first: once a later one is taken, nothing tells that it was replaced
            self._tried(table, partial(self._pass_over, table, ranges))
        for arrived in whole:
            if self._tried(arrived.table, partial(self._take_bootstrap, arrived, result)):
                result.frames += len(arrived.rows)
                result.tables += 1

    def _tried(self, table: UUID, act: Callable[[], bool]) -> bool:
        """Whether ``act`` was done for a table; one table's trouble never stops another."""
        if table in self._held:
            return False
        try:
            return act()
        except Exception as error:
            if not isinstance(error, _PositionsMoved):
                self._open.pop(table, None)
            self._hold(table, error)
            return False

    def _pass_over(self, table: UUID, ranges: Mapping[FileId, tuple[int, int]]) -> bool:
        """Let go of what came of bootstraps that were ended."""
        if not ranges:
            return True
        replay = self._opened(table, ())
        if replay is None:
            self._release(table, ranges)
        else:
            replay.apply([], ranges, self.hosts)
            _log.warning("bootstrap ended before it was whole", table=replay.spec.name, files=len(ranges))
        return True

    def _take_bootstrap(self, arrived: Arrived, result: RoundResult) -> bool:
        begins = ((file, begin) for file, (begin, _) in arrived.ranges.items())
        spec, replay = self._spec(arrived.table), self._opened(arrived.table, begins)
        if spec is None or replay is None:
            self._release(arrived.table, arrived.ranges)
            return True
        claimed: dict[StreamId, Ranges] = {}
        for frame, coverage in arrived.coverages:
            claimed |= self._ledger.bootstraps.adopt(frame.file, frame.begin, frame.end, coverage)
        versions = self._ledger.tables.schemas(arrived.table)
        if forgotten := forgotten_of(arrived):
            if is_awaited(self._ledger, arrived, claimed):
                result.held[spec.name] = "a bootstrap waits until frames that landed before are replayed"
                return False
            self._ledger.bootstraps.forget(spec.uuid, forgotten)
            for tombstones in tombstone_rows(self._tables, spec, versions, arrived, self.hosts, self._scratch):
                replay.write_tombstones(tombstones)
                _log.info("forgotten deletes made up for", table=spec.name, rows=tombstones.num_rows)
        now = time.time_ns() // 1000
        replay.take(
            lambda number: plan_bootstrap(spec, versions, arrived, claimed, number, self._tasks, now, self.hosts),
            arrived.ranges,
        )
        _log.info("bootstrap taken", table=spec.name, frames=len(arrived.rows), streams=len(claimed))
        return True

    def _own_passes(self, reader: HostReader, result: RoundResult) -> None:
        for table, held in list(self._held.items()):
            if held.again > time.monotonic():
                continue
            fresh, _ = split_by_kind(self._ledger.replay.pending())  # opening the table may have rewound it
            selector = self._selector(reader, fresh)
            selection = selector.own(table)
            if selection.frames.get(table):
                outcome = self._apply_one(table, selection)
                if isinstance(outcome, StorageError):
                    rest = selector.readable(table, selection)
                    applied = self._apply_one(table, rest) if rest.frames else 0
                    if isinstance(applied, int):
                        result.frames += applied
                    else:
                        outcome = applied
                if isinstance(outcome, Exception):
                    self._hold(table, outcome)
                    continue
                result.frames += outcome
                result.tables += 1
            if selection.more:
                held.again, result.more = time.monotonic(), True
                continue
            if table in self._lacking and not self._has_all(table):
                continue
            for file in selection.broken:  # what the table has in it is taken by the shared pass once it can be read
                self._passed[file] = 0
            del self._held[table]

    def _pass_empty(self, selection: ReplaySelection, pending: list[Pending]) -> None:
        """Files in which no table has rows waiting are passed: duplicates, control frames, dropped tables."""
        used = {frame.file for frames in selection.frames.values() for frame in frames}
        known = {part.row.file for part in pending if not part.behind}
        empty: Mapping[FileId, int] = {
            file: end for file, (_, end) in selection.ranges.items() if file not in used and file in known
        }
        if empty and not self._held:
            self._ledger.replay.checkpoint_applied(ReplayCheckpoint(NIL_UUID, self._epoch, 0, 0, empty))


class _PositionsMoved(ReplicationError):
    """Settling a table changed what is pending of it; select again."""

    retryable = True
