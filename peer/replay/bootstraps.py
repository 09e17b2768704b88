"""Apply bootstraps that have arrived completely: claim their rows, then commit them in one snapshot."""

from __future__ import annotations

import time
from collections.abc import Mapping

from peer.bootstrap.decode import plan_bootstrap
from peer.bootstrap.purged import is_awaited, purged_of, tombstone_rows
from peer.bootstrap.received import ReceivedBootstrap
from peer.frames.hosts import Hosts
from peer.replay.commit import TableReplay
from peer.replay.context import ReplayContext
from replication import log
from replication.core.coverage import Ranges
from replication.core.ids import FileId, StreamId

AWAITS = "a bootstrap waits until frames that landed before are replayed"
_log = log.get(__name__)


def take_bootstrap(context: ReplayContext, replay: TableReplay, received: ReceivedBootstrap, hosts: Hosts) -> bool:
    """Claim the rows that no other source has claimed, and commit exactly those.

    Returns False when frames that landed earlier must be replayed first. The commit is durable; after a crash the
    snapshot's commit metadata shows it.

    Raises:
        CommitConflictError: another process committed rows first; only the claims were changed.
        PoisonFrameError: a frame of it cannot be decoded.
    """
    spec, ledger = replay.spec, context.ledger
    claimed: dict[StreamId, Ranges] = {}
    for frame, coverage in received.coverages:
        claimed |= ledger.bootstraps.adopt(frame.file, frame.begin, frame.end, coverage)
    versions = ledger.tables.schemas(received.table)
    if purged := purged_of(received):
        if is_awaited(ledger, received, claimed):
            return False
        ledger.bootstraps.note_purged(spec.uuid, purged)
        for tombstones in tombstone_rows(context.tables, spec, versions, received, hosts, context.scratch):
            replay.write_tombstones(tombstones)
            _log.info("purged_deletes_restored", table=spec.name, rows=tombstones.num_rows)
    now = time.time_ns() // 1000
    replay.take(
        lambda number: plan_bootstrap(spec, versions, received, claimed, number, context.tables.parallel, now, hosts),
        received.ranges,
    )
    _log.info("bootstrap_taken", table=spec.name, frames=len(received.rows), streams=len(claimed))
    return True


def pass_ended_bootstrap(replay: TableReplay, ranges: Mapping[FileId, tuple[int, int]], hosts: Hosts) -> None:
    """Count the ranges of bootstraps that ended incomplete as applied, so that their files can go."""
    replay.apply([], ranges, hosts)
    _log.warning("bootstrap_ended_incomplete", table=replay.spec.name, files=len(ranges))
