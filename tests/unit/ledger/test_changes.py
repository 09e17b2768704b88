"""A ledger is read again when something was committed, and not before."""

from __future__ import annotations

import os
import time
from pathlib import Path
from uuid import UUID

from replication.core.ids import ClusterId
from replication.ledger.changes import LedgerChanges
from replication.ledger.sql.ledger import initialise, open_ledger
from replication.ledger.sql.memory import MemoryLedger
from tests.contract.ledger_stores import table


def aged(folder: Path) -> None:
    """Let the ledger's files have been written to a while ago, each at another time than before."""
    for file in folder.glob("ledger.db*"):
        then = file.stat().st_mtime_ns - 10**9
        os.utime(file, ns=(then, then))


def test_a_ledger_has_changed_once_after_each_commit_of_any_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    initialise(url, ClusterId("east", UUID(int=1)))
    ledger, other, now = open_ledger(url), open_ledger(url), [0.0]
    try:
        other.tables.create(table("ops.one", 1))
        changes = LedgerChanges(ledger, lambda: now[0])
        assert changes.any() and changes.any(), "it was written to just now: the file's time may stay the same"
        aged(tmp_path)
        assert [changes.any() for _ in range(3)] == [True, False, False]
        ledger.tables.all()
        other.tables.all()
        assert not changes.any(), "reading commits nothing"
        other.tables.create(table("ops.two", 2))
        assert changes.any()
        aged(tmp_path)
        assert changes.any() and not changes.any()
        changes.forget()
        assert changes.any() and not changes.any()
        now[0] += 11.0
        assert changes.any() and not changes.any(), "whatever the file system tells"
    finally:
        ledger.close()
        other.close()


def test_where_none_can_tell_a_ledger_counts_as_changed() -> None:
    changes = LedgerChanges(MemoryLedger(ClusterId("east", UUID(int=1))), time.monotonic)
    assert changes.any() and changes.any()
