"""Measures what a drill does to the cluster: how far the tables are behind, second by second, while it runs."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from peer.replay_report import ReplayReport
from replication.errors import ReplicationError
from replication.ledger.base import Ledger
from replication.wall_clock import now_us

_EVERY_S = 1.0
_POLL_S, _POLL_SHARE = 0.05, 0.05
_SAMPLES_MAX = 600


@dataclass(frozen=True, slots=True)
class LagSample:
    """The cluster at ``at_s`` after the drill began: its lag in seconds, bytes to replay, rounds of replay so far."""

    at_s: float
    lag_s: float
    waiting_bytes: int
    rounds: int


class LagSampler:
    """Takes samples from the time it is entered until it is left, in a thread of its own.

    When there are many, every second one is dropped, and later ones are taken half as often.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lag samples")
        self._samples: list[LagSample] = []
        self._began_s = time.monotonic()

    def __enter__(self) -> LagSampler:
        self._began_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def samples(self) -> tuple[LagSample, ...]:
        """Those taken by now."""
        return tuple(self._samples)

    def _run(self) -> None:
        every_s = _EVERY_S
        while True:
            with suppress(ReplicationError):  # the next one may work
                self._samples.append(self._take())
            if len(self._samples) > _SAMPLES_MAX:
                self._samples, every_s = self._samples[::2], every_s * 2
            if self._stop.wait(every_s):
                return

    def _take(self) -> LagSample:
        times = [reached.t for reached in self._ledger.time.replicated().values() if reached.t]
        waiting = sum(part.end - part.begin for part in self._ledger.replay.pending())
        report = ReplayReport.load(self._ledger.replay)
        lag_s = max(0.0, (now_us() - min(times)) / 1e6) if times else 0.0
        at_s = round(time.monotonic() - self._began_s, 2)
        return LagSample(at_s, round(lag_s, 3), waiting, 0 if report is None else report.rounds)


def applied_within(ledger: Ledger, timeout_s: float) -> bool:
    """Wait until the tables have everything that had landed at the call; False when they did not in time.

    The longer it takes, the more seldom it looks, so that a busy cluster is asked little.
    """
    waited = {part.row.file: part.end for part in ledger.replay.pending()}
    began_s = time.monotonic()
    while waited:
        begun = {part.row.file: part.begin for part in ledger.replay.pending()}
        waited = {file: end for file, end in waited.items() if begun.get(file, end) < end}
        taken_s = time.monotonic() - began_s
        if waited and taken_s >= timeout_s:
            return False
        if waited:
            time.sleep(min(max(_POLL_S, _POLL_SHARE * taken_s), timeout_s - taken_s))
    return True
