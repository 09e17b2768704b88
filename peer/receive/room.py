"""Whether there is room for more: free disk space, and landed bytes that wait for replay."""

from __future__ import annotations

import shutil
import time

import structlog

from peer.receive.limits import LandingLimits
from replication.ledger.base import FileKind, Ledger

_LOOK_S = 1.0
_log = structlog.get_logger(__name__)


class Room:
    """Room on this host; ``cluster`` is its name, for people to read."""

    def __init__(self, ledger: Ledger, cluster: str, limits: LandingLimits) -> None:
        self._ledger = ledger
        self._cluster = cluster
        self._limits = limits
        self._lacking = ""
        self._looked_s = 0.0

    def lacking_for(self, size: int) -> str:
        """Why ``size`` bytes more cannot land and be kept in tables here, in figures; "" when they can."""
        free = shutil.disk_usage(self._limits.directory).free if size else 0
        needed = 2 * size + self._limits.disk_free_min_bytes
        if not size or free >= needed:
            return ""
        return (
            f"rows from before need about {2 * size >> 20} MiB at {self._cluster}, where {free >> 20} MiB are free"
            f" and {self._limits.disk_free_min_bytes >> 20} MiB are to stay free"
        )

    def lacking(self, *, between_groups: bool = False) -> str:
        """Why no more bytes are taken; "" when they are. Looked at once a second, between groups if possible."""
        now = time.monotonic()
        if now >= self._looked_s + _LOOK_S * (1 if between_groups else 2):
            self._looked_s, limits = now, self._limits
            free = shutil.disk_usage(limits.directory).free
            rows = self._ledger.files.all(limits.host)
            waiting = sum(row.length - row.applied for row in rows if row.kind is FileKind.LANDING)
            self._lacking = ""
            if free < limits.disk_free_min_bytes:
                self._lacking = (
                    f"only {free >> 20} MiB are free, {limits.disk_free_min_bytes >> 20} MiB are to stay free"
                )
            elif waiting > limits.waiting_bytes_max:
                self._lacking = f"{waiting >> 20} MiB wait for replay, {limits.waiting_bytes_max >> 20} MiB are allowed"
            if self._lacking:
                _log.error("landing_refused", host=limits.host, reason=self._lacking)
        return self._lacking
