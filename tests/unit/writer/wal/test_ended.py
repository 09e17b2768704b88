"""Ended WALs are closed in the ledger, or left to recovery."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast
from uuid import UUID

from replication.core.ids import ClusterId, FileId
from replication.errors import LedgerBusyError
from replication.ledger.base import Ledger
from replication.writer.wal.ended import EndedWals


@dataclass
class Ended:
    """A WAL that notes that its lock was released."""

    file: FileId
    published: int = 256
    is_released: bool = False

    def release(self) -> None:
        self.is_released = True


def test_a_wal_that_the_ledger_does_not_close_in_time_is_left_to_recovery_as_one_that_comes_too_late_is() -> None:
    busy: set[FileId] = set()
    closed: list[tuple[FileId, int, bool]] = []

    def close(file: FileId, length: int) -> None:
        if file in busy:
            raise LedgerBusyError("busy")
        closed.append((file, length, wals[file.number].is_released))

    ended = EndedWals(cast(Ledger, SimpleNamespace(files=SimpleNamespace(close=close))), 1.0)
    wals = [Ended(FileId(ClusterId("east", UUID(int=1)), "h0", number)) for number in range(5)]
    first, second, third, late, last = wals
    busy.add(second.file)
    for wal in (first, second, third):
        ended.add(wal)
    ended.report()
    assert closed == [(first.file, 256, False)], "it is locked until it is closed in the ledger"
    assert [wal.is_released for wal in wals[:3]] == [True, False, False]
    ended.report_when_due()
    assert not third.is_released, "the ledger failed a moment ago"
    busy.clear()
    ended.report()
    assert [file for file, _, _ in closed] == [wal.file for wal in wals[:3]]
    assert all(wal.is_released for wal in wals[:3])
    busy.add(late.file)
    ended.add(late)
    ended.close()
    ended.add(last)
    assert late.is_released and last.is_released and len(closed) == 3
