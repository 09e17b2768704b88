"""One cluster in this process: its real writer, registrar, replay and fold, each called when a bench says.

No processes, no ZooKeeper, no peer: for what is measured of Spark alone, side by side with Spark itself in one session.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

from peer.frames.quarantine import Quarantine
from peer.replay.context import ReplayContext
from peer.replay.rounds import Replayer
from peer.tables.read import Reader
from replication import config as configuration
from replication.config import Config
from replication.coordination.paths import MemberKind
from replication.coordination.session import Coordination
from replication.core.definition.define import typed_table
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId
from replication.core.routes.freshness import ClosedNotice
from replication.files.local import LocalFiles
from replication.ledger.base import Ledger
from replication.ledger.sql.ledger import initialise, open_ledger
from replication.tables.catalog.catalog import IcebergCatalog, catalog_properties
from replication.tables.spark.iceberg import IcebergTables
from replication.tables.spark.session import open_session
from replication.worker.files.host_files import HostFiles
from replication.worker.files.register import Registrar
from replication.writer.wal.wal_series import Place
from replication.writer.writer import Writer
from tests.bench.measure import SCHEMA
from tests.fakes.coordination import MemoryEnsemble
from tests.noted import note_closed as keep_closed

_BATCH = 10_000


def note_closed(ledger: Ledger) -> None:
    """Keep a notice of all that is registered, as a closed frame that lands does."""
    streams = tuple((stream, ranges.end - 1) for stream, ranges in ledger.landing.coverage().items())
    keep_closed(ledger, ledger.cluster, ClosedNotice(ledger.time.closed(), streams))


@dataclass
class Alone:
    """The cluster. ``spark`` is the session that replay and fold use."""

    file: Path
    config: Config
    ledger: Ledger
    coordination: Coordination
    spark: Any
    tables: IcebergTables
    reader: Reader
    replayer: Replayer

    def table(self, name: str) -> TableSpec:
        """A new table like ``bench.t``."""
        spec = typed_table(name, SCHEMA, ["k"], uuids=iter(uuid4, None))
        self.ledger.tables.create(spec)
        return spec

    def write(self, spec: TableSpec, rows: pa.Table) -> None:
        """Write and register rows; nothing of them is pending with the writer, and closed time is past them."""
        config = self.config
        with Writer(
            self.ledger, self.coordination, Place(str(config.wal_dir), config.cluster.host), config.writer
        ) as writer:
            for batch in rows.to_batches(_BATCH):
                writer.upsert(spec, batch)
        files = HostFiles(self.ledger, LocalFiles(), config.cluster.host, str(config.wal_dir))
        try:
            Registrar(self.ledger, files).run_once()
        finally:
            files.close()
        self.ledger.time.raise_closed(config.cluster.host, {}, time.time_ns() // 1000)
        note_closed(self.ledger)

    def plain_table(self, name: str, like: TableSpec) -> str:
        """An empty Iceberg table of the user's columns only, with the properties that replay's tables have."""
        table = self.tables.ref(f"bench.{name}")
        set_by_us = self.spark.sql(f"show tblproperties {self.tables.ref(like.name)}").collect()
        given = [f"'{row.key}' = '{row.value}'" for row in set_by_us if row.key.startswith(("write.", "commit."))]
        self.spark.sql(f"create table {table} (k binary, v binary) using iceberg tblproperties ({', '.join(given)})")
        return table

    def replay(self) -> float:
        """Seconds to replay what is pending."""
        began = time.perf_counter()
        while True:
            result = self.replayer.round()
            assert not result.held, f"held back: {result.held}"
            if not result.more and not result.frames:
                return time.perf_counter() - began


@contextmanager
def alone(name: str = "east", *, driver_memory: str = "1g", **session: Any) -> Iterator[Alone]:
    """The cluster, in a folder that is removed at the end; ``session`` as for ``open_session``."""
    with tempfile.TemporaryDirectory(prefix="walship-bench-") as folder:
        home = Path(folder)
        file = home / "walship.toml"
        file.write_text(configuration.default_toml(name))
        config = configuration.load(file)
        cluster = ClusterId(name, uuid4())
        initialise(config.ledger_url, cluster)
        ledger = open_ledger(config.ledger_url)
        given = catalog_properties(config.data_dir)
        with MemoryEnsemble().connect(config.zookeeper_root) as coordination:
            coordination.establish(cluster, "0")
            coordination.enrol(MemberKind.WORKERS, config.cluster.host, {})
            spark = open_session(given, home / "spark", driver_memory=driver_memory, **session)
            tables = IcebergTables(IcebergCatalog(given), spark)
            quarantine = Quarantine(home / "quarantine", ledger.replay)
            replayer = Replayer(ReplayContext(ledger, tables, quarantine, ledger.replay.raise_epoch()))
            reader = Reader(config, ledger)
            try:
                yield Alone(file, config, ledger, coordination, spark, tables, reader, replayer)
            finally:
                replayer.close()
                reader.close()
                tables.close()
                ledger.close()
