"""The parts of a cluster's handle are closed together."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NoReturn
from uuid import UUID

import pytest

from peer.client.opened import OpenedParts
from peer.status.members import Members
from replication import config as configuration
from replication.coordination import zookeeper
from replication.coordination.host import host_record
from replication.core.ids import ClusterId
from replication.errors import CoordinationError, RequestError, StorageError
from tests.fakes.coordination import MemoryEnsemble
from tests.fakes.ledger import MemoryLedger
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


def test_a_read_does_not_wait_for_zookeeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configuration.load(None, {"cluster": {"name": "east", "data_dir": str(tmp_path)}}, {})
    asked, answered = threading.Event(), threading.Event()

    def silent(*_: object, **__: object) -> NoReturn:
        asked.set()
        answered.wait(30)
        raise CoordinationError("no answer")

    monkeypatch.setattr(zookeeper, "connect", silent)
    opened, found = OpenedParts(config, MemoryLedger(EAST)), list[Members]()
    writing = threading.Thread(target=lambda: found.append(opened.members()))
    writing.start()
    assert asked.wait(30)
    reading = threading.Thread(target=lambda: opened.reader)
    reading.start()
    reading.join(10)
    is_waiting = reading.is_alive()
    answered.set()
    writing.join()
    opened.close()
    assert not is_waiting and "no answer" in found[0].problem
    with pytest.raises(RequestError, match="is closed"):
        _ = opened.reader
