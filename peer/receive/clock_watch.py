"""Raise an alarm for commit times far ahead of this host's clock, and refuse those that are further ahead.

Every cluster's writers follow the commit times that land. Frames far ahead land like others, since all clusters must
converge; the log and ``walship status`` name the origin. Frames further ahead than ``ahead_max_s`` do not land.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from replication import log
from replication.core.clock import is_far_ahead
from replication.core.frame import FrameView
from replication.core.ids import ClusterId
from replication.errors import CoordinationError
from replication.ledger.base import Ledger, SkewedClock
from replication.wall_clock import now_us

AGAIN_US = 60_000_000
_log = log.get(__name__)


class ClockWatch:
    """Checks the commit times of arriving frames. Safe for threads.

    Args:
        ledger: stores alarms for ``status``.
        ahead_max_s: how far ahead a commit time may be.
    """

    def __init__(self, ledger: Ledger, ahead_max_s: float) -> None:
        self._ledger = ledger
        self._ahead_max_s = ahead_max_s
        self._lock = threading.Lock()
        self._alarmed: dict[ClusterId, int] = {}  # time of the last alarm, by origin

    def latest(self) -> int:
        """Return the latest commit time that may land now."""
        return now_us() + int(self._ahead_max_s * 1e6)

    def check(self, frames: Sequence[FrameView]) -> None:
        """Raise an alarm for each origin that is far ahead, at most once a minute per origin."""
        now = now_us()
        ahead: dict[ClusterId, int] = {}
        for frame in frames:
            commit = frame.header.commit_hi
            if is_far_ahead(commit, now):
                origin = frame.header.wal.cluster
                ahead[origin] = max(commit, ahead.get(origin, 0))
        for origin, commit in ahead.items():
            with self._lock:
                if abs(now - self._alarmed.get(origin, -AGAIN_US)) < AGAIN_US:
                    continue
                self._alarmed[origin] = now
            _log.error("clock_far_ahead", origin=str(origin), commit=commit, ahead_s=(commit - now) / 1e6)
            try:
                self._ledger.time.note_ahead(SkewedClock(origin, commit, now))
            except CoordinationError as error:
                _log.warning("clock_far_ahead_not_noted", origin=str(origin), error=str(error))
