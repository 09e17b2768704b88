"""One table's replay commits: rows and positions in one compare-and-swap, and recovery after any interruption.

The summary of a commit's snapshot has the replay epoch, a number, and the ranges that it applied. The current positions
are those of the replay snapshot with the highest number among the ancestors of the current snapshot. When it has
expired, the ledger's copy counts. When the table was rolled back, the ledger is rewound, and the lost ranges are
replayed again. When neither is possible, replay of the table stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from peer.derive.hooks import LOST
from peer.frames.decode import FrameRef, Poison, find_poison, plan_decode
from peer.frames.hosts import HostReader, Hosts
from peer.replay.context import ReplayContext
from peer.tables.commit_metadata import CommitMetadata
from peer.tables.latest import show_late, show_latest
from replication import log
from replication.core.definition.schema import OP, TableSpec
from replication.core.ids import FileId
from replication.errors import (
    CommitConflictError,
    ForeignMaintenanceError,
    PoisonFrameError,
    StorageError,
    SupersededError,
)
from replication.ledger.base import ReplayCheckpoint
from replication.retries import repeated_on
from replication.tables.base import LABEL, Decode, Snapshot, Staged
from replication.tables.layout import landing_name
from replication.wall_clock import now_us

_TRIES = 3
_Run: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]
_CONTROL = pa.schema([(LABEL, pa.int32()), (OP, pa.int32())])
_ROLLED_BACK = (
    "Roll the table forward again if you can; else have the ledger be made anew from what tables hold (walship"
    " rebuildledger), and a peer send the rest (enablereplication --bootstrap)"
)
_log = log.get(__name__)


class TableReplay:
    """Replay of one table by one replayer.

    Args:
        spec: the table; its Iceberg table exists.
    """

    def __init__(self, spec: TableSpec, context: ReplayContext) -> None:
        self.spec = spec
        self.name = landing_name(spec)
        self.number = 0
        self._tables = context.tables
        self._ledger = context.ledger
        self._quarantine = context.quarantine
        self._epoch = context.epoch
        self._expect: int | None = None
        self._owned = False

    def open(self) -> bool:
        """Reconcile the positions, then take the replay epoch. In a keyless table the first data commit takes it.

        After this the ledger's checkpoint equals what the table's snapshots hold. Returns whether pending ranges
        changed, so that frames must be selected again.

        Raises:
            SupersededError: a newer replayer has the table.
            ForeignMaintenanceError: the positions are lost; the message says why.
            CommitConflictError: other commits came first several times.
        """
        moved: list[bool] = []

        @repeated_on(CommitConflictError, times=_TRIES)
        def take_over() -> None:
            moved.append(self._reconcile())
            if self.spec.key and not self._owned:
                # One row that every view hides: an older replayer's next commit then conflicts.
                self._commit_own(_control_rows, _CONTROL, {})

        take_over()
        return any(moved)

    def plan(self, frames: Sequence[FrameRef], hosts: Hosts) -> Decode:
        """Return what decodes ``frames`` for the next commit; ``hosts`` says how to read those on other hosts.

        Raises:
            SchemaError: a frame has a column that the table does not have yet.
        """
        versions, tasks = self._ledger.tables.schemas(self.spec.uuid), self._tables.parallel
        return plan_decode(self.spec, versions, frames, self.number + 1, tasks, now_us(), hosts)

    def apply(
        self,
        frames: Sequence[FrameRef],
        ranges: Mapping[FileId, tuple[int, int]],
        hosts: Hosts,
        staged: Staged | None = None,
    ) -> int:
        """Commit the rows of ``frames``, all of the table's frames in ``ranges``; return how many frames.

        Frames that cannot be decoded are quarantined. Without frames only the checkpoint moves. ``ranges`` are, by
        file, what counts as applied afterwards. ``staged`` is what ``Tables.stage`` made of ``plan``; None decodes
        here.

        Raises:
            CommitConflictError: another process committed rows first. Nothing was changed; ``open`` and select again.
            HostAwayError: a host with some of the frames does not answer. Nothing was changed.
            StorageError: a peer's frame has been damaged since. Frames before it, and in other files, are committed.
        """
        left, ranges = list(frames), dict(ranges)
        snapshot = 0
        damage: StorageError | None = None
        while left:
            commit = CommitMetadata(self._epoch, self.number + 1, _spanned(left, ranges))
            rows = staged or self._tables.stage([(self.name, self.plan(left, hosts))], self.name)[0]
            staged = None
            try:
                snapshot = self._append(rows, commit)
                break
            except PoisonFrameError:
                poison = find_poison(rows.rows, left)
                if not poison:  # it decodes here: the fault was passing, and the loop tries again
                    raise
                damaged = [each for each in poison if each.is_damaged and self._comes_again(each.frame)]
                for each in damaged:  # the peer deletes its file once this counts as applied
                    begin, end = ranges[each.frame.file]
                    ranges[each.frame.file] = (begin, min(end, each.frame.begin))
                    damage = _damage(each)
                self._quarantine_all([each for each in poison if each not in damaged], hosts)
                gone = {each.frame for each in poison}
                left = [frame for frame in left if frame not in gone and frame.end <= ranges[frame.file][1]]
        self._checkpoint(snapshot, ranges)
        if left and self.spec.key:
            show_late(self._tables, self.spec, min(frame.oldest for frame in left))
        if damage is not None:
            raise damage
        return len(left)

    def take(self, plan: Callable[[int], Decode], ranges: Mapping[FileId, tuple[int, int]]) -> None:
        """Commit all rows of a bootstrap in one snapshot; ``ranges`` then count as applied.

        Args:
            plan: returns what to decode, given the commit's number.
            ranges: all ranges of the bootstrap, by landing file.

        Raises:
            CommitConflictError: as ``apply``.
            PoisonFrameError: a frame cannot be decoded; nothing was changed.
        """
        commit = CommitMetadata(self._epoch, self.number + 1, ranges, is_bootstrap=True)
        self._checkpoint(self._append(plan(commit.number), commit), ranges)
        show_latest(self._tables, self.spec)

    def write_tombstones(self, tombstones: pa.Table) -> None:
        """Commit tombstones that no frame brought; no range counts as applied.

        ``tombstones`` has the columns of ``__changes`` except ``_replay`` and ``_applied``.

        Raises:
            CommitConflictError: as ``apply``.
        """
        zeros = pa.repeat(pa.scalar(0, pa.int32()), tombstones.num_rows)
        made = tombstones.append_column(LABEL, zeros)
        self._commit_own(partial(_given_rows, made), made.schema, {"_applied": now_us()})

    def follows(self) -> bool:
        """Whether only maintenance has committed since this replayer's last commit."""
        history = self._tables.history(self.name)
        return self._expect in (history.current, None) or any(s.id == self._expect for s in history.chain())

    def _quarantine_all(self, poison: Iterable[Poison], hosts: Hosts) -> None:
        with HostReader(hosts) as reader:
            for each in poison:
                self._quarantine.add(each.frame, each.reason, reader)

    def _comes_again(self, frame: FrameRef) -> bool:
        """Whether a peer sent the frame; it keeps it until it is applied here."""
        row = self._ledger.files.get(frame.file)
        return row is not None and row.source is not None

    def _append(self, rows: Staged | Decode, commit: CommitMetadata) -> int:
        """Commit; return the snapshot's id, or 0 when there was no row and so no commit."""
        snapshot = self._tables.append(self.name, rows, self._expect, commit.to_summary())
        if snapshot is None:
            return 0
        self.number, self._expect = commit.number, snapshot
        return snapshot

    def _checkpoint(self, snapshot: int, ranges: Mapping[FileId, tuple[int, int]], number: int | None = None) -> None:
        positions = {file: end for file, (_, end) in ranges.items()}
        at = self.number if number is None else number
        self._ledger.replay.checkpoint_applied(ReplayCheckpoint(self.spec.uuid, self._epoch, at, snapshot, positions))

    def _reconcile(self) -> bool:
        checkpoint = self._ledger.replay.checkpoint(self.spec.uuid)  # read before the history, which may grow
        history = self._tables.history(self.name)
        commits = []
        for snapshot in history.chain():
            if (metadata := CommitMetadata.of(snapshot)) is not None:
                commits.append((snapshot, metadata))
        checkpointed = checkpoint.commit if checkpoint is not None else 0
        newest = max((commit.number for _, commit in commits), default=0)
        for _, commit in commits:
            if commit.epoch > self._epoch:
                raise SupersededError(
                    f"a newer replayer (epoch {commit.epoch}) has taken {self.name} from this one (epoch {self._epoch})"
                )
        self._owned = any(commit.number == newest and commit.epoch == self._epoch for _, commit in commits)
        self._expect = history.current
        every = [made for s in history.snapshots.values() if (made := CommitMetadata.of(s)) is not None]
        self.number = max([newest, checkpointed, *(commit.number for commit in every)])
        if not commits:
            if checkpointed:
                self._check_ledger_holds(checkpointed)
            return False
        if newest < checkpointed:
            self._rewind(every, newest, checkpointed)
            checkpointed = 0
            self._restore_checkpoint(commits, checkpointed)
            return True
        self._restore_checkpoint(commits, checkpointed)
        return newest > checkpointed

    def _restore_checkpoint(self, commits: Sequence[tuple[Snapshot, CommitMetadata]], checkpointed: int) -> None:
        """Record commits whose replayer died before it recorded them, once they are synced."""
        if any(commit.number > checkpointed for _, commit in commits):
            self._tables.make_durable(self.name)
        for snapshot, commit in reversed(commits):
            if commit.number > checkpointed:
                self._checkpoint(snapshot.id, commit.applied, commit.number)

    def _check_ledger_holds(self, checkpointed: int) -> None:
        """Check that the table has the last recorded commit's rows, when all replay snapshots have expired."""
        with self._tables.scratch_duckdb() as connection:
            self._tables.attach(connection, "landed", self.name)
            ((found,),) = connection.execute("select max(_replay) from landed").fetchall()
        if found != checkpointed:
            raise ForeignMaintenanceError(
                f"{self.name} has rows up to replay commit {found or 0}, but {checkpointed} was applied: it was rolled"
                " back, and its snapshots have expired since",
                _ROLLED_BACK,
            )

    def _rewind(self, every: Sequence[CommitMetadata], newest: int, checkpointed: int) -> None:
        """Make the ranges of lost commits pending again: the table was rolled back behind the checkpoint."""
        lost = [commit for commit in every if commit.number > newest]
        missing = set(range(newest + 1, checkpointed + 1)) - {commit.number for commit in lost}
        if missing:
            raise ForeignMaintenanceError(
                f"{self.name} was rolled back to replay commit {newest}, and what commit {min(missing)} applied can no"
                " longer be known: its snapshot has expired",
                _ROLLED_BACK,
            )
        starts: dict[FileId, int] = {}
        for commit in lost:
            for file, (begin, _) in commit.applied.items():
                starts[file] = min(begin, starts.get(file, begin))
        gone = [file for file in starts if self._ledger.files.get(file) is None]
        if gone:
            raise ForeignMaintenanceError(
                f"{self.name} was rolled back to replay commit {newest}, but {gone[0]} with what it lost is deleted",
                _ROLLED_BACK,
            )
        _log.warning("table_rolled_back", table=self.name, commit=newest, lost=len(lost))
        self._tell_derivations(newest)  # first: the same commits come again under higher numbers
        self._ledger.replay.rewind(self.spec.uuid, starts)

    def _tell_derivations(self, newest: int) -> None:
        """End what is being derived of a table without a key, and what is derived of commits after ``newest``."""
        for each in self._ledger.derivations.all() if not self.spec.key else ():
            if each.source == self.spec.uuid:
                reached = max(each.position, each.pending_position if each.pending else 0)
                self._ledger.derivations.renew(each.table, LOST if reached > newest else "", anew=False)

    def _commit_own(self, run: _Run, schema: pa.Schema, constants: Mapping[str, int]) -> None:
        commit = CommitMetadata(self._epoch, self.number + 1, {})
        given = {"_replay": commit.number, **constants}
        rows = Decode(pa.table({"row": [0]}), run, schema, (), ((),), given, size=0)
        self._checkpoint(self._append(rows, commit), {})


def _damage(poison: Poison) -> StorageError:
    frame = poison.frame
    return StorageError(
        f"{frame.path}: {poison.reason}",
        f"Restore the file, or have it sent again: walship wal salvage {frame.file.local} --yes",
    )


def _spanned(frames: Iterable[FrameRef], ranges: Mapping[FileId, tuple[int, int]]) -> dict[FileId, tuple[int, int]]:
    """Return the ranges that ``frames`` lie in, each from its first frame on."""
    begins: dict[FileId, int] = {}
    for frame in frames:
        begins[frame.file] = min(frame.begin, begins.get(frame.file, frame.begin))
    return {file: (begin, ranges[file][1]) for file, begin in begins.items()}


def _control_rows(tasks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield one control row per task. It is made like a decoded row, so taking over needs no query of a cold JVM."""
    for batch in tasks:
        yield pa.record_batch([[0] * batch.num_rows, [-1] * batch.num_rows], schema=_CONTROL)


def _given_rows(rows: pa.Table, tasks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows, for the one task."""
    for _ in tasks:
        yield from rows.to_batches()
