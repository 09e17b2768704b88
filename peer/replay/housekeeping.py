"""Fold, compact and expire tables, each when it is due.

Intervals grow with cost, so that folds take at most half of their thread's time. A slow fold delays only the next fold
of its own table. ``status`` shows the current intervals and the errors, from the ledger.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from uuid import UUID

from peer.replay.held_tables import reason_of
from peer.tables.establish import establish
from peer.tables.fold import FullyFolded, fold
from peer.tables.maintenance import drop_scratch, remove_orphans, tidy, trim
from replication import log
from replication.core.definition.schema import TableSpec
from replication.error_text import one_line
from replication.errors import CommitConflictError, EngineLostError, ReplicationError
from replication.ledger.base import Ledger
from replication.ledger.changes import LedgerChanges
from replication.settings import ReplaySection
from replication.tables.base import Tables
from replication.tables.layout import landing_name
from replication.wall_clock import now_us

_log = log.get(__name__)
_ALTER_RETRY_S = 10.0
_MISSING_RETRY_S = 10.0  # tables that replay has not made yet ...
_MISSING_RETRY_MAX_S = 300.0  # ... if replay commits nothing at all
_ORPHANS = 12  # maintenance intervals: by default an hour
_FAILED_RETRY_S = 30.0  # the longest wait after a failure, even if the interval is longer


class Housekeeping:
    """Folds, compaction and expiry of all tables. For one thread."""

    def __init__(
        self,
        tables: Tables,
        ledger: Ledger,
        settings: ReplaySection,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._tables = tables
        self._ledger = ledger
        self._settings = settings
        self._changes = LedgerChanges(ledger, monotonic)
        self._specs: list[TableSpec] = []
        self._next_s = 0.0
        self._due: dict[tuple[UUID, str], float] = {}
        self._shaped: dict[UUID, TableSpec] = {}
        self._missing: dict[UUID, tuple[float, float]] = {}  # tables that replay has not made yet: for how long, until
        self._rows_came = False
        self._costs: dict[UUID, tuple[float, float]] = {}  # of the last two folds
        self._fully_folded = FullyFolded()
        self._compacted: dict[str, int | None] = {}  # by Iceberg table
        self._scratch_due = monotonic() + settings.maintenance_interval_s
        self._errors: dict[tuple[UUID, str], str] = {}  # by table and what failed
        self.fold_interval_s = settings.fold_interval_s

    def run_once(self, stop: Callable[[], bool]) -> None:
        """Run everything that is due, table by table, until ``stop`` returns True.

        Raises:
            EngineLostError: the Spark session is gone.
        """
        self._check_soon()
        before, specs = self._specs, self._specs
        if self._changes.any():
            try:
                specs = self._ledger.tables.all()
            except ReplicationError:
                self._changes.forget()
                raise
        if specs == before and self._monotonic() < self._next_s:
            return
        self._specs, self._next_s = specs, 0.0
        known = {spec.uuid for spec in specs}
        self._due = {key: due for key, due in self._due.items() if key[0] in known}
        self._costs = {table: costs for table, costs in self._costs.items() if table in known}
        self._fully_folded.keep(known)
        self._missing = {table: left for table, left in self._missing.items() if table in known}
        self._errors = {key: text for key, text in self._errors.items() if key[0] in known}
        self._drop_scratch()
        for spec in specs:
            if stop():
                return
            self._shape(spec)
            # Before the fold: a read that began just before it takes from the changes what it folded.
            self._when_due(spec, "trim", self._settings.maintenance_interval_s, self._trim)
            if spec.key:
                self._count(spec, self._when_due(spec, "fold", self.fold_interval_s, self._fold))
            self._when_due(spec, "tidy", min(10.0, self._settings.maintenance_interval_s), self._tidy)
            self._when_due(spec, "orphans", _ORPHANS * self._settings.maintenance_interval_s, self._orphans)
        if all(self._shaped.get(spec.uuid) == spec for spec in specs):
            self._next_s = min((due for (_, what), due in self._due.items() if what != "alter"), default=math.inf)

    @property
    def errors(self) -> dict[str, str]:
        """What failed last and is tried again, by "TABLE WHAT". Safe for threads."""
        names = {spec.uuid: spec.name for spec in self._specs}
        return {f"{names[table]} {what}": text for (table, what), text in self._errors.copy().items() if table in names}

    def rows_came(self) -> None:
        """Replay has committed rows, and may have made tables. Safe for threads."""
        self._rows_came = True

    def _check_soon(self) -> None:
        """Look for missing tables soon if rows came."""
        if not self._rows_came or not self._missing:
            return
        self._rows_came = False
        soon_s = self._monotonic() + _MISSING_RETRY_S
        for key, due_s in self._due.items():
            if due_s == self._missing.get(key[0], (0.0, 0.0))[1]:
                self._due[key] = min(due_s, soon_s)
        self._missing.clear()
        self._next_s = min(self._next_s, soon_s)

    def _leave_alone(self, table: UUID, now_s: float) -> float:
        """Until when a missing table is not looked for: ever longer."""
        before_s, _ = self._missing.get(table, (_MISSING_RETRY_S / 2, 0.0))
        retry_s = min(2 * before_s, _MISSING_RETRY_MAX_S)
        self._missing[table] = (retry_s, now_s + retry_s)
        return now_s + retry_s

    def _count(self, spec: TableSpec, took: float) -> None:
        """Set the interval to twice the time of folding every table: the faster of each table's last two folds."""
        if took:
            _, before = self._costs.get(spec.uuid, (0.0, 0.0))
            self._costs[spec.uuid] = (before, took)
            cost = sum(min(costs) for costs in self._costs.values())
            self.fold_interval_s = max(self._settings.fold_interval_s, 2 * cost)

    def _shape(self, spec: TableSpec) -> None:
        """Alter the Iceberg tables to a changed definition, even if no frames arrive."""
        due = (spec.uuid, "alter")
        if self._shaped.get(spec.uuid) == spec or self._monotonic() < self._due.get(due, 0.0):
            return
        self._shaped[spec.uuid] = spec
        self._when_due(spec, "alter", 0.0, self._made)
        if due in self._errors:
            self._shaped.pop(spec.uuid, None)
            self._due[due] = self._monotonic() + _ALTER_RETRY_S

    def _when_due(self, spec: TableSpec, what: str, interval_s: float, act: Callable[[TableSpec], None]) -> float:
        key = (spec.uuid, what)
        started = self._monotonic()
        if key not in self._due:  # a new table, or after a start: by the configured interval
            self._due[key] = started + min(interval_s, self._settings.fold_interval_s)
        if started < self._due[key]:
            return 0.0
        _, until_s = self._missing.get(spec.uuid, (0.0, 0.0))
        if what != "alter" and started < until_s:
            self._due[key] = until_s
            return 0.0
        try:
            if not self._tables.exists(landing_name(spec)):
                self._due[key] = self._leave_alone(spec.uuid, started)
                return 0.0
            self._missing.pop(spec.uuid, None)
            act(spec)
            self._errors.pop(key, None)
        except EngineLostError:
            raise
        except CommitConflictError:
            self._errors.pop(key, None)  # another commit came first; the next pass tries again
        except ReplicationError as error:
            self._errors[key] = str(error)
            _log.warning("housekeeping_postponed", table=spec.name, what=what, reason=error.what)
        except Exception as error:  # other tables go on
            self._errors[key] = reason_of(error)
            _log.error("housekeeping_failed", table=spec.name, what=what, reason=self._errors[key])
        took = self._monotonic() - started
        if key in self._errors:
            interval_s = min(interval_s, max(_FAILED_RETRY_S, 10 * took))
        self._due[key] = self._monotonic() + max(interval_s, took)
        return took

    def _drop_scratch(self) -> None:
        if self._monotonic() < self._scratch_due:
            return
        self._scratch_due = self._monotonic() + self._settings.maintenance_interval_s
        try:
            drop_scratch(self._tables, self._ledger, now_us())
        except Exception as error:  # of the catalog's store; tables go on
            _log.warning("scratch_not_dropped", reason=one_line(error))

    def _made(self, spec: TableSpec) -> None:
        try:
            establish(self._tables, self._ledger, spec)
        except CommitConflictError:
            del self._shaped[spec.uuid]
            raise

    def _fold(self, spec: TableSpec) -> None:
        fold(self._tables, self._ledger, spec, now_us(), self._settings.fold_hold_s, self._fully_folded)

    def _tidy(self, spec: TableSpec) -> None:
        tidy(self._tables, self._ledger, spec, now_us(), self._compacted)

    def _trim(self, spec: TableSpec) -> None:
        if self._tables.has(spec):  # since the pass began, another table may have got its name
            trim(self._tables, self._ledger, spec, now_us(), self._settings.changes_retention_s)

    def _orphans(self, spec: TableSpec) -> None:
        remove_orphans(self._tables, spec, now_us())
