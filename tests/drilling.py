"""A cluster in a folder with real Iceberg tables, replayed in this process without Spark, for tests of drills."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from peer.client.cluster import Cluster
from peer.drill.forking import make_fork
from peer.drill.session import OpenFork
from peer.frames.quarantine import Quarantine
from peer.replay.context import ReplayContext
from peer.replay.rounds import Replayer
from peer.tables.fold import merge_changes
from replication import config as configuration
from replication.coordination.session import Coordination
from replication.core.definition.schema import TableSpec
from replication.files.owner import owner_name
from replication.ledger.base import Drill
from replication.ledger.sql.ledger import open_ledger
from replication.tables.catalog.catalog import IcebergCatalog, configured_catalog
from replication.tables.layout import iceberg_names
from replication.tables.spark.iceberg import IcebergTables
from tests.fakes.coordination import MemoryEnsemble
from tests.ledgers import ledger_url
from tests.origin import OriginWal, new_ledger

HOUR_US = 3_600_000_000


class NoSpark:
    """A Spark session that may be asked how many cores it has, and nothing else."""

    sparkContext = SimpleNamespace(master="local[4]", defaultParallelism=2)

    def stop(self) -> None:
        """Nothing to stop."""


class HandleInMemory(Cluster):
    """A handle whose ZooKeeper is in memory."""

    zookeeper: Coordination

    @property
    def coordination(self) -> Coordination:
        """See ``Cluster``."""
        return self.zookeeper


class ForkSite:
    """One cluster: a ledger, a WAL whose commit times are now, and tables."""

    def __init__(self, folder: Path, **sections: dict[str, Any]) -> None:
        self.folder = folder
        self.ledger = new_ledger(folder)
        here = {
            "cluster": {"name": "east", "host": "h0", "data_dir": str(folder)},
            "ledger": {"url": ledger_url(folder)},
        }
        self.config = configuration.load(None, {**sections, **here}, {})
        self.catalog = IcebergCatalog(configured_catalog(self.config))
        self.tables = IcebergTables(self.catalog, NoSpark())  # type: ignore[arg-type]
        self.wal = OriginWal(self.ledger, folder / "wal")
        self.coordination = MemoryEnsemble().connect(self.config.zookeeper_root)
        self.coordination.establish(self.ledger.cluster, "test")
        self._drills = 0

    def close(self) -> None:
        """Close everything."""
        self.coordination.close()
        self.catalog.close()
        self.ledger.close()

    def cluster(self) -> Cluster:
        """A handle on it."""
        handle = HandleInMemory(self.config, open_ledger(self.config.ledger_url))
        handle.zookeeper = self.coordination
        return handle

    def table(self, spec: TableSpec) -> TableSpec:
        """Define a table."""
        self.ledger.tables.create(spec)
        return spec

    def put(self, spec: TableSpec, *rows: dict[str, Any]) -> None:
        """Rows with a commit time of now, and the closed time after it."""
        self.wal.upsert(spec, list(rows), time.time_ns() // 1000)
        self.wal.register(closed=self.wal.now)

    def replay(self) -> None:
        """Apply everything."""
        quarantine = Quarantine(self.folder / "quarantine", self.ledger.replay)
        replayer = Replayer(
            ReplayContext(self.ledger, self.tables, quarantine, self.ledger.replay.raise_epoch()), parallel=1
        )
        for _ in range(5):
            if not replayer.round().frames:
                break
        replayer.close()

    def fold(self, spec: TableSpec) -> None:
        """Fold a table up to its replicated time."""
        times = self.ledger.time.replicated(spec.uuid)
        merge_changes(self.tables, spec, min(reached.t for reached in times.values()))

    def drill(self, owner: str = "", until: int = 0) -> Drill:
        """A drill that runs, in the ledger."""
        now = time.time_ns() // 1000
        self._drills += 1
        made = Drill(f"d{self._drills}", "h0", owner or owner_name(), now, until or now + HOUR_US)
        self.ledger.drills.put(made)
        return made

    def fork(self, drill: Drill | None = None, write_bytes_max: int = 1 << 30) -> OpenFork:
        """A fork of it."""
        return OpenFork(self.catalog, make_fork(self.catalog, self.ledger, drill or self.drill(), write_bytes_max))

    def traces(self) -> list[str]:
        """Tags, namespaces and folders of drills."""
        tags = [
            f"{name} {tag}"
            for spec in self.ledger.tables.all()
            for name in iceberg_names(spec)
            if self.catalog.exists(name)
            for tag in self.catalog.history(name).tags
            if "drill" in tag
        ]
        folders = [path.name for path in self.folder.rglob("walship_drill*")]
        return tags + folders + self.catalog.drop_scratch("walship_drill_", ())
