"""A table's first rows are in its Iceberg table without the engine, which is slow at first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from peer.frames.quarantine import Quarantine
from peer.replay.context import ReplayContext
from peer.replay.rounds import Replayer
from peer.tables.read import read
from replication.tables.catalog.catalog import IcebergCatalog, catalog_properties
from replication.tables.spark.iceberg import IcebergTables
from tests.origin import OriginWal, new_ledger
from tests.tables_made import keyed


class NoSession:
    """A Spark session that may be asked how many cores it has, and nothing else."""

    sparkContext = SimpleNamespace(master="local[4]", defaultParallelism=2)

    def stop(self) -> None:
        """Nothing to stop."""


def test_the_first_rounds_of_a_table_run_no_job(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    tables = IcebergTables(IcebergCatalog(catalog_properties(tmp_path)), NoSession())  # type: ignore[arg-type]
    spec = keyed("ops.one")
    ledger.tables.create(spec)
    wal = OriginWal(ledger, tmp_path / "wal")
    quarantine = Quarantine(tmp_path / "quarantine", ledger.replay)
    for n in range(2):  # the second replayer takes the table over from the first
        wal.upsert(spec, [{"k": f"key {n}", "v": n}])
        wal.register()
        replayer = Replayer(ReplayContext(ledger, tables, quarantine, ledger.replay.raise_epoch()))
        result = replayer.round()
        replayer.close()
        assert (result.frames, dict(result.held)) == (1, {})
        assert read(tables, spec).read_all().num_rows == n + 1
    ledger.close()
