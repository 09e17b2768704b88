"""A writer whose lease a witness confirms, a real ZooKeeper server that stops answering, and a failover past it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from peer.client import granter
from peer.client.granter import lease_terms, witness_of
from replication.config import Config
from replication.coordination.embedded import EmbeddedZookeeper
from replication.core.ids import ClusterId
from replication.errors import CoordinationError, LeaseLostError, ReadOnlyClusterError, ReplicationError
from replication.settings import WriterSection
from replication.writer.wal.wal_series import Place
from replication.writer.writer import Writer
from tests.unit.writer.site import DIRECTORY, EAST, Site
from tests.waiting import wait_until

WEST = ClusterId("west", UUID(int=2))


@pytest.fixture
def third(tmp_path: Path) -> Iterator[EmbeddedZookeeper]:
    with EmbeddedZookeeper(tmp_path / "zookeeper", 0, heap_mb=64) as server:
        yield server
        if server.pid is not None:
            os.kill(server.pid, signal.SIGCONT)


def test_a_witness_that_is_cut_off_stops_writes_and_one_that_knows_of_a_successor_ends_them(
    third: EmbeddedZookeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(granter, "_TIMEOUT_S", 1.0)
    failover = {"lease": "witness", "witness": f"{third.servers}/walship/witness"}
    config = Config.model_validate({"cluster": {"name": "east"}, "writer": {"lease_s": 3}, "failover": failover})
    site = Site()
    terms = lease_terms(config, site.ledger)
    place = Place(DIRECTORY, "h0", site.boot), WriterSection(append_timeout_s=20)
    with Writer(site.ledger, site.coordination, *place, files=site.files, lease=terms) as writer:
        acked = list[int]()

        def refused(key: int, kind: tuple[type[ReplicationError], ...]) -> bool:
            try:
                writer.upsert(site.table, [{"k": key}])
            except kind:
                return True
            acked.append(key)
            return False

        assert not refused(1, ())
        assert third.pid is not None
        os.kill(third.pid, signal.SIGSTOP)
        wait_until(lambda: refused(2, (CoordinationError, LeaseLostError)))
        os.kill(third.pid, signal.SIGCONT)
        wait_until(lambda: not refused(3, (CoordinationError, LeaseLostError)))
        assert witness_of(config).end(EAST, 2, WEST) == 3.0
        wait_until(lambda: refused(4, (ReadOnlyClusterError,)), despite=(CoordinationError, LeaseLostError))
        with pytest.raises(ReadOnlyClusterError):
            writer.upsert(site.table, [{"k": 5}])
    assert site.logged_keys() == acked
    site.close()
