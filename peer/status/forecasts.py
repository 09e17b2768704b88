"""When an absent peer will be past its disk budget, and when a host's disk will be full, at today's rates."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from replication.config import Config
from replication.core.forecast import forecast
from replication.ledger.base import Backlog, Ledger
from replication.master.budget import backlog_gauge, disk_gauge
from replication.worker.report.attempts import SPILL

_DISK_REACH = 20.0  # the burst of a start or an import predicts nothing


@dataclass(frozen=True, slots=True)
class PeerForecast:
    """What one peer is missing of files here, against the budget.

    Sizes are bytes of whole files: on disks of this cluster's hosts, and in the store. ``growth`` is bytes per second;
    the budget is past in ``runs_out_s`` seconds: None when that is unknown or never happens. ``then`` is what
    happens: ``spill`` or ``bootstrap``. ``spill_error`` is why files cannot be moved to the store, or back.
    """

    peer: str
    local_files: int
    local_bytes: int
    stored_files: int
    stored_bytes: int
    oldest: int
    budget: int
    growth: float | None
    runs_out_s: float | None
    then: str
    spill_error: str = ""


@dataclass(frozen=True, slots=True)
class DiskForecast:
    """This host's disk: it is full in ``full_s`` seconds at ``growth`` bytes per second; None as in ``PeerForecast``.

    It looks twenty times as far ahead as back: over three hours after ten minutes. While less than
    ``reserved_bytes`` is free, nothing lands here.
    """

    host: str
    free: int
    growth: float | None
    full_s: float | None
    reserved_bytes: int = 0


def peer_forecasts(ledger: Ledger, config: Config, now: int) -> tuple[PeerForecast, ...]:
    """Forecasts of every peer that tables go to; ``now`` in microseconds since 1970."""
    troubles = {
        found.peer: found.error for found in ledger.sending.attempts() if found.work == SPILL and found.failures
    }
    return tuple(
        _of_peer(ledger, config, backlog, now, troubles.get(backlog.peer, "")) for backlog in ledger.files.backlogs()
    )


def _of_peer(ledger: Ledger, config: Config, backlog: Backlog, now: int, spill_error: str) -> PeerForecast:
    budget = config.master.peer_bytes_max
    samples = [*ledger.sending.samples(backlog_gauge(backlog.peer)), (now, backlog.local_bytes)]
    seen = forecast(samples, budget, now)
    return PeerForecast(
        backlog.peer,
        backlog.local_files,
        backlog.local_bytes,
        backlog.stored_files,
        backlog.stored_bytes,
        backlog.oldest,
        budget,
        None if seen is None else round(seen.growth, 3),
        None if seen is None or seen.in_s is None else round(seen.in_s, 1),
        "spill" if config.master.spill_url else "bootstrap",
        spill_error,
    )


def disk_forecast(ledger: Ledger, config: Config, now: int) -> DiskForecast:
    """The forecast of this host."""
    folder = config.data_dir if Path(config.data_dir).exists() else Path("/")
    usage = shutil.disk_usage(folder)
    samples = [*ledger.sending.samples(disk_gauge(config.cluster.host)), (now, usage.used)]
    seen = forecast(samples, usage.used + usage.free, now, _DISK_REACH)
    growth = None if seen is None else round(seen.growth, 3)
    full_s = None if seen is None or seen.in_s is None else round(seen.in_s, 1)
    return DiskForecast(config.cluster.host, usage.free, growth, full_s, config.receiver.disk_free_min_bytes)
