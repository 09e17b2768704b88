"""A writer's WALs, one after another: appends with sync, lease check and publish (rule 1), rolls by size and age.

Only the commit thread uses it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from replication import log
from replication.core.ids import FileId
from replication.core.rows.batch import EncodedBatch
from replication.errors import (
    CoordinationError,
    NoSpaceError,
    PoisonedFileError,
    ReadOnlyClusterError,
    ReplicationError,
    StorageError,
)
from replication.files.base import Files
from replication.files.boot import boot_id
from replication.ledger.base import FileKind, FileRow, Ledger
from replication.retries import next_ask_s
from replication.writer.wal.commit_clock import CommitClock
from replication.writer.wal.ended import EndedWals
from replication.writer.wal.times import DEFAULT_TIMES, WriterTimes
from replication.writer.wal.wal_file import Placed, WalFile

_log = log.get(__name__)


class WriterLease(Protocol):
    """The right to publish (``registration.py``)."""

    def epoch(self) -> int:
        """Return the role epoch. Raises ReadOnlyClusterError or CoordinationError when nothing may be written now."""

    def publish(self, epoch: int, publish: Callable[[], None]) -> None:
        """Call ``publish`` if the lease holds now; else raise LeaseLostError or ReadOnlyClusterError."""


@dataclass(frozen=True, slots=True)
class Place:
    """The directory of a host's WALs, and the host slot, boot and writer that they belong to."""

    directory: str
    host: str
    boot: str = field(default_factory=boot_id)
    writer: str = ""


@dataclass(frozen=True, slots=True)
class WrittenGroup:
    """Batches that are durable and published, in order; ``commit`` in microseconds since 1970."""

    file: FileId
    commit: int
    placed: tuple[Placed, ...]


class WalSeries:
    """Appends to the current WAL, and rolls to the next."""

    def __init__(
        self,
        ledger: Ledger,
        files: Files,
        place: Place,
        lease: WriterLease,
        clock: CommitClock,
        bytes_max: int,
        age_max_s: float,
        times: WriterTimes = DEFAULT_TIMES,
    ) -> None:
        self._ledger = ledger
        self._files = files
        self._place = place
        self._lease = lease
        self._bytes_max = bytes_max
        self._age_max_us = int(age_max_s * 1e6)
        self._clock = clock
        self.ended = EndedWals(ledger, times.ledger_retry_s)
        self._ledger_retry_s = times.ledger_retry_s
        self._allocate_s = 0.0  # no allocation is tried before this time
        self._row: FileRow | None = None  # allocated, but the file does not exist yet
        self._current: WalFile | None = self._create()

    def write(self, batches: Sequence[EncodedBatch]) -> WrittenGroup:
        """Append ``batches``, make them durable and publish them: fdatasync, lease check, durable length.

        Raises:
            NoSpaceError: nothing was written.
            ReadOnlyClusterError, LeaseLostError, CoordinationError: nothing is published, now or later.
            PoisonedFileError: the disk failed; nothing is published, now or later.
        """
        epoch = self._lease.epoch()
        self.ended.report_when_due()
        wal = self._ready()
        commit = self._clock.tick()
        try:
            placed = wal.append(batches, commit, epoch)
        except NoSpaceError:
            raise  # the file is unchanged
        except StorageError as error:
            raise self._poison(wal, error) from error
        try:
            wal.sync()
        except StorageError as error:
            raise self._poison(wal, error) from error
        try:
            self._lease.publish(epoch, lambda: wal.publish(commit))
        except CoordinationError as error:
            self._poison(wal, error)
            raise
        return WrittenGroup(wal.file, commit, tuple(placed))

    def tick(self) -> None:
        """Do the idle work: raise the watermark, roll by age, close ended WALs in the ledger.

        Raises:
            StorageError, CoordinationError: no WAL could be created; the next call retries.
        """
        self.ended.report_when_due()
        if self._current is None or self._is_old(self._current):
            self._ready()
        assert self._current is not None
        self._current.watermark(self._clock.tick())

    def poison_current(self, error: BaseException) -> ReplicationError:
        """Poison the current WAL after an unexpected error; return the error for the callers."""
        if self._current is None:
            return StorageError(f"no WAL could be written: {error!r}")
        return self._poison(self._current, error)

    def close(self) -> bool:
        """Seal and close the current WAL; return whether every WAL of the writer is CLOSED in the ledger."""
        wal, self._current = self._current, None
        if wal is not None:
            self._finish(wal)
        self.ended.close()
        try:
            open_rows = self._ledger.files.all(self._place.host, open_only=True)
        except CoordinationError:
            return False
        return all(row.writer != self._place.writer for row in open_rows)

    def _ready(self) -> WalFile:
        wal = self._current
        if wal is not None and (wal.published >= self._bytes_max or self._is_old(wal)) and self._has_next():
            self._current = None
            self._finish(wal)
        if self._current is None:
            self._current = self._create()
        return self._current

    def _create(self) -> WalFile:
        now = self._clock.wall()
        wal = WalFile.create(self._files, self._row or self._allocate(), now, self._clock.last)
        self._row = None
        _log.info("wal_opened", file=str(wal.file), path=wal.path)
        return wal

    def _has_next(self) -> bool:
        """Allocate a row for the next WAL; return whether there is one. Until then the current WAL stays in use."""
        begun_s = time.monotonic()
        if self._row is None and begun_s >= self._allocate_s:
            try:
                self._allocate()
            except CoordinationError as error:
                self._allocate_s = next_ask_s(begun_s, time.monotonic(), self._ledger_retry_s)
                _log.warning("wal_roll_delayed", error=str(error))
        return self._row is not None

    def _allocate(self) -> FileRow:
        place = self._place
        self._row = self._ledger.files.allocate(place.host, FileKind.WAL, place.directory, place.boot, place.writer)
        return self._row

    def _is_old(self, wal: WalFile) -> bool:
        return not wal.empty and self._clock.wall() - wal.created > self._age_max_us

    def _finish(self, wal: WalFile) -> None:
        try:
            wal.seal()
        except StorageError as error:
            self._poison(wal, error)
            return
        self._end(wal)

    def _poison(self, wal: WalFile, error: BaseException) -> PoisonedFileError:
        wal.poison()
        report = _log.info if isinstance(error, ReadOnlyClusterError) else _log.error  # a role change is not a fault
        report("wal_poisoned", file=str(wal.file), path=wal.path, end=wal.published, error=str(error))
        self._current = None
        self._end(wal)
        return PoisonedFileError(
            f"{wal.path} failed and is closed at {wal.published} bytes ({error}); none of this append is kept",
            "Check the disk, then repeat the append: it goes to a new file",
        )

    def _end(self, wal: WalFile) -> None:
        self.ended.add(wal)
        self.ended.report()
