"""Bootstraps that have arrived as a whole: their rows are claimed, then committed at once."""

from __future__ import annotations

import time
from collections.abc import Mapping

import structlog

from peer.bootstrap.arrived import Arrived
from peer.bootstrap.decode import plan_bootstrap
from peer.bootstrap.forgotten import forgotten_of, is_awaited, tombstone_rows
from peer.frames.hosts import Hosts
from peer.replay.commit import TableReplay
from peer.replay.context import ReplayContext
from replication.core.coverage import Ranges
from replication.core.ids import FileId, StreamId

AWAITS = "a bootstrap waits until frames that landed before are replayed"
_log = structlog.get_logger(__name__)


def take_bootstrap(context: ReplayContext, replay: TableReplay, arrived: Arrived, hosts: Hosts) -> bool:
    """Claim what nobody has claimed yet and commit exactly those rows; whether that was possible now.

    False when frames that landed before it must be replayed first. What is committed is durable, and the snapshot's
    commit metadata shows after a crash that it was.

    Raises:
        CommitConflictError: somebody else committed rows meanwhile; nothing was changed but the claims.
        PoisonFrameError: a frame of it cannot be decoded.
    """
    spec, ledger = replay.spec, context.ledger
    claimed: dict[StreamId, Ranges] = {}
    for frame, coverage in arrived.coverages:
        claimed |= ledger.bootstraps.adopt(frame.file, frame.begin, frame.end, coverage)
    versions = ledger.tables.schemas(arrived.table)
    if forgotten := forgotten_of(arrived):
        if is_awaited(ledger, arrived, claimed):
            return False
        ledger.bootstraps.forget(spec.uuid, forgotten)
        for tombstones in tombstone_rows(context.tables, spec, versions, arrived, hosts, context.scratch):
            replay.write_tombstones(tombstones)
            _log.info("forgotten_deletes_restored", table=spec.name, rows=tombstones.num_rows)
    now = time.time_ns() // 1000
    replay.take(
        lambda number: plan_bootstrap(spec, versions, arrived, claimed, number, context.tables.parallel, now, hosts),
        arrived.ranges,
    )
    _log.info("bootstrap_taken", table=spec.name, frames=len(arrived.rows), streams=len(claimed))
    return True


def pass_ended_bootstrap(replay: TableReplay, ranges: Mapping[FileId, tuple[int, int]], hosts: Hosts) -> None:
    """Release what came of bootstraps that ended before they were whole."""
    replay.apply([], ranges, hosts)
    _log.warning("bootstrap_ended_incomplete", table=replay.spec.name, files=len(ranges))
