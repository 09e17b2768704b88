"""The writer of a simulated cluster: a real lease and real WALs, and the worker's part, which registers them."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

from replication.coordination.session import Coordination
from replication.core.frame import FILE_HEADER_BYTES, scan
from replication.core.ids import FileId
from replication.ledger.base import FileKind, FileRow
from replication.writer.wal.commit_clock import CommitClock
from replication.writer.wal.durable_length import DurableLength
from replication.writer.wal.recovery import Recovery
from replication.writer.wal.registration import WriterRegistration
from replication.writer.wal.wal_series import Place, WalSeries
from tests.fakes.files import MemoryFiles
from tests.simulation.successions.frames import Acked, Stored, claim
from tests.simulation.successions.granting import lease_terms

if TYPE_CHECKING:
    from tests.simulation.successions.site import Site

HOST = "h0"
DIRECTORY = "wal"
WAL_BYTES = 2000


@dataclass
class Process:
    """A writer that runs."""

    session: Coordination
    registration: WriterRegistration
    series: WalSeries


class Writer:
    """One writer at a time; ``acked`` is what callers were told is durable."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.files = MemoryFiles()
        self.files.faults.sync_gate = SimpleNamespace(wait=self._syncing)  # type: ignore[assignment]
        self.registered: dict[FileId, int] = {}
        self.acked: list[Acked] = []
        self.process: Process | None = None
        self.busy = self.written = False
        self.writes = 0

    def write(self, key: int | None = None) -> None:
        """One group commit; the writer starts when it is not there."""
        if self.busy:
            return
        self.busy = self.written = True
        try:
            process = self.process or self._start()
            written = process.series.write([self._site.world.batch(key)])
        finally:
            self.busy = False
        self.written = True
        self.writes += 1
        if self.process is not process:  # it was killed before it could tell
            return
        for placed in written.placed:
            epoch = self._epoch_of(written.file, placed.sequence)
            self.acked.append(Acked(placed.stream, placed.sequence, written.commit, epoch))
            self._site.world.note_ack(self._site, self.acked[-1])

    def _start(self) -> Process:
        session = self._site.session()
        try:
            place, terms = Place(DIRECTORY, HOST, "boot"), lease_terms(self._site)
            registration = WriterRegistration(self._site.ledger, session, self.files, place, terms, self._site.boot_ns)
        except BaseException:
            session.close()
            raise
        clock = CommitClock(
            self._site.ledger, HOST, registration.floor, self._site.wall_us, lambda: self._site.world.now_us / 1e6
        )
        series = WalSeries(self._site.ledger, self.files, registration.place, registration, clock, WAL_BYTES, 1e9)
        self.process = Process(session, registration, series)
        self._site.world.did("writer")
        return self.process

    def renew(self) -> None:
        """The writer's thread confirms the lease."""
        if self.process is not None:
            self.process.registration.renew()

    def kill(self) -> None:
        """SIGKILL; the worker recovers its WALs."""
        if self.process is None:
            return
        self.process.session.close()
        self.process = None
        self.files.crash(machine=False)
        self.written = True
        self.writes += 1
        Recovery(self._site.ledger, self.files, DIRECTORY, HOST, "boot").run_once()

    def _syncing(self) -> None:
        if self.busy:
            self._site.world.turn(self._site, "sync")

    def _epoch_of(self, file: FileId, sequence: int) -> int:
        frames = scan(
            self._content(f"{DIRECTORY}/{file.number:012d}.wal"), self.registered.get(file, FILE_HEADER_BYTES)
        )
        return next(frame.header.role_epoch for frame in frames if frame.header.sequence == sequence)

    def _content(self, path: str, length: int = 1 << 20) -> bytes:
        return bytes(memoryview(self.files._names[path].content)[:length])

    # What a worker registers and ships.

    def register(self) -> None:
        """Own published frames are claimed."""
        if not self.written:
            return
        begun = self.writes
        for row in self._site.ledger.files.all(HOST):
            if row.kind is FileKind.WAL:
                self._register(row)
        self.written = self.busy or self.writes != begun  # others registered, or wrote, during the calls

    def _register(self, row: FileRow) -> None:
        begin = self.registered.get(row.file, FILE_HEADER_BYTES)
        counters = None if row.closed else DurableLength.open(row.path, "boot", self.files)
        length = row.closed_length if row.closed else counters.length if counters is not None else 0
        if length <= begin:
            return
        views = [view for view in scan(self._content(row.path, length), begin) if view.end <= length]
        if new := [view for view in views if view.begin >= row.length]:  # others: an earlier call had no answer
            self._site.ledger.registration.register_own(
                row.file, new[0].begin, new[-1].end, [claim(view) for view in new]
            )
        for view in views:
            self.registered[row.file] = view.end
            self._site.take(Stored(view, (self._site.id,)))
