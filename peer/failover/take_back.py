"""Taking back: rows beyond a failover's cut that replay had applied are undone, and kept as lost writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID

from peer.failover.landed import LandedFrame, has_timestamps, hosts_of, in_batches, landed_after, rows_of_frames
from peer.failover.restate import rows_in_place
from peer.failover.role_change import RoleChange
from peer.frames.hosts import HostReader
from peer.frames.quarantine import Quarantine
from peer.polling import polls
from replication.commit.step import CommitStep, step_type
from replication.core.clock import moment_text
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId, FileId
from replication.core.succession import Succession, cut_of
from replication.error_text import counted, one_line
from replication.errors import ReplicationError, RequestError, WaitTimeoutError
from replication.ledger.base import Ledger, Quarantined
from replication.wall_clock import now_us

#: How the reason of a lost write begins that was applied here, and undone; the commit time of that follows.
TAKEN_BACK = "applied and taken back at commit time "
_POLL_S = 0.1
#: The frames that are taken back together, in bytes.
_BYTES_MAX = 64 << 20


@step_type("failover.take_back")
@dataclass(frozen=True)
class TakeBack(CommitStep[RoleChange]):
    """Undo the rows beyond the cut, and keep them as lost writes."""

    origin: str
    epoch: int
    upto: int

    def verify(self, context: RoleChange) -> bool:
        """Whether every frame beyond the cut that landed here is kept as a lost write."""
        return not self._frames(context)

    def execute(self, context: RoleChange) -> None:
        """Write the rows as they were, table by table; then keep the frames."""
        passed = {part.row.file: part.end for part in context.cluster.ledger.replay.pending()}
        by_table: dict[UUID, list[LandedFrame]] = {}
        for frame in self._frames(context):
            by_table.setdefault(frame.header.table, []).append(frame)
        failed = []
        for spec in context.cluster.tables():
            if frames := by_table.get(spec.uuid):
                try:
                    await_replayed(context.cluster.ledger, spec, passed, context.timeout_s)
                    self._take_back(context, spec, frames)
                except Exception as error:  # the other tables are taken back all the same
                    why = error.what if isinstance(error, ReplicationError) else one_line(error)
                    failed.append(f"{spec.name}: {why}")
        if failed:
            raise RequestError(f"rows after {moment_text(self.upto)} are still in {'; '.join(failed)}", "Run it again")

    def describe(self) -> str:
        name = ClusterId.parse(self.origin).name
        return (
            f"rows of {name} after {moment_text(self.upto)} that were applied are taken back, and kept as lost writes"
        )

    def _take_back(self, context: RoleChange, spec: TableSpec, frames: list[LandedFrame]) -> None:
        kept = {(frame.file, frame.begin) for frame in context.cluster.ledger.replay.quarantined()}
        applied = [frame for frame in frames if (frame.ref.file, frame.ref.begin) not in kept]
        if applied and spec.key:
            restated = max(frame.header.commit_hi for frame in applied) + 1
            # Rows of a batch are in memory together. A key of several is undone by that with its newest row.
            for batch in in_batches(applied, lambda frame: frame.bytes, _BYTES_MAX, len(applied)):
                self._undo(context, spec, batch, restated)
        elif applied:
            self._count(context, f"{spec.name} has no key", applied)

    def _undo(self, context: RoleChange, spec: TableSpec, frames: list[LandedFrame], restated: int) -> None:
        """Write the rows as they were, under the commit time ``restated``; then keep the frames."""
        cluster, hosts, succession = context.cluster, hosts_of(context.cluster), self._succession(context)
        read = list(zip(frames, rows_of_frames(cluster.ledger, hosts, frames), strict=True))
        if own := [frame for frame, rows in read if has_timestamps(rows)]:
            self._count(context, f"rows of {spec.name} have timestamps of their own", own)
        undone = [(frame, rows) for frame, rows in read if not has_timestamps(rows)]
        if not undone:
            return
        lost = [rows for _, rows in undone]
        with TemporaryDirectory(prefix="walship-lost-") as scratch:
            now = now_us()
            logs = rows_in_place(cluster.reader.catalog, spec, lost, now, Path(scratch), self.upto)
        if logs:
            cluster.restate(logs, restated)
        reason = f"{TAKEN_BACK}{restated}: written at {succession.origin.name} beyond the cut of {succession}"
        quarantine = Quarantine(cluster.config.data_dir / "quarantine", cluster.ledger.replay)
        with HostReader(hosts) as reader:
            for frame, _ in undone:
                quarantine.add(frame.ref, reason, reader, str(succession))

    def _count(self, context: RoleChange, why: str, frames: list[LandedFrame]) -> None:
        """Let frames count after all that landed while the cut was made: writing rows cannot undo theirs."""
        context.report(
            f"{why}, so what landed during the failover counts and is not taken back: {counted(len(frames), 'frame')}"
        )
        cut = cut_of((frame.header.stream, frame.header.sequence) for frame in frames)
        context.cluster.ledger.successions.record(replace(self._succession(context), cut=cut))

    def _frames(self, context: RoleChange) -> list[LandedFrame]:
        """The frames beyond the cut, as it is now, that are not kept as lost writes yet.

        Those that land later need no look: replay reads the succession after it read what has landed.
        """
        cluster = context.cluster
        if not cluster.ledger.replay.replayers():
            return []  # no tables are kept here
        succession = self._succession(context)
        if context.beyond is None:
            landed = landed_after(cluster.ledger, hosts_of(cluster), succession.origin, self.upto)
            context.beyond = tuple(frame for frame in landed if succession.leaves_out(frame.header))
        kept = {(frame.file, frame.begin) for frame in cluster.ledger.replay.quarantined()}
        live = {spec.uuid for spec in cluster.tables()}  # a table may be dropped since they were read
        beyond = (each for each in context.beyond if each.header.table in live and succession.leaves_out(each.header))
        return [frame for frame in beyond if (frame.ref.file, frame.ref.begin) not in kept]

    def _succession(self, context: RoleChange) -> Succession:
        known = context.cluster.ledger.successions.known().all  # a third cluster may have taken over from it since
        return next(each for each in known if (str(each.origin), each.epoch) == (self.origin, self.epoch))


def restated_at(records: Iterable[Quarantined]) -> int:
    """The commit time at which the taken-back ones of lost writes were undone; 0 when none was. Pure.

    ``records`` are the lost writes of one table and one succession, discarded ones included. Copies are not needed.
    """
    taken = (each.reason.removeprefix(TAKEN_BACK) for each in records if each.reason.startswith(TAKEN_BACK))
    return max((int(reason.partition(":")[0]) for reason in taken), default=0)


def await_replayed(ledger: Ledger, spec: TableSpec, passed: Mapping[FileId, int], timeout_s: float) -> None:
    """Wait until a table has everything that is registered up to ``passed`` of each file.

    Raises:
        WaitTimeoutError: it has not, within ``timeout_s``.
    """
    for _ in polls(timeout_s, _POLL_S):
        unapplied = ledger.replay.unapplied(spec.uuid)
        behind = [file for file, begin in unapplied.items() if begin < passed.get(file, 0)]
        if not behind:
            return
    raise WaitTimeoutError(
        f"replay has not passed {counted(len(behind), 'file')} within {timeout_s:g} s", "See walship status"
    )
