"""The replay role: rounds, housekeeping and bootstraps in a thread each, and one Spark application for all."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from peer.bootstrap.keeper import BootstrapKeeper
from peer.frames.host_watch import HostWatch
from peer.frames.quarantine import Quarantine
from peer.replay.context import ReplayContext
from peer.replay.housekeeping import Housekeeping
from peer.replay.rounds import Replayer, RoundResult
from peer.replay_report import ReplayReport
from replication import log
from replication.config import Config
from replication.coordination.session import Coordination
from replication.errors import CoordinationError, EngineLostError, LockedFileError, SupersededError
from replication.files.boot import boot_id
from replication.files.local import LocalFiles
from replication.files.notifier import Listening, NotificationListener, Notifier
from replication.ledger.base import Ledger
from replication.tables.base import Tables

_log = log.get(__name__)
_REPORT_S = 5.0
_FAILED_S = 10.0
_IDLE_S = 7.0  # a notification may be lost, and the report is due


def run_replay(
    config: Config,
    ledger: Ledger,
    stop: threading.Event,
    ready: Callable[[], None],
    coordination: Coordination | None = None,
) -> None:
    """Replay this cluster's registered frames until ``stop`` is set.

    ``coordination`` finds the receivers of the cluster's hosts, from which their files are read; None for local files.

    Raises:
        LockedFileError: replay runs on this host already.
        SupersededError: a replayer elsewhere has taken over.
        EngineLostError: Spark went away; start again.
    """
    from replication.tables.catalog.catalog import IcebergCatalog, configured_catalog
    from replication.tables.spark.iceberg import IcebergTables
    from replication.tables.spark.queries import Queries
    from replication.tables.spark.scratch import own_scratch
    from replication.tables.spark.session import application

    with replay_lock(config.run_dir):
        properties = configured_catalog(config)
        catalog = IcebergCatalog(properties)
        scratch = own_scratch(config.run_dir / "spark")
        spark = application(config.replay, properties, scratch)
        tables = IcebergTables(catalog, spark, scratch, config.replay.driver_bytes_max)
        queries = Queries(spark, tables.work, tables.small_bytes, config.run_dir)
        watch = HostWatch(config, ledger.cluster, coordination).start() if coordination is not None else None
        try:
            replay_until(stop, tables, ledger, config, ready, watch, [Repeated("queries", queries.run_once)])
        finally:
            queries.close()
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
    more: Sequence[Repeated] = (),
) -> None:
    """Rounds here, and housekeeping, bootstraps and ``more`` in threads of their own, until ``stop``.

    Errors are as of ``run_replay``.
    """
    quarantine = Quarantine(config.data_dir / "quarantine", ledger.replay)
    housekeeping = Housekeeping(tables, ledger, config.replay)
    host, directory = config.cluster.host, str(config.wal_dir)
    keep_free = config.receiver.disk_free_min_bytes
    bootstraps = BootstrapKeeper(tables, ledger, LocalFiles(), host, directory, boot_id(), keep_free)
    lost: list[EngineLostError] = []
    epoch = ledger.replay.raise_epoch()
    context = ReplayContext(ledger, tables, quarantine, epoch, scratch=config.run_dir / "bootstraps")
    replayer = Replayer(context, watch)
    idle_s = config.replay.interval_s if config.shares_ledger else _IDLE_S  # other hosts do not notify this one
    repeated = [
        Repeated("housekeeping", housekeeping.run_once, lambda: 1.0),
        Repeated("bootstraps", bootstraps.run_once, bootstraps.pause_s),
        *more,
    ]
    with closing(replayer), _threads(repeated, lost):
        ready()
        with closing(NotificationListener(directory, Listening.REPLAY)) as listener:
            threading.Thread(target=_wake_to_stop, args=(stop, directory), name="stop", daemon=True).start()
            rounds = _Rounds(replayer, housekeeping, bootstraps, context, Pauses(listener, stop, idle_s))
            rounds.run(stop, lost, config.replay.interval_s, host)
    if lost:
        raise lost[0]


def _wake_to_stop(stop: threading.Event, directory: str) -> None:
    stop.wait()
    with closing(Notifier(directory, Listening.REPLAY)) as notifier:
        notifier.notify()


@dataclass(frozen=True, slots=True)
class Repeated:
    """Work that a thread repeats, each time after a pause. ``run_once`` ends early once its argument says so."""

    name: str
    run_once: Callable[[Callable[[], bool]], None]
    pause_s: Callable[[], float] = lambda: 0.0


@contextmanager
def _threads(repeated: list[Repeated], lost: list[EngineLostError]) -> Iterator[None]:
    """Run each of ``repeated`` in a thread, joined at the end. One that loses the engine adds to ``lost`` and stops."""
    done = threading.Event()

    def run(each: Repeated) -> None:
        while not done.wait(each.pause_s()):
            try:
                each.run_once(done.is_set)
            except EngineLostError as error:
                lost.append(error)
                return
            except CoordinationError as error:
                _log.warning("periodic_work_postponed", work=each.name, reason=str(error))
            except Exception:  # an error that nobody foresaw must not end it unseen
                _log.error("periodic_work_failed", work=each.name, exc_info=True)
                done.wait(_FAILED_S)

    threads = [threading.Thread(target=run, args=(each,), name=each.name) for each in repeated]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


class _Rounds:
    """The loop of rounds, and its report for ``status``."""

    def __init__(
        self,
        replayer: Replayer,
        housekeeping: Housekeeping,
        bootstraps: BootstrapKeeper,
        context: ReplayContext,
        pauses: Pauses,
    ) -> None:
        self._replayer = replayer
        self._housekeeping = housekeeping
        self._bootstraps = bootstraps
        self._context = context
        self._pauses = pauses
        self._saved_s = 0.0

    def run(self, stop: threading.Event, lost: list[EngineLostError], interval_s: float, host: str) -> None:
        """Run rounds until ``stop`` is set or another thread has ``lost`` the engine."""
        report = ReplayReport(host=host, pid=os.getpid(), since=time.time())
        before_s = 0.0
        while not stop.is_set() and not lost:
            try:
                result = self._replayer.round()
            except CoordinationError as error:
                _log.warning("round_postponed", reason=str(error))
                stop.wait(1.0)
                continue
            report.rounds += bool(result.frames)
            if result.frames:
                self._housekeeping.rows_came()
                _log.info("replayed", frames=result.frames, tables=result.tables, seconds=round(result.seconds, 3))
            cost_s = result.seconds if result.tables > 1 else 0.0
            wait_s = 0.0 if result.more else pause_after(interval_s, before_s, cost_s)
            before_s = cost_s
            self._report(report, result, wait_s)
            if result.pending:
                self._pauses.listener.meet_subscribers()
                self._pauses.listener.publish()
            if not result.more:
                self._pauses.take(wait_s, is_idle=not result.held and not result.unchecked)

    def _report(self, report: ReplayReport, result: RoundResult, wait_s: float) -> None:
        """Save the report, at once when it has news. Raises SupersededError when a newer replayer runs."""
        away = dict(self._replayer.hosts.away)
        tables = self._context.tables
        news = (dict(result.held), self._housekeeping.errors, dict(self._bootstraps.state), away, tables.engine)
        known = (report.held, report.fold_errors, report.bootstraps, report.away, report.spark)
        if news == known and time.monotonic() - self._saved_s <= _REPORT_S:
            return
        self._saved_s = time.monotonic()
        report.at, report.round_interval_s, report.round_s = time.time(), wait_s, result.seconds
        report.work, report.spark_ui = asdict(tables.work), tables.ui
        report.fold_interval_s = self._housekeeping.fold_interval_s
        report.held, report.fold_errors, report.bootstraps, report.away, report.spark = news
        ledger, epoch = self._context.ledger, self._context.epoch
        try:
            newest = ledger.replay.epoch()
            if newest > epoch:
                raise SupersededError(
                    f"a newer replayer (epoch {newest}) has taken over from this one (epoch {epoch})",
                    "This host stands by from now on",
                )
            report.save(ledger.replay)
        except CoordinationError as error:
            _log.warning("replay_report_postponed", reason=str(error))


@dataclass(frozen=True, slots=True)
class Pauses:
    """The pauses between rounds. A round begins when frames are registered, or after ``idle_s``.

    While a client waits for rows it begins at once. Else it begins after the pause that spares the processor. Who sets
    ``stop`` also notifies the listener.
    """

    listener: NotificationListener
    stop: threading.Event
    idle_s: float

    def take(self, shortest_s: float, *, is_idle: bool) -> None:
        """Wait until a round is due. Unless ``is_idle`` it is due after ``shortest_s``, also without notification."""
        if not self.listener.is_listening:
            self.stop.wait(shortest_s)
            return
        begun_s, is_woken = time.monotonic(), False
        longest_s = max(shortest_s, self.idle_s) if is_idle else shortest_s
        while not self.stop.is_set():
            passed_s = time.monotonic() - begun_s
            is_early = passed_s < shortest_s and not self.listener.has_subscribers
            if passed_s >= longest_s or (is_woken and not is_early):
                return
            is_woken |= self.listener.wait((shortest_s if is_woken else longest_s) - passed_s)


def pause_after(interval_s: float, before_s: float, cost_s: float) -> float:
    """Return the pause after a round: as long as the round took, so that replay uses half the time at most.

    The shorter of the last two rounds counts, since one alone may be slow by chance, such as the first in a cold JVM.
    ``before_s`` is the cost of the previous round, 0.0 when it was cheap. No pause is shorter than ``interval_s``.
    """
    return max(interval_s, min(before_s, cost_s))


@contextmanager
def replay_lock(run_dir: Path) -> Iterator[None]:
    """Hold this host's replay lock. Raises LockedFileError when another process holds it."""
    run_dir.mkdir(parents=True, exist_ok=True)
    with open(run_dir / "replay.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LockedFileError(
                f"replay runs already ({run_dir}/replay.lock is held)", "Stop the other one"
            ) from None
        yield
