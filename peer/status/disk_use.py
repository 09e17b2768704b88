"""Disk space of frames and tables, here and on all hosts, per byte that was ever written or landed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from replication.config import Config
from replication.core.definition.schema import TableSpec
from replication.ledger.base import FileRow
from replication.tables.layout import CHANGES, iceberg_names


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Bytes on disk, by purpose.

    ``wal`` and ``landing`` are of this host; ``changes`` and ``tables`` of the cluster, None when their files are
    not on a disk here. ``elsewhere`` are the other hosts' files of frames. ``source_bytes`` are those of all frames
    that were ever written or landed on any host, retired ones included.
    """

    wal: int
    landing: int
    changes: int | None
    tables: int | None
    elsewhere: int
    source_bytes: int

    @property
    def per_byte(self) -> float | None:
        """Bytes kept on all hosts per byte that was ever written or landed; None when that is unknown."""
        if self.changes is None or self.tables is None or not self.source_bytes:
            return None
        return (self.wal + self.landing + self.elsewhere + self.changes + self.tables) / self.source_bytes


def disk_use(config: Config, rows: Iterable[FileRow], specs: Iterable[TableSpec], retired: int) -> DiskUse:
    """Add up the sizes.

    ``rows`` are the files of the whole cluster; ``retired`` the bytes of all its deleted ones.
    """
    known, here = list(rows), config.cluster.host
    mine = [row for row in known if row.host == here]
    changes = tables = None
    if config.has_warehouse_here:
        sizes = {
            name: folder_bytes(config.warehouse_dir.joinpath(*name.split(".")))
            for spec in specs
            for name in iceberg_names(spec)
        }
        changes = sum(size for name, size in sizes.items() if name.endswith(CHANGES))
        tables = sum(sizes.values()) - changes
    return DiskUse(
        wal=sum(_file_bytes(row.path) for row in mine if not row.is_landed),
        landing=sum(_file_bytes(row.path) for row in mine if row.is_landed),
        changes=changes,
        tables=tables,
        elsewhere=sum(row.length for row in known if row.host != here and not row.is_stored),
        source_bytes=retired + sum(row.length for row in known),
    )


def _file_bytes(path: str) -> int:
    try:
        return Path(path).stat().st_blocks * 512
    except OSError:
        return 0


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder; 0 when it does not exist."""
    total = 0
    for parent, _, files in os.walk(folder):  # skips what cannot be read
        for file in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(parent, file)).st_size
    return total
