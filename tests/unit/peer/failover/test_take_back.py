"""What taking back waits for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from peer.failover.take_back import TakeBack, await_replayed
from replication.core.ids import ClusterId
from replication.core.succession import Succession, Successions
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


def test_frames_of_a_table_that_was_dropped_meanwhile_need_not_be_taken_back() -> None:
    east, west = (ClusterId(name, UUID(int=n)) for n, name in enumerate(("east", "west"), 1))
    succession = Succession(east, west, 1003, 7, is_planned=False)
    replay = SimpleNamespace(replayers=lambda: ("h0",), quarantined=list)
    successions = SimpleNamespace(known=lambda: Successions((succession,)))
    cluster = SimpleNamespace(ledger=SimpleNamespace(replay=replay, successions=successions), tables=list)
    beyond = SimpleNamespace(header=SimpleNamespace(table=UUID(int=9)), ref=SimpleNamespace(file=1, begin=2))
    context: Any = SimpleNamespace(cluster=cluster, beyond=(beyond,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Succession, "leaves_out", lambda *_: True)
        assert TakeBack(str(east), 1003, 5).verify(context)


def test_rows_beyond_its_own_cut_are_taken_back_though_a_third_cluster_took_over_from_the_origin_since() -> None:
    east, west, north = (ClusterId(name, UUID(int=n)) for n, name in enumerate(("east", "west", "north"), 1))
    known = Succession(east, west, 1003, 7, is_planned=False), Succession(east, north, 1007, 8, is_planned=False)
    replay = SimpleNamespace(replayers=lambda: ("h0",), quarantined=list)
    successions = SimpleNamespace(known=lambda: Successions(known))
    tables = [SimpleNamespace(uuid=UUID(int=9))]
    cluster = SimpleNamespace(ledger=SimpleNamespace(replay=replay, successions=successions), tables=lambda: tables)
    beyond = SimpleNamespace(header=SimpleNamespace(table=UUID(int=9)), ref=SimpleNamespace(file=1, begin=2))
    context: Any = SimpleNamespace(cluster=cluster, beyond=(beyond,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Succession, "leaves_out", lambda succession, _: succession.successor == west)
        assert not TakeBack(str(east), 1003, 5).verify(context), "else they stay in the tables"
