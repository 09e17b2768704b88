"""A ledger is read again when something was decided, and not before."""

from __future__ import annotations

import time
from pathlib import Path
from uuid import UUID

import pytest

from replication.core.ids import ClusterId
from replication.errors import TableExistsError
from replication.ledger.base import FileKind
from replication.ledger.changes import LedgerChanges
from replication.ledger.sql.ledger import initialise, open_ledger
from replication.ledger.sql.memory import MemoryLedger
from tests.contract.ledger_stores import table


def test_a_ledger_has_changed_once_after_each_decision_of_any_process_and_not_by_facts(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    initialise(url, ClusterId("east", UUID(int=1)))
    ledger, other, now = open_ledger(url), open_ledger(url), [0.0]
    try:
        other.tables.create(table("ops.one", 1))
        changes = LedgerChanges(ledger, lambda: now[0])
        assert [changes.any() for _ in range(3)] == [True, False, False]
        ledger.tables.all()
        other.tables.all()
        assert not changes.any(), "reading commits nothing"
        for number in range(2, 20):  # in one tick of the kernel's clock
            other.tables.create(table(f"ops.t{number}", number))
            assert changes.any() and not changes.any()
        other.replay.keep_report("news")
        other.files.allocate("h0", FileKind.CONTROL, str(tmp_path), "boot")
        other.sending.sample("gauge", 1, 2, 0)
        assert not changes.any()
        with pytest.raises(TableExistsError):
            other.tables.create(table("ops.one", 20))
        assert not changes.any(), "nothing was committed"
        changes.forget()
        assert changes.any() and not changes.any()
        now[0] += 31.0
        assert changes.any() and not changes.any(), "whatever the file tells"
    finally:
        ledger.close()
        other.close()


def test_where_none_can_tell_a_ledger_counts_as_changed() -> None:
    changes = LedgerChanges(MemoryLedger(ClusterId("east", UUID(int=1))), time.monotonic)
    assert changes.any() and changes.any()
