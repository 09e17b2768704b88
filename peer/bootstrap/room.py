"""Whether there is room for a bootstrap: the copy that is written here, and the WAL that is kept meanwhile."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass

from peer.status import folder_bytes
from replication.config import Config
from replication.core.schema import TableSpec
from replication.errors import RequestError
from replication.ledger.base import FileKind, FileRow, Ledger
from replication.tables.layout import layouts

#: Rows as frames need about this much of what they need as Iceberg's zstd files.
COPY_FACTOR = 3.0
#: What a bootstrap certainly does a second, written here, shipped, and applied there.
BYTES_PER_S = 10e6


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes: what the copy of the rows needs, what WAL will be kept until it is applied, and what is free for them."""

    copy_bytes: int
    wal_bytes: int
    free_bytes: int
    keep_free_bytes: int

    def check(self, table: str) -> None:
        """Raise RequestError, with figures, when it cannot fit."""
        needed = self.copy_bytes + self.wal_bytes
        if self.free_bytes - self.keep_free_bytes < needed:
            raise RequestError(
                f"sending the rows that {table} has needs about {_mib(needed)} here:"
                f" {_mib(self.copy_bytes)} for a copy, {_mib(self.wal_bytes)} of WAL kept meanwhile;"
                f" {_mib(self.free_bytes)} are free, and {_mib(self.keep_free_bytes)} are to stay free",
                "Free disk space here, or send only what is written from now on (--from-now)",
            )


def room(config: Config, ledger: Ledger, spec: TableSpec) -> Room:
    """What a bootstrap of a table needs and has on this host, estimated."""
    stored = sum(folder_bytes(config.warehouse_dir.joinpath(*layout.name.split("."))) for layout in layouts(spec))
    copy = int(COPY_FACTOR * stored)
    rate = _written_per_s(ledger.files.all(config.cluster.host), time.time_ns() // 1000)
    config.data_dir.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(config.data_dir).free
    return Room(copy, int(rate * copy / BYTES_PER_S), free, config.receiver.disk_free_min_bytes)


def _written_per_s(rows: Iterable[FileRow], now: int) -> float:
    """What writers here have made of late, in bytes a second: the WALs that are still there, over their age."""
    wals = [row for row in rows if row.kind is FileKind.WAL]
    seconds = max((now - row.created) / 1e6 for row in wals) if wals else 0.0
    return sum(row.length for row in wals) / max(seconds, 60.0)


def _mib(size: int) -> str:
    return f"{max(size, 0) / (1 << 20):,.1f} MiB"
