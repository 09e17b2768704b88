"""The replay role: rounds in one thread, folds and maintenance in another, one Spark session for both.

Intervals claim range with cost, so that folds take at most half of their thread's time; of a table that was slow once
the
next fold is put off, and no other table's. What they are now, and which tables are held back and why, is in the ledger
for ``status``.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import structlog

from peer.bootstrap.keeper import BootstrapKeeper
from peer.frames.host_watch import HostWatch
from peer.frames.quarantine import Quarantine
from peer.replay.rounds import Replayer
from peer.status.replay_report import ReplayReport
from peer.tables.establish import establish
from peer.tables.fold import Settled, fold
from peer.tables.maintenance import Retention, tidy, trim
from replication.config import Config
from replication.coordination.session import Coordination
from replication.core.definition.schema import TableSpec
from replication.errors import (
    CommitConflictError,
    CoordinationError,
    EngineLostError,
    LockedFileError,
    ReplicationError,
    SupersededError,
    one_line,
)
from replication.files.boot import boot_id
from replication.files.local import LocalFiles
from replication.ledger.base import Ledger
from replication.settings import ReplaySection
from replication.tables.base import Tables
from replication.tables.layout import landing_name

_log = structlog.get_logger(__name__)
_ALTER_RETRY_S = 10.0
_FAILED_RETRY_S = 30.0  # what failed is tried again so soon, however long its interval is
_REPORT_S = 2.0


class Housekeeping:
    """Folds, compaction and expiry of all tables, each when it is due. Its methods are for one thread.

    Args:
        tables: the warehouse.
        ledger: the cluster's.
        settings: intervals and retention.
    """

    def __init__(self, tables: Tables, ledger: Ledger, settings: ReplaySection) -> None:
        self._tables = tables
        self._ledger = ledger
        self._settings = settings
        self._due: dict[tuple[UUID, str], float] = {}
        self._shaped: dict[UUID, TableSpec] = {}
        self._costs: dict[UUID, tuple[float, float]] = {}  # of the last two folds
        self._settled = Settled()
        self.errors: dict[str, str] = {}
        self.fold_interval_s = settings.fold_interval_s

    def turn(self, stop: Callable[[], bool]) -> None:
        """Do what is due for every table.

        Raises:
            EngineLostError: the Spark session is gone.
        """
        specs = self._ledger.tables.all()
        known = {spec.uuid for spec in specs}
        self._due = {key: due for key, due in self._due.items() if key[0] in known}
        self._costs = {table: costs for table, costs in self._costs.items() if table in known}
        self._settled.keep(known)
        for spec in specs:
            if stop():
                return
            self._shape(spec)
            if spec.key:
                self._count(spec, self._when_due(spec, "fold", self.fold_interval_s, self._fold))
            self._when_due(spec, "tidy", min(10.0, self._settings.maintenance_interval_s), self._tidy)
            self._when_due(spec, "trim", self._settings.maintenance_interval_s, self._trim)

    def _count(self, spec: TableSpec, took: float) -> None:
        """ClaimRange the interval to twice what folding every table takes, of each the faster of its last two folds."""
        if took:
            _, before = self._costs.get(spec.uuid, (0.0, 0.0))
            self._costs[spec.uuid] = (before, took)
            cost = sum(min(costs) for costs in self._costs.values())
            self.fold_interval_s = max(self._settings.fold_interval_s, 2 * cost)

    def _shape(self, spec: TableSpec) -> None:
        """Have the Iceberg tables follow an altered definition, also when no frames come that would."""
        due = (spec.uuid, "alter")
        if self._shaped.get(spec.uuid) == spec or time.monotonic() < self._due.get(due, 0.0):
            return
        self._shaped[spec.uuid] = spec
        self._when_due(spec, "alter", 0.0, self._made)
        if f"{spec.name} alter" in self.errors:
            del self._shaped[spec.uuid]
            self._due[due] = time.monotonic() + _ALTER_RETRY_S

    def _when_due(self, spec: TableSpec, what: str, interval_s: float, act: Callable[[TableSpec], None]) -> float:
        key = (spec.uuid, what)
        started = time.monotonic()
        if key not in self._due:  # a new table, or a start: however far intervals are stretched
            self._due[key] = started + min(interval_s, self._settings.fold_interval_s)
        if started < self._due[key]:
            return 0.0
        try:
            if not self._tables.exists(landing_name(spec)):
                return 0.0
            act(spec)
            self.errors.pop(f"{spec.name} {what}", None)
        except EngineLostError:
            raise
        except CommitConflictError:
            pass  # another part of walship was faster; the next turn will do
        except ReplicationError as error:
            self.errors[f"{spec.name} {what}"] = str(error)
            _log.warning("housekeeping put off", table=spec.name, what=what, reason=error.what)
        except Exception as error:  # one table's trouble never stops another
            self.errors[f"{spec.name} {what}"] = one_line(error)
            _log.error("housekeeping failed", table=spec.name, what=what, reason=self.errors[f"{spec.name} {what}"])
        took = time.monotonic() - started
        if f"{spec.name} {what}" in self.errors:
            interval_s = min(interval_s, max(_FAILED_RETRY_S, 10 * took))
        self._due[key] = time.monotonic() + max(interval_s, took)
        return took

    def _made(self, spec: TableSpec) -> None:
        try:
            establish(self._tables, self._ledger, spec)
        except CommitConflictError:
            del self._shaped[spec.uuid]
            raise

    def _fold(self, spec: TableSpec) -> None:
        fold(self._tables, self._ledger, spec, _now(), self._settings.fold_hold_s, self._settled)

    def _tidy(self, spec: TableSpec) -> None:
        tidy(self._tables, self._ledger, spec, _now())

    def _trim(self, spec: TableSpec) -> None:
        trim(self._tables, self._ledger, spec, _now(), Retention(self._settings.changes_retention_s))


def run_replay(
    config: Config,
    ledger: Ledger,
    stop: threading.Event,
    ready: Callable[[], None],
    coordination: Coordination | None = None,
) -> None:
    """Replay this cluster's registered frames until ``stop`` is set.

    Where the cluster has other hosts, ``coordination`` tells where their files are read.

    Raises:
        SparkMissingError: PySpark or Java is not there.
        LockedFileError: replay runs on this host already.
        SupersededError: a replayer elsewhere has taken over.
        EngineLostError: Spark went away; start again.
    """
    from replication.tables.catalog.catalog import IcebergCatalog, configured_catalog
    from replication.tables.spark.iceberg import IcebergTables
    from replication.tables.spark.scratch import own_scratch
    from replication.tables.spark.session import open_session

    settings = config.replay
    with alone(config.run_dir):
        properties = configured_catalog(config)
        catalog = IcebergCatalog(properties)
        scratch = own_scratch(config.run_dir / "spark")
        session = open_session(
            properties,
            scratch,
            master=settings.spark_master,
            driver_memory=settings.driver_memory,
            jars=settings.jars,
            properties=settings.spark,
        )
        tables = IcebergTables(catalog, session, scratch, settings.small_bytes)
        watch = HostWatch(config, ledger.cluster, coordination).start() if coordination is not None else None
        try:
            replay_until(stop, tables, ledger, config, ready, watch)
        finally:
            if watch is not None:
                watch.close()
            tables.close()


def replay_until(
    stop: threading.Event,
    tables: Tables,
    ledger: Ledger,
    config: Config,
    ready: Callable[[], None],
    watch: HostWatch | None = None,
) -> None:
    """Rounds here, housekeeping and bootstraps in threads of their own, until ``stop``; errors as ``run_replay``."""
    quarantine = Quarantine(config.data_dir / "quarantine", ledger.replay)
    housekeeping = Housekeeping(tables, ledger, config.replay)
    host, directory = config.cluster.host, str(config.wal_dir)
    keep_free = config.receiver.disk_free_min_bytes
    bootstraps = BootstrapKeeper(tables, ledger, LocalFiles(), host, directory, boot_id(), keep_free)
    done = threading.Event()
    lost: list[EngineLostError] = []

    def again(turn: Callable[[Callable[[], bool]], None], name: str, every_s: float) -> threading.Thread:
        def run() -> None:
            while not done.wait(every_s):
                try:
                    turn(done.is_set)
                except EngineLostError as error:
                    lost.append(error)
                    return
                except CoordinationError as error:
                    _log.warning(f"{name} put off", reason=str(error))

        return threading.Thread(target=run, name=name)

    epoch = ledger.replay.raise_epoch()
    scratch = config.run_dir / "bootstraps"
    if watch is None:
        replayer = Replayer(ledger, tables, quarantine, epoch, scratch=scratch)
    else:
        replayer = Replayer(ledger, tables, quarantine, epoch, hosts=watch.hosts, failed=watch.failed, scratch=scratch)
    report = ReplayReport(host=host, pid=os.getpid())
    threads = [again(housekeeping.turn, "housekeeping", 1.0), again(bootstraps.turn, "bootstraps", 0.1)]
    for thread in threads:
        thread.start()
    try:
        ready()
        _rounds(replayer, housekeeping, bootstraps, stop, lost, config.replay.interval_s, ledger, report, epoch)
    finally:
        done.set()
        for thread in threads:
            thread.join()
        replayer.close()
    if lost:
        raise lost[0]


def _rounds(
    replayer: Replayer,
    housekeeping: Housekeeping,
    bootstraps: BootstrapKeeper,
    stop: threading.Event,
    lost: list[EngineLostError],
    interval_s: float,
    ledger: Ledger,
    report: ReplayReport,
    epoch: int,
) -> None:
    saved = before_s = 0.0
    while not stop.is_set() and not lost:
        try:
            result = replayer.round()
        except CoordinationError as error:
            _log.warning("replay round put off", reason=str(error))
            stop.wait(1.0)
            continue
        if result.frames:
            _log.info("replayed", frames=result.frames, tables=result.tables, seconds=round(result.seconds, 3))
        cost_s = result.seconds if result.tables > 1 else 0.0
        wait_s = 0.0 if result.more else stretched(interval_s, before_s, cost_s)
        before_s = cost_s
        said = (result.held, housekeeping.errors, bootstraps.state, dict(replayer.hosts.away))
        changed = said != (report.held, report.fold_errors, report.bootstraps, report.away)
        if changed or time.monotonic() - saved > _REPORT_S:
            saved = time.monotonic()
            report.at, report.round_interval_s, report.round_s = time.time(), wait_s, result.seconds
            report.fold_interval_s = housekeeping.fold_interval_s
            report.held, report.fold_errors, report.bootstraps, report.away = (dict(each) for each in said)
            _save(report, ledger, epoch)
        stop.wait(wait_s)


def stretched(interval_s: float, before_s: float, cost_s: float) -> float:
    """How long to rest after a round over several tables: as long as rounds take, so that half the time is left.

    What one round alone took more, such as the first in a cold JVM, which makes tables, says nothing about the next.

    Args:
        interval_s: the shortest rest.
        before_s: what the round before cost, 0.0 when it was cheap.
        cost_s: what this one did.
    """
    return max(interval_s, min(before_s, cost_s))


def _save(report: ReplayReport, ledger: Ledger, epoch: int) -> None:
    """Tell how replay goes; SupersededError when that is another's to tell by now."""
    try:
        newest = ledger.replay.epoch()
        if newest > epoch:
            raise SupersededError(
                f"a newer replayer (epoch {newest}) has taken over from this one (epoch {epoch})",
                "This host stands by from now on",
            )
        report.save(ledger.replay)
    except CoordinationError as error:
        _log.warning("replay_not_told", reason=str(error))


@contextmanager
def alone(run_dir: Path) -> Iterator[None]:
    """Hold this host's replay lock; LockedFileError when replay, or something else that must not meet it, runs."""
    run_dir.mkdir(parents=True, exist_ok=True)
    with open(run_dir / "replay.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LockedFileError(
                f"replay runs already ({run_dir}/replay.lock is held)", "Stop the other one"
            ) from None
        yield


def _now() -> int:
    return time.time_ns() // 1000
