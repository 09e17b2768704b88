"""Disk space for bootstraps: for the copies that are written here, and the WAL that is retained meanwhile."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from peer.status.disk_use import folder_bytes
from replication.config import Config
from replication.core.definition.schema import TableSpec
from replication.errors import NoSpaceError, ReplicationError, RequestError
from replication.ledger.base import Bootstrap, FileKind, FileRow, Ledger
from replication.tables.layout import iceberg_names
from replication.wall_clock import now_us

if TYPE_CHECKING:
    from replication.tables.base import Catalog

#: How many times more bytes rows take in frames than in Iceberg's zstd files, about.
COPY_FACTOR = 3.0
#: The least rate of a bootstrap that is assumed, from reading the table to the peer's commit.
BYTES_PER_S = 10e6
#: The hint: how to send a table without its rows from before, whether it is sent already or not.
ONLY_LATER = (
    "send only what is written from now on: enablereplication --from-now, after disablereplication if it is sent"
)
_TOTAL = "total-files-size"  # in an Iceberg snapshot's summary
_MORE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class BootstrapSpace:
    """The estimated bytes that bootstraps which begin together need on this host, and the bytes that are free.

    Attributes:
        copies: the size of the copy of each table's rows, by its name.
        wal_bytes: the WAL that will be retained until they are applied.
        free_bytes: of the disk.
        keep_free_bytes: how much of that must stay free.
        begun_bytes: what is yet to be written of copies for bootstraps that are under way.
        begun_there_bytes: what such bootstraps have yet to send to the same peer.
        unknown: tables whose size is not known.
    """

    copies: Mapping[str, int]
    wal_bytes: int
    free_bytes: int
    keep_free_bytes: int
    begun_bytes: int = 0
    begun_there_bytes: int = 0
    unknown: tuple[str, ...] = ()

    @property
    def peer_bytes(self) -> int:
        """The bytes that the peer will get: these copies, and those under way to it."""
        return sum(self.copies.values()) + self.begun_there_bytes

    def check(self) -> None:
        """Raise RequestError, with figures, when there is not enough space."""
        copies = sum(self.copies.values())
        needed = copies + self.wal_bytes + self.begun_bytes
        if copies and self.free_bytes - self.keep_free_bytes < needed:
            one = len(self.copies) == 1
            begun = f", {_mib(self.begun_bytes)} for bootstraps under way" if self.begun_bytes else ""
            raise RequestError(
                f"sending the rows that {next(iter(self.copies)) if one else f'{len(self.copies)} tables'}"
                f" {'has' if one else 'have'} needs about {_mib(needed)} here:"
                f" {_mib(copies)} for {'a copy' if one else 'copies'}, {_mib(self.wal_bytes)} of WAL retained meanwhile"
                f"{begun}; {_mib(self.free_bytes)} are free, and {_mib(self.keep_free_bytes)} must stay free",
                f"Free disk space here, or {ONLY_LATER}",
            )


def needed_space(
    config: Config, ledger: Ledger, specs: Sequence[TableSpec], peer: str, catalog: Callable[[], Catalog]
) -> BootstrapSpace:
    """The space that bootstraps of ``specs`` to a peer need and have on this host, beside those under way.

    ``catalog`` gives the sizes of tables whose files do not lie on this host's disk.
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
        if wanted.peer == peer:  # the bytes are needed there twice: in the landing file, and in the table
            begun_there += whole - (shipped.get(file.file, 0) // 2 if file is not None else 0)
    rate = _written_per_s(ledger.files.all(config.cluster.host), now_us())
    config.data_dir.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(config.data_dir).free
    wal = int(rate * (sum(copies.values()) + begun) / BYTES_PER_S)
    keep_free = config.receiver.disk_free_min_bytes
    return BootstrapSpace(copies, wal, free, keep_free, begun, max(begun_there, 0), unknown)


def stored_bytes(config: Config, spec: TableSpec, catalog: Callable[[], Catalog]) -> int | None:
    """Bytes of a table's files: from this host's disk, else from their snapshots; None when it is not known."""
    if config.has_warehouse_here:
        return sum(folder_bytes(config.warehouse_dir.joinpath(*name.split("."))) for name in iceberg_names(spec))
    try:
        there = catalog()
        sizes = [_snapshot_bytes(there, name) for name in iceberg_names(spec)] if there.has(spec) else []
    except (ReplicationError, OSError):
        return None
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _snapshot_bytes(catalog: Catalog, name: str) -> int | None:
    history = catalog.history(name) if catalog.exists(name) else None
    if history is None or history.current is None:
        return 0
    total = history.snapshots[history.current].summary.get(_TOTAL, "")
    return int(total) if total.isdigit() else None


def _written(wanted: Bootstrap) -> int:
    """How many bytes of an unfinished copy are on the disk."""
    with suppress(OSError):
        return os.path.getsize(wanted.file.path) if wanted.file is not None else 0
    return 0


@dataclass(slots=True)
class DiskSpace:
    """Space for one copy while it is written. A copy that ran out of space begins again once there is more.

    Attributes:
        free: gives the free bytes of the disk.
        keep_free_bytes: how many of them must stay free.
        written: the bytes of the copy so far, or of the last one when it ran out of space.
    """

    free: Callable[[], int]
    keep_free_bytes: int
    written: int = 0

    def begin(self) -> None:
        """Raise NoSpaceError when a copy would run out of space again."""
        self._check(self.written * 5 // 4 + _MORE_BYTES if self.written else 0)
        self.written = 0

    def grow(self, written: int) -> None:
        """Record that ``written`` bytes are written. Every 16 MiB, raise NoSpaceError when no more may be."""
        is_due = written // _MORE_BYTES > self.written // _MORE_BYTES
        self.written = written
        if is_due:
            self._check(0)

    def _check(self, needed: int) -> None:
        if self.free() < self.keep_free_bytes + needed:  # the message has no changing figure, so it is logged once
            raise NoSpaceError(
                f"there is no space here for the copy of its rows: less than {_mib(self.keep_free_bytes + needed)} are"
                f" free, and {_mib(self.keep_free_bytes)} must stay free",
                "Free disk space here; the copy then begins again",
            )


def _written_per_s(rows: Iterable[FileRow], now: int) -> float:
    """The rate of this host's writers in bytes a second: the size of the retained WALs over their age."""
    wals = [row for row in rows if row.kind is FileKind.WAL]
    seconds = max((now - row.created) / 1e6 for row in wals) if wals else 0.0
    return sum(row.length for row in wals) / max(seconds, 60.0)


def _mib(size: int) -> str:
    return f"{max(size, 0) / (1 << 20):,.1f} MiB"
