"""One Spark session for all integration tests, and the warehouses that tests run against."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from peer.receive.receiver import Receiver
from replication.tables.base import Tables
from replication.tables.spark.iceberg import IcebergTables
from replication.worker import host
from tests.fakes.tables import MemoryTables
from tests.integration.receiving import Pair


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers in this process do soon what else they do every few seconds."""
    monkeypatch.setattr(host, "SPILL_S", 0.1)
    monkeypatch.setattr(host, "_QUIET_S", 1.0)


@dataclass(frozen=True)
class Warehouse:
    """Tables to replay into, with the moves of somebody else: ``rollback(table, snapshot)``."""

    tables: Tables
    rollback: Callable[[str, int], object]
    namespace: str


def spark_warehouse(tables: IcebergTables) -> Warehouse:
    """A namespace of its own in the session's catalog."""

    def rollback(name: str, snapshot: int) -> object:
        return tables.query(f"call walship.system.rollback_to_snapshot('{name}', {snapshot})")

    return Warehouse(tables, rollback, f"n{uuid4().hex[:8]}")


#: Files about the rows of frames and who commits them; to others it is all the same which process decodes.
_DECODING = ("test_replay.py", "test_convergence_iceberg.py", "test_taking_over.py")
#: Files of tests that Spark decodes in ``make test``, too; for the others small rounds do.
_BY_SPARK = ("test_altered_tables.py",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a real session's tables have frames decoded in one way; ``make test-all`` has the other, too."""
    for item in items:
        given = getattr(getattr(item, "callspec", None), "params", {})
        other = "small" if item.path.name in _BY_SPARK else "spark"
        if given.get("warehouse") == other and item.path.name not in _DECODING:
            item.add_marker("slow")


@pytest.fixture(params=["memory", "spark", "small"])
def warehouse(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    """Each test runs against the shipped fake, with Spark decoding every frame, and with small rounds decoded here."""
    if request.param == "memory":
        tables = MemoryTables()
        return Warehouse(tables, tables.rollback, "ops")
    if request.param == "spark":
        monkeypatch.setattr(request.getfixturevalue("spark_tables"), "small_bytes", -1)
    return spark_warehouse(request.getfixturevalue("spark_tables"))


@pytest.fixture
def site(tmp_path: Path, warehouse: Warehouse) -> Iterator[Any]:
    """A cluster that replays into the warehouse in the test's thread."""
    from tests.integration.replay_site import Site  # deferred: it is of a warehouse as above

    made = Site(tmp_path, warehouse)
    yield made
    made.ledger.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


@pytest.fixture
def receiver(pair: Pair) -> Iterator[Receiver]:
    with pair.west.receiver() as made:
        yield made
