"""Two clusters with a table that goes from one to the other, and what of it has landed."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar
from uuid import UUID

from replication.core.coverage import Ranges
from replication.core.definition.schema import TableSpec
from replication.ledger.base import FileKind
from tests.frames_on_disk import registered
from tests.sites import Site, Wal, rows, table


class World:
    """East and west, a table that goes from east to west, and what is running."""

    worker: ClassVar[dict[str, float]] = {"retry_min_s": 0.05, "retry_max_s": 0.5}

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.east, self.west = self.site("east"), self.site("west")
        self.spec = table()
        self.east.ledger.tables.create(self.spec)
        self.east.send_to(self.west, self.spec)

    def site(self, name: str) -> Site:
        made = Site(self.folder, name, worker=self.worker)
        self.stack.callback(made.close)
        return made

    def run(self) -> None:
        receiver = self.stack.enter_context(self.west.receiver())
        self.stack.enter_context(self.east.worker())
        self.east.assign(self.west.cluster, receiver.port)

    def written(self, frames: int, width: int = 20) -> Wal:
        """An OPEN WAL of so many frames of 50 rows."""
        wal = self.east.wal()
        for n in range(frames):
            wal.append(self.spec, rows(n * 50, 50, width))
        return wal

    def arrived(self, wal: Wal) -> bool:
        return any(
            progress.file == wal.file and progress.shipped.contains(256, wal.length)
            for progress in self.east.ledger.files.progress("west")
        )


def sequences(site: Site, spec: TableSpec | UUID) -> list[tuple[int, int]]:
    uuid = spec if isinstance(spec, UUID) else spec.uuid
    coverage = site.ledger.landing.coverage().items()
    return list(Ranges.union_of(span for stream, ranges in coverage if stream.table == uuid for span in ranges).spans)


def frames_of(site: Site, spec: TableSpec) -> list[tuple[str, int]]:
    """(WAL, sequence) of every registered frame of a table in the landing files, duplicates included."""
    found = []
    for row in site.ledger.files.all():
        if row.kind is FileKind.LANDING:
            frames = registered(row)[1]
            found += [(str(f.header.wal), f.header.sequence) for f in frames if f.header.table == spec.uuid]
    return found


def sequences_by_wal(site: Site, spec: TableSpec) -> dict[str, Ranges]:
    return {str(s.wal): ranges for s, ranges in site.ledger.landing.coverage().items() if s.table == spec.uuid}


def provenances(site: Site) -> set[tuple[str, ...]]:
    found = set()
    for row in site.ledger.files.all():
        found |= {tuple(c.name for c in frame.provenance) for frame in registered(row)[1]}
    return found
