"""Each peer's disk budget: samples the backlog for forecasts, and releases files when it exceeds the budget."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from replication import log
from replication.files.local import path_errors
from replication.ledger.base import Ledger
from replication.wall_clock import now_us

SAMPLE_US = 10_000_000
KEEP_US = 3_600_000_000
_log = log.get(__name__)


def backlog_gauge(peer: str) -> str:
    """The gauge of the bytes of local files that a peer lacks."""
    return f"backlog {peer}"


def disk_gauge(host: str) -> str:
    """The gauge of the used bytes of a host's disk."""
    return f"disk {host}"


class Budgets:
    """Samples disk use and enforces the peers' disk budgets of one cluster.

    Args:
        data_dir: a directory on the disk to sample.
        budget: bytes of local files to retain for a peer; None for no limit.
        spills: whether files past the budget move to a store, so that none is released.
    """

    def __init__(
        self,
        ledger: Ledger,
        host: str,
        data_dir: str,
        budget: int | None,
        spills: bool,
        clock: Callable[[], int] = now_us,
    ) -> None:
        self._ledger = ledger
        self._host = host
        self._data_dir = data_dir
        self._budget = budget
        self._spills = spills
        self._clock = clock
        self._sampled = 0

    def watch(self) -> None:
        """Sample this host's disk when due. Runs on every host, elected or not."""
        now = self._clock()
        if abs(now - self._sampled) >= SAMPLE_US:  # the clock may step back
            self._sampled = now
            with path_errors(self._data_dir, "look at the disk of"):
                used = shutil.disk_usage(self._data_dir).used
            self._ledger.sending.sample(disk_gauge(self._host), now, used, now - KEEP_US)

    def keep(self, term: int) -> None:
        """Sample the peers' backlogs and release files past the budget. Runs on the elected master.

        Raises:
            StaleTermError: a newer master was elected; nothing was released.
        """
        now = self._clock()
        backlogs = self._ledger.files.backlogs()
        for backlog in backlogs:
            self._ledger.sending.sample(backlog_gauge(backlog.peer), now, backlog.local_bytes, now - KEEP_US)
        budget = self._budget
        if budget is None or self._spills or all(backlog.counted_bytes <= budget for backlog in backlogs):
            return
        for released in self._ledger.files.release(budget, term):
            for table in released.tables:
                spec = self._ledger.tables.by_uuid(table)
                name = str(table) if spec is None else spec.name
                _log.error(
                    "table_needs_bootstrap",
                    peer=released.peer,
                    table=name,
                    files=len(released.files),
                    bytes=released.bytes,
                )
            _log.warning(
                "files_released", peer=released.peer, files=len(released.files), bytes=released.bytes, limit=budget
            )
