"""Waiting on the own cluster for what was written to several tables."""

from __future__ import annotations

from typing import cast

import pytest

from peer.contacts import Contacts
from peer.waiting import Waiting
from replication.core.position import Position
from replication.errors import WaitTimeoutError
from replication.ledger.base import FileKind
from replication.ledger.memory import MemoryLedger
from tests.contract.ledger_stores import FRAME, HEADER, WEST, applied, claims, stream, table


def test_a_position_over_two_tables_is_reached_when_both_are() -> None:
    ledger, one, two = MemoryLedger(WEST), table(), table("ops.weather", 2)
    for spec in (one, two):
        ledger.tables.create(spec)
    file = ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "w").file
    first, second = stream(one, file), stream(two, file)
    end = HEADER + 2 * FRAME
    found = (*claims(first, 0, 1, HEADER), *claims(second, 0, 1, HEADER + FRAME))
    ledger.landing.register_own(file, HEADER, end, found)
    waiting = Waiting(ledger, cast(Contacts, None))
    both = Position(WEST, {file: end}, {first: 0, second: 0})
    applied(ledger, two, {file: end})
    waiting.wait(Position(WEST, {file: end}, {second: 0}), None, "visible", 0.0)
    with pytest.raises(WaitTimeoutError):
        waiting.wait(both, None, "visible", 0.05)
    applied(ledger, one, {file: end}, 2)
    waiting.wait(both, None, "visible", 0.0)
    ledger.close()


def test_what_is_registered_between_two_looks_at_the_ledger_is_still_waited_for() -> None:
    ledger, spec = MemoryLedger(WEST), table()
    ledger.tables.create(spec)
    file = ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "w").file
    written, end = stream(spec, file), HEADER + FRAME

    def register(call: str) -> None:
        if call in ("replay.pending", "files.get"):
            ledger.fault_after = None
            ledger.landing.register_own(file, HEADER, end, claims(written, 0, 1, HEADER))

    waiting = Waiting(ledger, cast(Contacts, None))
    ledger.fault_after = register
    with pytest.raises(WaitTimeoutError):
        waiting.wait(Position(WEST, {file: end}, {written: 0}), None, "visible", 0.05)
    applied(ledger, spec, {file: end})
    waiting.wait(Position(WEST, {file: end}, {written: 0}), None, "visible", 0.0)
    ledger.close()
