"""The parts of a cluster's handle are closed together."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from peer.client.opened import OpenedParts
from replication import config as configuration
from replication.coordination import zookeeper
from replication.coordination.host import host_record
from replication.coordination.memory import MemoryEnsemble
from replication.core.ids import ClusterId
from replication.errors import StorageError
from replication.ledger.sql.memory import MemoryLedger
from tests.sessions import session_of

EAST = ClusterId("east", UUID(int=1))


def test_a_writer_that_cannot_be_closed_leaves_nothing_else_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration.load(None, {"cluster": {"name": "east", "data_dir": str(tmp_path)}}, {})
    ensemble = MemoryEnsemble()
    first = ensemble.connect("/walship/east")
    first.establish(EAST, "0")
    first.put_host(host_record(config))
    first.close()
    monkeypatch.setattr(zookeeper, "connect", lambda *_, **__: ensemble.connect("/walship/east"))
    opened = OpenedParts(config, MemoryLedger(EAST))
    coordination = opened.coordination

    class Failing:
        def close(self) -> None:
            raise StorageError("the disk has failed")

    monkeypatch.setattr(opened, "_writer", Failing())
    with pytest.raises(StorageError):
        opened.close()
    assert not session_of(coordination)
