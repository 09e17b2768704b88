"""Removing a host that is gone: nothing in the ledger waits for it afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest

from peer.client.operations import Operations
from peer.status.sending import sending
from replication.coordination.base import HostRecord
from replication.core.ids import ClusterId
from replication.ledger.base import Peer
from tests.fakes.coordination import MemoryEnsemble
from tests.fakes.ledger import MemoryLedger

EAST = ClusterId("east", UUID(int=1))


@pytest.fixture
def operations() -> Iterator[Operations]:
    coordination = MemoryEnsemble().connect("/walship/east")
    coordination.establish(EAST, "1.0")
    coordination.put_host(HostRecord("h1", "/data", ""))
    ledger = MemoryLedger(EAST)
    yield Operations(ledger, coordination)
    ledger.close()
    coordination.close()


def test_closed_time_does_not_wait_for_a_writer_that_left_no_file(operations: Operations) -> None:
    time = operations.ledger.time
    time.register_writer("brief", "h1", 1, "boot", 1)
    time.register_writer("other", "h0", 1, "boot", 1)
    assert time.raise_closed("h0", {"other": 500}, 500) == 0
    operations.remove_host("h1")
    assert [row.writer for row in time.writers()] == ["other"]
    assert time.raise_closed("h0", {"other": 600}, 600) == 600


def test_a_host_that_only_a_writer_is_left_of_can_be_removed(operations: Operations) -> None:
    operations.coordination.remove_host("h1")
    operations.ledger.time.register_writer("brief", "h1", 1, "boot", 1)
    operations.remove_host("h1")
    assert operations.ledger.time.writers() == []


def test_status_and_switchovers_no_longer_go_by_what_its_worker_reported(operations: Operations) -> None:
    ledger, table = operations.ledger, UUID(int=7)
    ledger.rules.define(Peer("west", "zk:2181/walship/west", ClusterId("west", UUID(int=2))), 0)
    for host in ("h0", "h1"):
        ledger.sending.set_held("west", host, {table: "refused"}, 1)
        ledger.sending.attempted("west", host, "tail", 3, 5, 1, "no answer")
    operations.remove_host("h1")
    assert [each.host for each in ledger.sending.held()] == ["h0"], "the other host goes on reporting"
    assert [each.failures for each in ledger.sending.attempts()] == [3, 0]
    ledger.sending.set_held("west", "h0", {}, 2)
    ledger.sending.attempted("west", "h0", "tail", 0, 0, 2, "")
    assert [each.state for each in sending(ledger, 2)] == ["sending"]
