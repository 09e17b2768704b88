"""What a worker reports of failures and withheld tables is in the ledger, whatever the ledger went through."""

from __future__ import annotations

from uuid import UUID

import pytest

from replication.errors import CoordinationError
from replication.worker.report.attempts import AttemptLog
from tests.contract.ledger_stores import WEST, peer
from tests.fakes.ledger import MemoryLedger

TABLE, OTHER = UUID(int=7), UUID(int=8)


def test_tables_withheld_from_a_peer_that_is_deleted_and_defined_again_are_recorded_again() -> None:
    ledger, name = MemoryLedger(WEST), peer().name
    attempts = AttemptLog(ledger, "h0")
    for _ in range(2):
        ledger.rules.define(peer(), 0)
        attempts.withholds(name, {TABLE: "it was dropped there"})
        attempts.flush()
        assert [each.table for each in ledger.sending.held()] == [TABLE]
        ledger.rules.delete(name, 0)


def test_what_the_ledger_did_not_take_is_written_later_unless_there_is_newer() -> None:
    ledger, name = MemoryLedger(WEST), peer().name
    ledger.rules.define(peer(), 0)
    attempts = AttemptLog(ledger, "h0")
    attempts.failed(name, "tail", 1, 1.0, "it does not answer")
    attempts.withholds(name, {TABLE: "it was dropped there"})

    def away(call: str) -> None:
        attempts.withholds(name, {OTHER: "it was dropped there"})
        raise CoordinationError("the ledger is away")

    ledger.fault = away
    with pytest.raises(CoordinationError):
        attempts.flush()
    ledger.fault = None
    assert attempts.flush() and not attempts.flush()
    assert [each.failures for each in ledger.sending.attempts()] == [1]
    assert [each.table for each in ledger.sending.held()] == [OTHER]
