"""A cluster that replays what a WAL made by hand holds, and how a test looks at its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peer.frames.quarantine import Quarantine
from peer.replay.context import ReplayContext
from peer.replay.rounds import Replayer, RoundResult
from peer.tables.kept_reads import KeptReads
from peer.tables.latest import latest_query, show_latest
from peer.tables.read import read
from replication.core.definition.schema import TableSpec
from replication.ledger.base import Ledger
from replication.tables.layout import LATEST
from replication.tables.spark.iceberg import IcebergTables
from tests.integration.conftest import Warehouse
from tests.origin import OriginWal, new_ledger
from tests.tables_made import keyed

HOUR_US = 3_600_000_000

#: For tests of folds and reads, to which it is all the same who decodes: ``make test-all`` has small rounds, too.
FOLDED = pytest.mark.parametrize(
    "warehouse", ["memory", "spark", pytest.param("small", marks=pytest.mark.slow)], indirect=True
)


class Site:
    """A ledger, one WAL, one table, and replayers over a warehouse."""

    def __init__(self, directory: Path, warehouse: Warehouse) -> None:
        self.directory = directory
        self.warehouse = warehouse
        self.tables = warehouse.tables
        self.ledger: Ledger = new_ledger(directory)
        self.wal = OriginWal(self.ledger, directory / "wal")
        self._kept: KeptReads | None = None
        self.spec = self.table(keyed(f"{warehouse.namespace}.t"))

    def table(self, spec: TableSpec) -> TableSpec:
        self.ledger.tables.create(spec)
        return spec

    def replayer(self, **more: Any) -> Replayer:
        quarantine = Quarantine(self.directory / "quarantine", self.ledger.replay)
        return Replayer(
            ReplayContext(self.ledger, self.tables, quarantine, self.ledger.replay.raise_epoch()), parallel=1, **more
        )

    def put(self, *values: tuple[str, int], spec: TableSpec | None = None) -> None:
        self.wal.upsert(spec or self.spec, [{"k": k, "v": v} for k, v in values])
        self.wal.register(closed=self.wal.now)

    def rows(self, spec: TableSpec | None = None) -> dict[str, Any]:
        spec = spec or self.spec
        rows = {row["k"]: row["v"] for row in read(self.tables, spec).read_all().to_pylist()}
        if isinstance(self.tables, IcebergTables):
            self._kept = self._kept or KeptReads(self.tables._catalog)
            connection, query = self._kept.latest(spec)
            assert dict(connection.execute(f"select k, v from ({query})").fetchall()) == rows
        return rows

    def agree(self, spec: TableSpec | None = None) -> None:
        """Both executions of the definition, and the view of it as it is and made anew, show the same rows."""
        spec = spec or self.spec
        here = sorted(map(repr, read(self.tables, spec).read_all().to_pylist()))
        view = f"select * from {self.tables.ref(spec.name + LATEST)}"
        for query in (latest_query(self.tables, spec), view):
            assert sorted(map(repr, self.tables.query(query).to_pylist())) == here
        show_latest(self.tables, spec)
        assert sorted(map(repr, self.tables.query(view).to_pylist())) == here

    def received(self, spec: TableSpec | None = None) -> int:
        name = (spec or self.spec).name + "__changes"
        counted = self.tables.query(f"select count(*) as n from {self.tables.ref(name)} where _op >= 0")
        return int(counted.column("n")[0].as_py())

    def expire_all_but_current(self, name: str) -> None:
        self.tables.expire(name, next(self.tables.history(name).chain()).at + HOUR_US, 1)
        assert len(self.tables.history(name).snapshots) == 1

    def applied(self) -> bool:
        return not self.ledger.replay.pending()


def settle(replayer: Replayer) -> RoundResult:
    """Rounds until everything is applied, or one more than that needs."""
    result = replayer.round()
    for _ in range(4):
        if not result.held and not result.more:
            break
        result = replayer.round()
    return result
