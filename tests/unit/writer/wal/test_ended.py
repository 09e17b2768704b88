"""Ended WALs are closed in the ledger, or left to recovery."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast
from uuid import UUID

from replication.core.ids import ClusterId, FileId
from replication.errors import LedgerBusyError
from replication.ledger.base import Ledger
from replication.writer.wal.ended import EndedWals


@dataclass
class Ended:
    """A WAL that notes what is done to it."""

    busy: bool = False
    done: list[str] = field(default_factory=list)
    file: FileId = field(default_factory=lambda: FileId(ClusterId("east", UUID(int=1)), "h0", 0))
    path: str = "/wal"
    published: int = 256

    def close(self, ledger: Ledger) -> None:
        if self.busy:
            raise LedgerBusyError("busy")
        self.done.append("closed")

    def abandon(self) -> None:
        self.done.append("abandoned")


def test_a_wal_that_the_ledger_does_not_close_in_time_is_left_to_recovery_as_one_that_comes_too_late_is() -> None:
    ended = EndedWals(cast(Ledger, None), 1.0)
    wals = [Ended(), Ended(busy=True), Ended()]
    for wal in wals:
        ended.add(wal)
    ended.report()
    assert [wal.done for wal in wals] == [["closed"], [], []]
    ended.report_when_due()
    assert wals[2].done == [], "the ledger failed a moment ago"
    wals[1].busy = False
    ended.report()
    assert [wal.done for wal in wals] == [["closed"]] * 3
    ended.add(busy := Ended(busy=True))
    ended.close()
    ended.add(late := Ended())
    assert busy.done == late.done == ["abandoned"]
