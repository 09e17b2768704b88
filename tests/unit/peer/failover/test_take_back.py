"""What taking back waits for."""

from __future__ import annotations

import pytest

from peer.failover.take_back import await_replayed
from replication.errors import WaitTimeoutError
from tests.contract.ledger_stores import FLIGHTS, WEATHER, Route, applied, claims, memory, stream, wal


def test_taking_rows_of_a_table_back_does_not_wait_for_frames_of_a_table_that_replay_holds() -> None:
    with memory() as stores:
        ledger = stores.ledger
        ledger.tables.create(FLIGHTS)
        ledger.tables.create(WEATHER)
        one, two = Route(ledger, wal(0)), Route(ledger, wal(1))
        one.land(claims(stream(FLIGHTS, wal(0)), 0, 2, 0))
        two.land(claims(stream(WEATHER, wal(1), "first"), 0, 2, 0))
        passed = {one.file: one.at, two.file: two.at}
        with pytest.raises(WaitTimeoutError, match="replay has not passed 1 file "):
            await_replayed(ledger, FLIGHTS, passed, 0.0)
        applied(ledger, FLIGHTS, {one.file: one.at})
        one.land(claims(stream(FLIGHTS, wal(0)), 2, 3, 0))
        await_replayed(ledger, FLIGHTS, passed, 0.0)
