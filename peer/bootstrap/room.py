"""Whether there is room for bootstraps: the copies that are written here, and the WAL that is kept meanwhile."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from peer.status.disk_use import folder_bytes
from replication.config import Config
from replication.core.definition.schema import TableSpec
from replication.errors import NoSpaceError, ReplicationError, RequestError
from replication.ledger.base import Bootstrap, FileKind, FileRow, Ledger
from replication.tables.layout import layouts

if TYPE_CHECKING:
    from replication.tables.base import Catalog

#: Rows as frames need about this much of what they need as Iceberg's zstd files.
COPY_FACTOR = 3.0
#: What a bootstrap certainly does a second, written here, shipped, and applied there.
BYTES_PER_S = 10e6
#: How a table goes to a peer without its rows from before, whether it goes there already or not.
ONLY_LATER = (
    "send only what is written from now on: enablereplication --from-now, after disablereplication if it is sent"
)
_TOTAL = "total-files-size"  # in an Iceberg snapshot's summary
_MORE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class BootstrapRoom:
    """Bytes that bootstraps which begin together need on this host, estimated, and what is free for them.

    Attributes:
        copies: what the copy of each table's rows needs, by its name.
        wal_bytes: the WAL that will be kept until they are applied.
        free_bytes: of the disk.
        keep_free_bytes: what is to stay free of that.
        begun_bytes: what copies for bootstraps that are under way have yet to be written.
        begun_there_bytes: what such bootstraps have yet to bring to the same peer.
        unknown: tables whose size is told by nothing.
    """

    copies: Mapping[str, int]
    wal_bytes: int
    free_bytes: int
    keep_free_bytes: int
    begun_bytes: int = 0
    begun_there_bytes: int = 0
    unknown: tuple[str, ...] = ()

    @property
    def there_bytes(self) -> int:
        """What comes to the peer: these copies, and what is under way to it."""
        return sum(self.copies.values()) + self.begun_there_bytes

    def check(self) -> None:
        """Raise RequestError, with figures, when it cannot fit."""
        copies = sum(self.copies.values())
        needed = copies + self.wal_bytes + self.begun_bytes
        if copies and self.free_bytes - self.keep_free_bytes < needed:
            one = len(self.copies) == 1
            begun = f", {_mib(self.begun_bytes)} for bootstraps under way" if self.begun_bytes else ""
            raise RequestError(
                f"sending the rows that {next(iter(self.copies)) if one else f'{len(self.copies)} tables'}"
                f" {'has' if one else 'have'} needs about {_mib(needed)} here:"
                f" {_mib(copies)} for {'a copy' if one else 'copies'}, {_mib(self.wal_bytes)} of WAL kept meanwhile"
                f"{begun}; {_mib(self.free_bytes)} are free, and {_mib(self.keep_free_bytes)} are to stay free",
                f"Free disk space here, or {ONLY_LATER}",
            )


def room(
    config: Config, ledger: Ledger, specs: Sequence[TableSpec], peer: str, catalog: Callable[[], Catalog]
) -> BootstrapRoom:
    """What bootstraps of tables at a peer need and have on this host, beside those that are under way.

    ``catalog`` is asked where tables' files do not lie on this host's disk.
    """
    sizes = {spec.name: stored_bytes(config, spec, catalog) for spec in specs}
    copies = {name: int(COPY_FACTOR * (size or 0)) for name, size in sizes.items()}
    unknown = tuple(name for name, size in sizes.items() if size is None)
    shipped = {progress.file: progress.shipped.total for progress in ledger.files.progress(peer)}
    begun = begun_there = 0
    for wanted in ledger.bootstraps.wanted():
        spec, file = ledger.tables.by_uuid(wanted.table), wanted.file
        if spec is None or (wanted.peer == peer and spec.name in sizes):
            continue
        if file is not None and file.closed:
            whole = file.needed
        else:
            whole = int(COPY_FACTOR * (stored_bytes(config, spec, catalog) or 0))
            begun += max(whole - _written(wanted), 0)
        if wanted.peer == peer:  # it needs its bytes twice there: landed, and in its table
            begun_there += whole - (shipped.get(file.file, 0) // 2 if file is not None else 0)
    rate = _written_per_s(ledger.files.all(config.cluster.host), time.time_ns() // 1000)
    config.data_dir.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(config.data_dir).free
    wal = int(rate * (sum(copies.values()) + begun) / BYTES_PER_S)
    keep_free = config.receiver.disk_free_min_bytes
    return BootstrapRoom(copies, wal, free, keep_free, begun, max(begun_there, 0), unknown)


def stored_bytes(config: Config, spec: TableSpec, catalog: Callable[[], Catalog]) -> int | None:
    """Bytes of a table's files: those on this host's disk, else what their snapshots say; None when nothing tells."""
    if config.has_warehouse_here:
        return sum(folder_bytes(config.warehouse_dir.joinpath(*layout.name.split("."))) for layout in layouts(spec))
    try:
        there = catalog()
        sizes = [_told_bytes(there, layout.name) for layout in layouts(spec)] if there.has(spec) else []
    except (ReplicationError, OSError):
        return None
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _told_bytes(catalog: Catalog, name: str) -> int | None:
    history = catalog.history(name) if catalog.exists(name) else None
    if history is None or history.current is None:
        return 0
    told = history.snapshots[history.current].summary.get(_TOTAL, "")
    return int(told) if told.isdigit() else None


def _written(wanted: Bootstrap) -> int:
    """What of a copy that is being written is on the disk already."""
    with suppress(OSError):
        return os.path.getsize(wanted.file.path) if wanted.file is not None else 0
    return 0


@dataclass(slots=True)
class DiskRoom:
    """Room for one copy while it is written. One that ran short is begun again once there is more than it had.

    Attributes:
        free: says how many bytes of the disk are free.
        keep_free_bytes: what is to stay free of them.
        written: how far the copy has got, or the last one had when it ran short.
    """

    free: Callable[[], int]
    keep_free_bytes: int
    written: int = 0

    def begin(self) -> None:
        """Raise NoSpaceError when a copy would only run short again."""
        self._check(self.written * 5 // 4 + _MORE_BYTES if self.written else 0)
        self.written = 0

    def grow(self, written: int) -> None:
        """Say that ``written`` bytes are there; NoSpaceError when that is to be all. Looks again every 16 MiB."""
        is_due = written // _MORE_BYTES > self.written // _MORE_BYTES
        self.written = written
        if is_due:
            self._check(0)

    def _check(self, needed: int) -> None:
        if self.free() < self.keep_free_bytes + needed:  # told without what is free, so that it stays the same
            raise NoSpaceError(
                f"there is no room here for the copy of its rows: less than {_mib(self.keep_free_bytes + needed)} are"
                f" free, and {_mib(self.keep_free_bytes)} are to stay free",
                "Free disk space here; it begins again by itself",
            )


def _written_per_s(rows: Iterable[FileRow], now: int) -> float:
    """What writers here have made of late, in bytes a second: the WALs that are still there, over their age."""
    wals = [row for row in rows if row.kind is FileKind.WAL]
    seconds = max((now - row.created) / 1e6 for row in wals) if wals else 0.0
    return sum(row.length for row in wals) / max(seconds, 60.0)


def _mib(size: int) -> str:
    return f"{max(size, 0) / (1 << 20):,.1f} MiB"
