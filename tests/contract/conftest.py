"""Every store of the ledger, one after another, for the tests that hold them to the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from replication.commit.file_store import FileCommitSteps
from replication.core.definition.schema import TableSpec
from replication.core.ids import FileId
from replication.errors import ConfigError, SparkMissingError
from replication.ledger.base import Ledger
from replication.ledger.commit_steps import CommitStepStore
from replication.tables.base import Rows, Tables
from replication.tables.spark.iceberg import IcebergTables
from tests.contract.ledger_stores import FLIGHTS, WEATHER, Stores, at, memory, peer, postgresql_database
from tests.fakes.tables import MemoryTables
from tests.hdfs import hdfs_server
from tests.tables_made import keyed


@pytest.fixture(params=["sqlite", "memory", pytest.param("postgresql", marks=pytest.mark.slow)])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    if request.param == "sqlite":
        with at(f"sqlite:///{tmp_path}/ledger.db") as made:
            yield made
    elif request.param == "memory":
        with memory() as made:
            yield made
    else:
        with postgresql_database(request.getfixturevalue("postgresql")) as made:
            yield made


@pytest.fixture
def ledger(stores: Stores) -> Iterator[Ledger]:
    """A ledger; whatever a test did, each file's status at a peer is that of its rule that begins first."""
    made = stores.ledger
    yield made
    for known in made.rules.peers():
        begins: dict[FileId, int] = {}
        for file, _, status in made.files.statuses(known.name):
            begins[file] = min(status.begin, begins.get(file, status.begin))
        assert {file: status.begin for file, status in made.files.at_peer(known.name).items()} == begins


@pytest.fixture
def sending(ledger: Ledger) -> Ledger:
    """A ledger with two tables and the peer north."""
    ledger.tables.create(FLIGHTS)
    ledger.tables.create(WEATHER)
    ledger.rules.define(peer(), 0)
    return ledger


@pytest.fixture(params=["sqlite", "memory", "file", "objects", pytest.param("postgresql", marks=pytest.mark.slow)])
def steps(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CommitStepStore]:
    if request.param == "sqlite":
        with at(f"sqlite:///{tmp_path}/ledger.db") as made:
            yield made.ledger.steps
    elif request.param == "memory":
        with memory() as made:
            yield made.ledger.steps
    elif request.param == "postgresql":
        with postgresql_database(request.getfixturevalue("postgresql")) as made:
            yield made.ledger.steps
    elif request.param == "file":
        yield FileCommitSteps(f"file://{tmp_path}/commits")
    else:
        yield FileCommitSteps(f"memory://commits{uuid4().hex}")


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real HDFS, with its superuser."""
    with ExitStack() as stack:
        try:
            url = stack.enter_context(hdfs_server(tmp_path_factory.mktemp("hdfs")))
        except (ConfigError, SparkMissingError) as error:
            pytest.skip(f"no HDFS: {error}")
        yield url


@pytest.fixture(params=["memory", "spark", "small"])
def tables(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tables]:
    """Each test runs against the shipped fake, with the work that Spark does for large tables, and without it."""
    if request.param == "memory":
        yield MemoryTables()
        return
    made: IcebergTables = request.getfixturevalue("spark_tables")
    if request.param == "spark":
        monkeypatch.setattr(made, "small_bytes", -1)
    yield made


@pytest.fixture
def spec(tables: Tables) -> TableSpec:
    made = keyed(f"c{uuid4().hex[:8]}.t")
    tables.create(made)
    return made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """``make test`` has large work on queries and small work on rows; ``make test-all`` the other way, too."""
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if (params.get("tables"), params.get("given")) in (("spark", "rows"), ("small", "query")):
            item.add_marker("slow")


@pytest.fixture(params=["query", "rows"])
def given(request: pytest.FixtureRequest, tables: Tables) -> Callable[[str], Rows]:
    """What is to be replaced is handed in as a query or as rows."""
    return tables.query if request.param == "rows" else str
