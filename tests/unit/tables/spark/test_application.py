"""Spark's application starts when a job wants it, in a thread, and ends when none came for a while."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from replication.errors import ConfigError, SparkMissingError
from replication.tables.catalog.catalog import IcebergCatalog, catalog_properties
from replication.tables.spark import application as module
from replication.tables.spark.application import Application
from replication.tables.spark.iceberg import IcebergTables
from tests.tables_made import as_decode, keyed
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy


class Executor(SimpleNamespace):
    """An executor as Spark's listing has it."""

    def __init__(self, name: str, reason: str = "") -> None:
        super().__init__(name=name, reason=reason)

    def id(self) -> str:
        return self.name

    def hostPort(self) -> str:
        return "h1:7"

    def isActive(self) -> bool:
        return not self.reason

    def removeReason(self) -> Any:
        return SimpleNamespace(isDefined=lambda: True, get=lambda: self.reason)


class Started:
    """Starts sessions once ``go`` is set; they list the executors that the test puts there."""

    def __init__(self, master: str = "local[2]") -> None:
        self.go = threading.Event()
        self.count = 0
        self.stopped = 0
        self.error: Exception | None = None
        self.executors: list[Executor] = []
        listing = SimpleNamespace(size=lambda: len(self.executors), apply=lambda at: self.executors[at])
        store = SimpleNamespace(executorList=lambda active: listing)
        self.sparkContext = SimpleNamespace(
            master=master,
            defaultParallelism=7,
            uiWebUrl="http://ui",
            getConf=dict,
            _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(statusStore=lambda: store)),
        )

    def __call__(self) -> Any:
        self.count += 1
        assert self.go.wait(60)
        if self.error is not None:
            raise self.error
        return self

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WATCH_S", 0.01)
    monkeypatch.setattr(module, "_POLL_S", 0.01)


@pytest.fixture
def made() -> Iterator[Callable[..., Application]]:
    every: list[tuple[Application, Started]] = []

    def make(started: Started, idle_s: float = 3600.0, **more: Any) -> Application:
        every.append((Application(started, idle_s, **more), started))
        return every[-1][0]

    yield make
    for application, started in every:
        started.go.set()
        application.close()


def test_rows_do_not_wait_for_a_start_and_become_jobs_after_it(
    tmp_path: Path, made: Callable[..., Application], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, started = IcebergCatalog(catalog_properties(tmp_path)), Started()
    catalog.create(keyed("ops.a"))
    application = made(started)
    tables = IcebergTables(catalog, application, small_bytes=10)
    rows = as_decode(pa.table({"k": ["a"], "v": [1]}))
    assert started.count == 0 and tables.parallel == 2 and tables.ui == "" and tables.engine == ""
    tables.stage([("ops.a", dataclasses.replace(rows, size=10))])
    assert started.count == 0, "a micro-batch needs no job"
    cold = tables.round_bytes
    tables.stage([("ops.a", dataclasses.replace(rows, size=11))])
    assert started.count == 0, "one load alone is decoded sooner than Spark starts"
    tables.stage([("ops.a", dataclasses.replace(rows, size=11))])
    assert (tables.work.jobs, tables.work.driver_batches) == (0, 3)
    assert tables.engine == "starting"
    started.go.set()
    wait_until(application.want, what="the application")
    assert tables.parallel == 7 and tables.ui == "http://ui" and tables.engine == "" and tables.round_bytes > cold
    ran: list[int] = []

    def run(writes: list[Any], title: str, pool: str | None) -> Any:
        ran.append(len(writes))
        return [[] for _ in writes], 1

    monkeypatch.setattr(tables.jobs, "run", run)
    tables.stage([("ops.a", dataclasses.replace(rows, size=11))])
    assert ran == [1] and tables.work.jobs == 1


def test_it_ends_when_it_was_idle_and_starts_again(made: Callable[..., Application]) -> None:
    started = Started()
    started.go.set()
    application = made(started, idle_s=0.05)
    for times in (1, 2):
        with application.use() as session:
            assert session is cast(Any, started)
            assert started.stopped == times - 1, "it is in use"
        wait_until(lambda n=times: started.stopped == n, what="its end")
    assert started.count == 2
    with application.running() as found:
        assert found is None


def test_who_only_looks_does_not_keep_it(made: Callable[..., Application]) -> None:
    started = Started()
    started.go.set()
    application = made(started, idle_s=0.05)
    with application.use():
        pass

    def ended() -> bool:
        with application.running():
            return started.stopped == 1

    wait_until(ended, what="its end")


def test_one_that_is_to_be_kept_starts_at_once(made: Callable[..., Application]) -> None:
    started = Started()
    made(started, idle_s=0.0)
    wait_until(lambda: started.count == 1, what="the start")


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (SparkMissingError("Java is too old", "Install Java 17"), "Java is too old"),
        (ConfigError("there is no jar x", "Correct [replay] jars"), "there is no jar x"),
        (OSError(12, "Cannot allocate memory"), "Spark did not start: .*Cannot allocate memory"),
    ],
)
def test_a_start_that_fails_is_reported_and_not_tried_again_at_once(
    made: Callable[..., Application], error: Exception, what: str
) -> None:
    started = Started()
    started.error = error
    started.go.set()
    application = made(started)
    with capture_logs() as logs:
        for _ in range(2):
            with pytest.raises((SparkMissingError, ConfigError), match=what), application.use():
                pass
            assert not application.want()
    assert started.count == 1, "the next start is half a minute later"
    assert [log["log_level"] for log in logs] == ["warning"], "who asked for it raises it, and prints no line of logs"
    assert "meanwhile the driver decodes" in application.state


def test_a_cluster_without_free_cores_is_waited_for_and_named(made: Callable[..., Application]) -> None:
    started = Started("spark://head:7077")
    started.go.set()
    application = made(started, executor_s=0.05)
    with pytest.raises(SparkMissingError, match="no executor within"), application.use():
        pass
    assert not application.want() and application.state == "waits for cores of spark://head:7077"
    started.executors = [Executor("driver"), Executor("0")]
    wait_until(application.want, what="the application")
    assert application.state == ""
    started.executors = [Executor("driver"), Executor("0", "Command exited with code 137"), Executor("1")]
    lost = "1 executors were lost, the last: 0 on h1:7: Command exited with code 137"
    wait_until(lambda: application.state == lost, what="the lost executor to be noted")
    started.executors = started.executors[:2]
    wait_until(lambda: application.state.startswith("waits for cores"), what="the wait to be noted")


def test_closing_does_not_wait_for_a_start_and_ends_it_afterwards(made: Callable[..., Application]) -> None:
    started = Started()
    application = made(started, idle_s=0.0)
    application.close()
    with pytest.raises(SparkMissingError, match="ended"), application.use():
        pass
    started.go.set()
    wait_until(lambda: started.stopped == 1, what="its end")
