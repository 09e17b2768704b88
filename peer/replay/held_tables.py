"""Tables that failed: each is tried again with backoff, in a pass of its own. Other tables are not delayed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from replication import log
from replication.error_text import one_line
from replication.errors import (
    CommitConflictError,
    EngineLostError,
    ForeignMaintenanceError,
    HostAwayError,
    ReplicationError,
    SupersededError,
)
from replication.files.local import FULL
from replication.retries import exponential

_RETRY_WAIT = exponential(1.0, 60.0)
_AT_ONCE = 3  # retries of a conflict without a wait
_log = log.get(__name__)


def reason_of(error: Exception) -> str:
    """Return why something failed and is tried again, for ``status``."""
    if isinstance(error, ReplicationError):
        return str(error)
    if any(os.strerror(code) in str(error) for code in FULL):  # Arrow and Java name no file
        return (
            f"no space left for tables' files or temporary files ({one_line(error)}). Make room on the disks of"
            " [cluster] data_dir and [catalog] warehouse; it is tried again"
        )
    return one_line(error)


def retry_wait(failures: int) -> float:
    """Return the wait after failures in a row that may pass: the first few have none."""
    return 0.0 if failures <= _AT_ONCE else _RETRY_WAIT(failures - _AT_ONCE)


class PositionsMovedError(ReplicationError):
    """Settling a table changed which of its frames are pending; select them again."""

    retryable = True


@dataclass(slots=True)
class _Held:
    reason: str
    tries: int
    retry_at_s: float  # monotonic


class HeldTables:
    """The tables that are held back, with the reasons. For one thread."""

    def __init__(self) -> None:
        self._held: dict[UUID, _Held] = {}

    def __contains__(self, table: UUID) -> bool:
        return table in self._held

    def __bool__(self) -> bool:
        return bool(self._held)

    def __iter__(self) -> Iterator[UUID]:
        return iter(list(self._held))

    def reasons(self) -> dict[UUID, str]:
        """Return the reason for each table."""
        return {table: held.reason for table, held in self._held.items()}

    def due(self) -> list[UUID]:
        """Return the tables to try again now."""
        now = time.monotonic()
        return [table for table, held in self._held.items() if held.retry_at_s <= now]

    def hold(self, table: UUID, name: str, error: Exception) -> None:
        """Hold a table back. The delay grows with each failure.

        Raises:
            SupersededError, EngineLostError: ``error`` itself, which ends the replayer.
        """
        if isinstance(error, EngineLostError | SupersededError):
            raise error
        tries = self._held[table].tries + 1 if table in self._held else 0
        passing = isinstance(error, CommitConflictError | HostAwayError | PositionsMovedError)
        delay_s = 0.0 if passing and tries < _AT_ONCE else _RETRY_WAIT(tries + 1)
        known = isinstance(error, ReplicationError)
        reason = reason_of(error)
        self._held[table] = _Held(reason, tries, time.monotonic() + delay_s)
        report = _log.error if isinstance(error, ForeignMaintenanceError) or not known else _log.warning
        report("table_held", table=name, reason=reason, retry_s=round(delay_s, 1))

    def occupy(self, table: UUID, reason: str) -> None:
        """Hold a table back that has not failed, until ``retry_now``."""
        self._held[table] = _Held(reason, -1, float("inf"))

    def retry_now(self, table: UUID) -> None:
        """Try a held table again at once."""
        self._held[table].retry_at_s = time.monotonic()

    def release(self, table: UUID) -> None:
        """Return a table to the shared pass."""
        self._held.pop(table, None)
