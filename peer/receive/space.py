"""Limits on landing: free disk space, and landed bytes that wait for replay."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Sequence
from uuid import UUID

from peer.receive.limits import LandingLimits
from peer.replay_report import ReplayReport
from replication import log
from replication.ledger.base import FileKind, FileRow, Ledger

_POLL_S = 1.0
_PAUSE = 10  # the pause between two checks, as a multiple of the time that a check takes
_log = log.get(__name__)


class LandingSpace:
    """Free space on this host.

    ``held`` has a reason for each table that is refused because replay holds it. It is empty unless
    ``waiting_bytes_max`` is exceeded. ``over_quota`` has the sender that is refused because it has most of what waits,
    and the reason. One sender alone does not take the last quarter of ``waiting_bytes_max`` from the others. The same
    holds for as much free space as must stay free anyway. Bootstraps count for free space only: one is replayed as a
    whole, so it may be larger than what else may wait.
    """

    def __init__(self, ledger: Ledger, limits: LandingLimits) -> None:
        self._ledger = ledger
        self._limits = limits
        self.held: dict[UUID, str] = {}
        self.over_quota: dict[str, str] = {}
        self._shortage = ""
        self._checked_s = 0.0

    @property
    def is_free(self) -> bool:
        """Whether nobody was refused anything for want of space at the last check."""
        return not (self._shortage or self.held or self.over_quota)

    def shortage_for(self, size: int) -> str:
        """Return why ``size`` more bytes do not fit here, landed and in tables; "" when they do."""
        free = shutil.disk_usage(self._limits.directory).free if size else 0
        least = self._limits.disk_free_min_bytes
        needed = size + max(size, least)  # its sender must not be over its quota once it has landed
        if not size or free >= needed + least:
            return ""
        return (
            f"a bootstrap needs about {needed >> 20} MiB at {self._ledger.cluster.name}, where {free >> 20} MiB are"
            f" free and {least >> 20} MiB must stay free"
        )

    def shortage(self, *, between_groups: bool = False) -> str:
        """Return why no more bytes are accepted, or "". Checks at most once a second, if possible between groups."""
        begun_s = time.monotonic()
        if begun_s >= self._checked_s + (0 if between_groups else _POLL_S):
            limits = self._limits
            free = shutil.disk_usage(limits.directory).free
            rows = self._ledger.files.all(limits.host)
            waiting = sum(row.length - row.applied for row in rows if row.kind is FileKind.LANDING)
            before, self._shortage = self._shortage, ""
            self.over_quota = self._over_quota(rows, waiting, free)
            if waiting > limits.waiting_bytes_max:
                waiting = self._leave_out_held(waiting)
            else:
                self.held = {}
            if free < limits.disk_free_min_bytes:
                self._shortage = (
                    f"only {free >> 20} MiB are free, and {limits.disk_free_min_bytes >> 20} MiB must stay free"
                )
            elif waiting > limits.waiting_bytes_max:
                self._shortage = (
                    f"{waiting >> 20} MiB wait for replay, more than the {limits.waiting_bytes_max >> 20} MiB allowed"
                )
            if self._shortage and not before:
                _log.error("landing_refused", host=limits.host, reason=self._shortage)
            now_s = time.monotonic()
            self._checked_s = now_s + max(_POLL_S, _PAUSE * (now_s - begun_s))
        return self._shortage

    def _over_quota(self, rows: Sequence[FileRow], waiting: int, free: int) -> dict[str, str]:
        """Return the sender with most of what waits, with the reason, when space gets scarce and there are others."""
        limits = self._limits
        is_disk_scarce = free < 2 * limits.disk_free_min_bytes
        if 4 * waiting <= 3 * limits.waiting_bytes_max and not is_disk_scarce:
            return {}
        kinds = (FileKind.LANDING, FileKind.BOOTSTRAP) if is_disk_scarce else (FileKind.LANDING,)
        by_sender = Counter[str]()
        for row in rows:
            if row.kind in kinds and row.source is not None:
                by_sender[row.source.cluster.name] += row.length - row.applied
        others = {route.source.name for route in self._ledger.landing.routes()}
        total = by_sender.total()
        if not total or len(others | by_sender.keys()) < 2:
            return {}
        ((name, most),) = by_sender.most_common(1)
        if name not in self.over_quota:
            _log.warning("sender_over_quota", host=limits.host, source=name, bytes=most)
        why = f"space gets scarce, and {most >> 20} of the {total >> 20} MiB that wait for replay are of {name}"
        return {name: f"{why}; the rest is for other clusters"}

    def _leave_out_held(self, waiting: int) -> int:
        """Set ``held`` to the tables that replay holds; return the bytes that wait for other tables."""
        report = ReplayReport.load(self._ledger.replay)
        held = report.held if report is not None else {}
        names = {spec.uuid: spec.name for spec in self._ledger.tables.all() if spec.name in held}
        before, self.held = self.held, {}
        if not names:
            return waiting
        limit = f"{waiting >> 20} MiB wait for replay, more than the {self._limits.waiting_bytes_max >> 20} MiB allowed"
        self.held = {table: f"{limit}, and {name} is held there: {held[name]}" for table, name in names.items()}
        for table in self.held.keys() - before.keys():
            _log.error("landing_refused", host=self._limits.host, table=str(table), reason=self.held[table])
        return self._ledger.replay.waiting_bytes(self._limits.host, names.keys())
