"""Keeps a cluster's newest status, and the lags of the last hour."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from peer.status.collect import ClusterStatus
from replication import log
from replication.errors import ReplicationError

HISTORY_S = 3600.0
_SAMPLE_S = 5.0
_REST = 20  # times as long as the last reading took, so that the status of many tables takes no core
_FRESH_S = 1.0
_log = log.get(__name__)


@dataclass(frozen=True, slots=True)
class Lags:
    """What lags at one moment, in seconds, by ``to PEER`` and ``from ORIGIN``; ``at`` is of the monotonic clock."""

    at: float
    lag_s: Mapping[str, float]


class SampledStatus:
    """Reads the status every few seconds, and when someone asks, at most once a second; more seldom if that takes long.

    Args:
        read: gives the status; called by one thread at a time.
    """

    def __init__(self, read: Callable[[], ClusterStatus]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._newest: ClusterStatus | None = None
        self._read_at = self._took_s = 0.0
        self._history: deque[Lags] = deque()
        self._thread = threading.Thread(target=self._sample, name="monitor's samples", daemon=True)

    def __enter__(self) -> SampledStatus:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def status(self) -> ClusterStatus:
        """The status, at most a second old, or as old as it takes to read.

        Raises:
            ReplicationError: it cannot be read.
        """
        with self._lock:
            began = time.monotonic()
            if self._newest is None or began - self._read_at > max(_FRESH_S, self._took_s):
                self._newest = None
                self._newest = self._read()
                self._read_at = time.monotonic()
                self._took_s = self._read_at - began
            return self._newest

    def history(self) -> tuple[Lags, ...]:
        """Samples of the last hour, the oldest first."""
        return tuple(self._history)

    def _sample(self) -> None:
        while not self._stop.is_set():
            try:
                with suppress(ReplicationError):  # whoever asks for the page is told
                    self._keep(Lags(time.monotonic(), lags(self.status())))
            except Exception:
                _log.exception("monitor_sample_failed")
            self._stop.wait(max(_SAMPLE_S, _REST * self._took_s))

    def _keep(self, sample: Lags) -> None:
        self._history.append(sample)
        while self._history[0].at < sample.at - HISTORY_S:
            self._history.popleft()


def lags(status: ClusterStatus) -> dict[str, float]:
    """By ``to PEER`` the lag of its slowest table, by ``from ORIGIN`` the age of its replicated time, in seconds."""
    found = {f"to {peer}": lag_s for peer, lag_s in peer_lags(status).items()}
    for each in status.origins:
        if each.origin != status.id and each.age_s is not None:
            name = f"from {each.origin.partition(':')[0]}"  # former ids of a cluster have its name, too
            found[name] = max(each.age_s, found.get(name, 0.0))
    return found


def peer_lags(status: ClusterStatus) -> dict[str, float]:
    """By peer, the lag of its slowest table in seconds; 0 for one without tables."""
    lags = {peer.peer: 0.0 for peer in status.sending}
    for row in status.peers:
        lags[row.peer] = max(lags.get(row.peer, 0.0), row.lag_s)
    return lags
