"""Progress of files at peers goes into the ledger in batches. It is joined, so the order of reports does not matter."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from uuid import UUID

import structlog

from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import FileId
from replication.errors import CoordinationError
from replication.ledger.base import Ledger, PeerProgress

_WAITING_MAX = 100_000
_log = structlog.get_logger(__name__)


class ProgressLog:
    """Collects progress; ``flush`` writes it. Safe for threads. What waits for the ledger is joined, not queued."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._waiting: dict[tuple[FileId, str], PeerProgress] = {}

    def report(self, progress: PeerProgress) -> None:
        """Add to the next batch."""
        key = (progress.file, progress.peer)
        with self._lock:
            known = self._waiting.get(key)
            if known is not None:
                progress = join(known, progress)
            elif len(self._waiting) >= _WAITING_MAX:
                return  # the peer's resume ranges bring it again
            self._waiting[key] = progress

    def flush(self) -> bool:
        """Whether what was reported before is in the ledger now; it stays waiting when the ledger cannot take it."""
        with self._flushing:
            return self._flush()

    def _flush(self) -> bool:
        with self._lock:
            batch, self._waiting = self._waiting, {}
        if not batch:
            return True
        try:
            self._ledger.files.record(list(batch.values()))
        except CoordinationError as error:
            _log.warning("progress_not_recorded", files=len(batch), error=str(error))
            for progress in batch.values():
                with self._lock:
                    later = self._waiting.get((progress.file, progress.peer))
                    self._waiting[progress.file, progress.peer] = join(progress, later) if later else progress
            return False
        return True


def join(earlier: PeerProgress, later: PeerProgress) -> PeerProgress:
    """Both together; the error is the later one's.

    After a loss at the peer, of earlier reports only that counts which the peer kept.
    """
    old, new = (earlier, later) if earlier.losses <= later.losses else (later, earlier)
    shipped, applied, kept = old.shipped, old.applied, new.kept
    if old.losses == new.losses:
        kept = old.kept.union(new.kept)
    else:
        shipped = shipped.intersect(new.kept)
        applied = min(applied, shipped.prefix(FILE_HEADER_BYTES))
    return PeerProgress(
        earlier.file,
        earlier.peer,
        shipped.union(new.shipped),
        max(applied, new.applied),
        max(earlier.commit, later.commit),
        later.error if later.tells_error else earlier.error,
        _older(earlier.generation, later.generation),
        new.losses,
        kept,
        _both(earlier.withheld, later.withheld),
        earlier.tells_error or later.tells_error,
    )


def _both(one: Mapping[UUID, Ranges], two: Mapping[UUID, Ranges]) -> Mapping[UUID, Ranges]:
    if not one or not two:
        return one or two
    return {table: one.get(table, Ranges()).union(two.get(table, Ranges())) for table in (*one, *two)}


def _older(one: int | None, two: int | None) -> int | None:
    if one is None or two is None:
        return two if one is None else one
    return min(one, two)
