"""Replay, fold and Spark queries by command, beside the replay process or in its place."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from peer.replay.loop import run_replay
from peer.replay_report import silence
from peer.tables.fold import FoldResult, fold
from peer.tables.latest import latest_query
from peer.tables.read import has_rows, named_in
from replication.config import Config
from replication.coordination.paths import Election
from replication.coordination.session import Coordination
from replication.core.definition.schema import TableSpec
from replication.error_text import one_line
from replication.errors import (
    CommitConflictError,
    EngineLostError,
    LockedFileError,
    ReplicationError,
    RequestError,
    SparkMissingError,
    WaitTimeoutError,
)
from replication.ledger.base import Ledger
from replication.retries import repeated_on
from replication.tables.base import SPARK
from replication.tables.catalog.catalog import IcebergCatalog, configured_catalog
from replication.tables.layout import LATEST
from replication.tables.spark.application import Application
from replication.tables.spark.iceberg import IcebergTables
from replication.tables.spark.jars import checked_jars
from replication.tables.spark.scratch import own_scratch
from replication.tables.spark.session import open_session
from replication.wall_clock import now_us

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_S = 0.2
_FOLD_TRIES = 5


def backlog_bytes(ledger: Ledger) -> int:
    """Registered bytes that the cluster's own replay has not passed."""
    return sum(pending.end - pending.begin for pending in ledger.replay.pending())


def catch_up(
    config: Config,
    ledger: Ledger,
    timeout_s: float,
    report: Callable[[int, str], None],
    coordination: Coordination | None = None,
) -> bool:
    """Wait until everything that is registered is replayed.

    The cluster's replay process does the work if it runs. Else replay runs in this process until it is done.
    ``report`` gets how many bytes are left, and for how long the replay process that has to do it has been silent.

    Returns:
        Whether replay ran in this process.

    Raises:
        WaitTimeoutError: it took too long.
        SparkMissingError: no replay process runs, and PySpark or Java is missing.
    """
    if not backlog_bytes(ledger):
        return False
    deadline = time.monotonic() + timeout_s
    with _ReplayHere(config, ledger, coordination) as here:
        while (left := backlog_bytes(ledger)) and not here.failed and time.monotonic() <= deadline:
            report(left, "" if here.ran else silence(ledger.replay))
            time.sleep(_POLL_S)
    if here.failed:
        raise here.failed[0]
    if left:
        stopped = "Replay stopped: run it again with a longer --timeout-s, or start the replay process: walship up"
        goes_on = f"The replay process {silence(ledger.replay) or 'goes on'}; see walship status"
        raise WaitTimeoutError(
            f"{left} bytes are still to be replayed after {timeout_s:g} s", stopped if here.ran else goes_on
        )
    return here.ran


class _ReplayHere:
    """Replay in a thread of this process while the context lasts, unless a replay process runs.

    Attributes:
        ran: whether replay ran here.
        failed: the error that ended it.
    """

    def __init__(self, config: Config, ledger: Ledger, coordination: Coordination | None) -> None:
        self.ran = True
        self.failed: list[Exception] = []
        self._config = config
        self._ledger = ledger
        self._coordination = coordination
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replay-on-demand")

    def __enter__(self) -> _ReplayHere:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and join the thread."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        coordination = self._coordination
        try:
            if coordination is not None and coordination.leader(Election.REPLAYERS) is not None:
                self.ran = False
            else:
                run_replay(self._config, self._ledger, self._stop, lambda: None, coordination)
        except LockedFileError:
            self.ran = False
        except Exception as error:  # the caller raises it
            self.failed.append(error)


def fold_now(
    config: Config, ledger: Ledger, specs: Sequence[TableSpec]
) -> dict[str, FoldResult | ReplicationError | None]:
    """Fold keyed tables up to their replicated time; None for a table with nothing to fold.

    One that fails does not stop the others. It has its error, such as CommitConflictError when the replay process
    folded or maintained the table at every attempt.

    Raises:
        SparkMissingError: PySpark or Java is missing.
        EngineLostError: Spark ended.
    """
    folded: dict[str, FoldResult | ReplicationError | None] = {}
    with _tables(config) as tables:
        for spec in specs:
            if not tables.has(spec):
                folded[spec.name] = None
                continue
            try:
                folded[spec.name] = _fold(tables, ledger, spec, config.replay.fold_hold_s)
            except (SparkMissingError, EngineLostError):
                raise
            except ReplicationError as error:
                folded[spec.name] = error
    return folded


@repeated_on(CommitConflictError, times=_FOLD_TRIES)
def _fold(tables: IcebergTables, ledger: Ledger, spec: TableSpec, hold_s: float) -> FoldResult | None:
    return fold(tables, ledger, spec, now_us(), hold_s)


def spark_sql(config: Config, ledger: Ledger, specs: Sequence[TableSpec], query: str) -> pa.Table:
    """Run a query in a Spark session of its own.

    A table's name, and ``<table>__latest``, are views of its newest rows. The cluster's catalog is ``walship``.

    Raises:
        RequestError: the query failed; gives Spark's message.
        SparkMissingError: PySpark or Java is missing, or the Spark cluster has no free executor.
        ForeignMaintenanceError: the catalog has lost a table.
    """
    from pyspark.errors import PySparkException

    with _tables(config) as tables:
        for spec in named_in(query, specs):
            has_rows(tables, ledger, spec)  # or refuse
            if tables.has(spec):
                tables.create(spec)  # with the newest definition, which replay may not have taken over yet
                namespace, _, name = spec.name.partition(".")
                tables.query(f"create database if not exists spark_catalog.{SPARK.name(namespace)}")
                newest = latest_query(tables, spec)
                for shown in (name, name + LATEST):
                    view = f"spark_catalog.{SPARK.name(namespace)}.{SPARK.name(shown)}"
                    tables.query(f"create or replace view {view} as {newest}")
        try:
            return tables.query(query)
        except PySparkException as error:
            raise RequestError(str(error).strip().splitlines()[0]) from None


@contextmanager
def _tables(config: Config) -> Iterator[IcebergTables]:
    properties = configured_catalog(config)
    catalog = IcebergCatalog(properties)
    scratch = own_scratch(config.run_dir / "spark-on-demand")

    def start() -> SparkSession:
        return open_session(
            properties,
            scratch,
            master=config.replay.spark_master,
            driver_memory=config.replay.driver_memory,
            jars=checked_jars(config.replay.jars, config.replay.jars_sha256),
            properties=config.replay.spark,
        )

    tables = IcebergTables(catalog, Application(start, float("inf")), scratch, config.replay.driver_bytes_max)
    with closing(tables):
        try:
            yield tables
        except Exception as error:
            if type(error).__module__.startswith(("pyspark", "py4j")):  # its message goes with the session
                raise RuntimeError(one_line(error)) from error
            raise
