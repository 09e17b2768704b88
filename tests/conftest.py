"""Real parts that tests share: one ZooKeeper server a session, and a root of its own for each test."""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from xdist.scheduler import LoadScopeScheduling

from replication.coordination.embedded import EmbeddedZookeeper
from replication.coordination.paths import Quorum
from tests import budget
from tests import postgresql as pg

if TYPE_CHECKING:
    from replication.tables.spark.iceberg import IcebergTables

# Tests' Sparks do little each: what the JVM's second compiler and code made for each query cost they do not earn back.
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    "-XX:TieredStopAtLevel=1 -Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN",
)
os.umask(0o022)  # whatever the user's: a cluster refuses folders that others can change
budget.use()
gc.disable()  # until tests are collected: there is nothing to free


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    try:
        return (yield)
    finally:
        gc.set_threshold(20_000, 10, 10)
        gc.enable()


def pytest_collection_finish() -> None:
    """Free memory faster: the hundreds of thousands of objects of collected tests are not looked through each time."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # else libraries report at exit that objects have leaked


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failed test says where its files are, logs among them."""
    report: Any = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and folder is not None:
        report.sections.append(("Files of the test", str(folder)))
    return report


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZookeeper]:
    """The real server out of PySpark's jars, on a free port."""
    with EmbeddedZookeeper(Path(tmp_path_factory.mktemp("zookeeper")), 0, heap_mb=64) as server:
        yield server


@pytest.fixture
def quorum(zookeeper: EmbeddedZookeeper) -> Quorum:
    """A root that no other test uses, in the real server."""
    return Quorum(zookeeper.servers, f"/test-{uuid4().hex[:12]}")


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The address of a real PostgreSQL server, less the database."""
    if not pg.BINARIES:
        pytest.skip(pg.MISSING)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    with pg.server("127.0.0.1", port) as made:
        yield made.url()


@pytest.fixture(scope="session")
def spark_tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergTables]:
    """Iceberg tables of a real session: JDBC catalog on SQLite, files in a temporary directory."""
    from replication.tables.catalog.catalog import IcebergCatalog, catalog_properties
    from replication.tables.spark.iceberg import IcebergTables
    from replication.tables.spark.session import open_session

    directory = Path(tmp_path_factory.mktemp("warehouse"))
    properties = catalog_properties(directory)
    catalog = IcebergCatalog(properties)
    tables = IcebergTables(catalog, open_session(properties, directory / "spark"))
    yield tables
    tables.close()


_PROGRESS_S = 30.0

#: Files whose tests share one Spark session, on one worker.
_SPARK = (
    "test_replay.py",
    "test_append.py",
    "test_tables.py",
    "test_table_maintenance.py",
    "test_altered_tables.py",
    "test_convergence_iceberg.py",
    "test_hosts_spark.py",
    "test_latest_view.py",
    "test_fresh_session.py",
    "test_round_jobs.py",
    "test_timeline_spark.py",
    "test_copy_spark.py",
)

#: Files whose tests share another Spark session, on a second worker.
_MORE_SPARK = (
    "test_bootstrap_purged.py",
    "test_derive_by_jobs.py",
    "test_fold_branch.py",
    "test_large_folds.py",
    "test_settled_folds.py",
    "test_tables_on_disk.py",
    "test_taking_over.py",
    "test_upkeep.py",
    "test_verify_by_jobs.py",
)


#: Files whose tests start clusters of their own, one after another.
_OWN_CLUSTERS = (
    "test_clocks.py",
    "test_demo.py",
    "test_documented_shell.py",
    "test_failover.py",
    "test_graphs.py",
    "test_many_hosts.py",
    "test_restored.py",
    "test_spark_cluster.py",
)

#: Files that take longest of the others, so they begin earlier.
_LONG = (
    "test_copy_s3.py",
    "test_graphs.py",
    "test_hostile_calls.py",
    "test_hostile_connections.py",
    "test_shipping.py",
    "test_up.py",
    "test_verify_peer.py",
    "test_zookeeper.py",
)

#: What makes a test none of ``make test-fast``: fixtures that start servers, and parameters of fixtures that are slow.
_SERVERS = {"zookeeper", "quorum", "postgresql", "spark_tables"}
_SLOWER = {"zookeeper", "postgresql", "sqlite", "spark", "small"}


class Together(LoadScopeScheduling):
    """Keeps on one worker the tests of a file, and those of files that share clusters or a Spark session."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        name = Path(file).name
        if file.startswith("tests/e2e/"):
            return "own clusters" if name in _OWN_CLUSTERS else "clusters"
        if name in ("test_names.py", "test_sizes.py"):
            return "source"  # which is parsed once
        return "spark" if name in _SPARK else "more spark" if name in _MORE_SPARK else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Together:
    """Used wherever there are several workers; they take scopes in the order of collection."""
    config.option.loadscopereorder = False
    return Together(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is fast is marked so and comes first: a mistake shows within a minute.

    Beside others, whole clusters begin at once: they take longest, and mostly wait.
    """
    beside_others = hasattr(config, "workerinput")
    for item in items:
        if _is_fast(item):
            item.add_marker("fast")
    items.sort(key=lambda item: _rank(item, beside_others))


def _is_fast(item: pytest.Item) -> bool:
    if not item.nodeid.startswith(("tests/unit/", "tests/property/", "tests/contract/")):
        return False
    if item.get_closest_marker("heavy") or _SERVERS & {*getattr(item, "fixturenames", ())}:
        return False
    given = getattr(getattr(item, "callspec", None), "params", {}).values()
    return not any(isinstance(value, str) and value in _SLOWER for value in given)


def _rank(item: pytest.Item, beside_others: bool) -> int:
    if item.nodeid.startswith("tests/e2e/"):
        return 0 if beside_others else 5
    if item.get_closest_marker("fast"):
        return 1
    if item.path.name in (*_SPARK, *_MORE_SPARK):  # those on one worker: at the end they would run alone for minutes
        return 2
    return 3 if item.path.name in _LONG or item.nodeid.startswith("tests/simulation/") else 4


class Progress:
    """Says every half minute how long it has been and what runs."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager
        self._began = self._said = time.monotonic()
        self._running: dict[str, float] = {}

    @pytest.hookimpl
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = time.monotonic()

    @pytest.hookimpl
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)
        now, reporter = time.monotonic(), self._plugins.getplugin("terminalreporter")
        if now - self._said < _PROGRESS_S or reporter is None:
            return
        self._said = now
        minutes, seconds = divmod(int(now - self._began), 60)
        running = [f"{nodeid} ({now - began:.0f} s)" for nodeid, began in self._running.items()]
        reporter.write(f"\n{minutes}:{seconds:02d} running: {', '.join(running) or 'nothing'}\n")


def pytest_configure(config: pytest.Config) -> None:
    """Leave closing its sockets to py4j, which leaves it to the garbage collector. Take SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what ends with &; processes inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(config))
