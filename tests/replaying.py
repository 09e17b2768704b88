"""A site of ``tests.sites`` with tables: a warehouse in memory, replay, and the keeper of its bootstraps."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from peer.bootstrap.keeper import BootstrapKeeper
from peer.frames.quarantine import Quarantine
from peer.replay.context import ReplayContext
from peer.replay.rounds import Replayer, RoundResult
from peer.tables.fold import merge_changes
from peer.tables.read import read
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId
from replication.ledger.base import Phase
from replication.tables.base import Tables
from replication.worker.files.host_files import HostFiles
from replication.worker.files.register import Registrar
from tests.fakes.tables import MemoryTables
from tests.sites import Site


class TableSite(Site):
    """One cluster with tables; ``replay`` and ``keep`` do in the test's thread what the replay process does."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        tables: Tables | None = None,
        cluster: ClusterId | None = None,
        **sections: dict[str, Any],
    ) -> None:
        super().__init__(folder, name, cluster=cluster, **sections)
        self.tables = tables or MemoryTables()
        self.restart()

    def restart(self, parallel: int = 1) -> None:
        """As a new replay process: nothing is remembered but what is durable."""
        quarantine = Quarantine(self.config.data_dir / "quarantine", self.ledger.replay)
        epoch = self.ledger.replay.raise_epoch()
        self.replayer = Replayer(ReplayContext(self.ledger, self.tables, quarantine, epoch), parallel=parallel)
        self.keeper = BootstrapKeeper(self.tables, self.ledger, self.files, "h0", str(self.config.wal_dir), self.boot)

    def register(self) -> None:
        """What its worker does with its own files."""
        Registrar(self.ledger, HostFiles(self.ledger, self.files, "h0", str(self.config.wal_dir))).run_once()

    def replay(self) -> RoundResult:
        """Rounds until everything is applied, or held."""
        result = self.replayer.round()
        for _ in range(6):
            if not result.held and not result.more and not result.frames:
                break
            result = self.replayer.round()
        return result

    def fold(self, spec: TableSpec) -> None:
        """Merge all changes into the table."""
        merge_changes(self.tables, spec, None)

    def shown(self, spec: TableSpec) -> list[dict[str, Any]]:
        """The table's rows."""
        return sorted(read(self.tables, spec).read_all().to_pylist(), key=repr)

    def versions(self, spec: TableSpec) -> list[tuple[Any, ...]]:
        """Every version that came here, by its place: (origin, WAL, sequence, row), and its group if there is a key."""
        name = spec.name + ("__changes" if spec.key else "")
        group, where = (", _group", "where _op >= 0") if spec.key else ("", "")
        found = self.tables.query(f"select _origin, _wal, _seq, _row{group} from {self.tables.ref(name)} {where}")
        return sorted(tuple(row.values()) for row in found.to_pylist())

    def phases(self, peer: str) -> list[Phase]:
        """Of its rules for a peer."""
        return [rule.phase for rule in self.ledger.rules.all() if rule.peer == peer]

    def back_up(self, folder: Path, tables: MemoryTables) -> None:
        """A copy of everything as it is at one moment, as a snapshot of its disk would be."""
        assert isinstance(self.tables, MemoryTables)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self.config.data_dir, folder, ignore=shutil.ignore_patterns("ledger.db*"))
        (folder / "ledger.db").touch(mode=0o600)
        ledgers = (self.config.data_dir / "ledger.db", folder / "ledger.db")
        with closing(sqlite3.connect(ledgers[0])) as there, closing(sqlite3.connect(ledgers[1])) as here:
            there.backup(here)
        self.tables.copy_to(tables)

    def delete(self, wal: Any, spec: TableSpec, keys: Sequence[int]) -> None:
        """Tombstones through one of its WALs."""
        wal.delete(spec, [{spec.key[0]: key} for key in keys])
