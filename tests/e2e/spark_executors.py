"""What runs on a Spark cluster, how it is killed or frozen, and which files it leaves; for tests."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from replication.tables.catalog.catalog import IcebergCatalog
from replication.tables.pyiceberg.local_io import local_path
from shell.processes.spark_cluster import Daemon, SparkCluster
from tests.e2e.conftest import processes_below
from tests.waiting import wait_until


@dataclass(frozen=True)
class Executor:
    """A running executor and its log."""

    pid: int
    log: Path

    def started(self) -> set[str]:
        """The tasks that it was given."""
        return set(re.findall(r"Running task .*\(TID (\d+)\)", self._text()))

    def in_progress(self) -> set[str]:
        """Those of them that have not ended."""
        return self.started() - set(re.findall(r"(?:Finished|Exception in) task .*\(TID (\d+)\)", self._text()))

    def _text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def executors(spark: SparkCluster) -> list[Executor]:
    """The executors that run now."""
    return [each for worker in spark.worker for each in executors_of(spark, worker)]


def executors_of(spark: SparkCluster, worker: Daemon) -> list[Executor]:
    found = []
    for pid, line in processes_below(worker.pid).items():
        named = re.search(r"CoarseGrainedExecutorBackend.* --executor-id (\S+) .*--app-id (\S+)", line)
        if named is not None:
            found.append(Executor(pid, spark.folder / worker.name / named[2] / named[1] / "stderr"))
    return found


def await_application(spark: SparkCluster, other_than: str) -> str:
    """Wait until another application has given both executors their first tasks; its id."""

    def found() -> str:
        names = [each.log.parent.parent.name for each in executors(spark) if each.started()]
        return next((name for name in names if name != other_than and names.count(name) == 2), "")

    return wait_until(found, timeout_s=400, what="the application's executors to have begun")


def tasks_of_all(spark: SparkCluster) -> int:
    """How many tasks executors were given, those that have ended included."""
    logs = [log for worker in spark.worker for log in (spark.folder / worker.name).glob("*/*/stderr")]
    return sum(len(Executor(0, log).started()) for log in logs)


@contextmanager
def frozen(worker: Daemon) -> Iterator[None]:
    """A worker, its executors and their Python processes stand still, as on a host that hangs."""
    pids = [worker.pid, *processes_below(worker.pid)]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def killed_in_a_task(spark: SparkCluster) -> Executor:
    """SIGKILL an executor in the middle of a task."""

    def killed() -> Executor | None:
        for each in executors(spark):
            if each.in_progress():
                os.kill(each.pid, signal.SIGKILL)
                wait_until(lambda e=each: e not in executors(spark), timeout_s=400, what="the executor's end")
                return each if each.in_progress() else None
        return None

    return wait_until(killed, timeout_s=400, what="an executor to be in the middle of a task")


def committed(catalog: IcebergCatalog, name: str) -> set[str]:
    """The names of the data files of a table's snapshot."""
    return {Path(task.file.file_path).name for task in catalog.load(name).scan().plan_files()}


def unnamed(catalog: IcebergCatalog, name: str) -> set[Path]:
    """The data files in a table's folder that no snapshot names, or none yet."""
    table = catalog.load(name)
    found = set(Path(local_path(table.location()), "data").glob("*.parquet"))
    table = catalog.load(name)
    return found - {Path(local_path(path)) for path in table.inspect.all_files()["file_path"].to_pylist()}
