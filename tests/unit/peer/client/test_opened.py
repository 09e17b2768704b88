"""The parts of a cluster's handle are closed together."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn
from uuid import UUID

import pytest

from peer.client.cluster import Cluster
from peer.client.connect import connect
from peer.client.opened import OpenedParts
from peer.status.members import Members
from replication import config as configuration
from replication.coordination import zookeeper
from replication.coordination.host import host_record
from replication.coordination.paths import MemberKind
from replication.core.ids import ClusterId
from replication.core.position import Position
from replication.errors import ConfigError, CoordinationError, RequestError, StorageError
from replication.ledger.sql.ledger import open_ledger
from tests.fakes.coordination import MemoryEnsemble
from tests.fakes.ledger import MemoryLedger
from tests.sessions import session_of
from tests.sites import Site, table

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
        def check_may_close(self) -> None:
            pass

        def close(self) -> None:
            raise StorageError("the disk has failed")

    monkeypatch.setattr(opened, "_writer", Failing())
    with pytest.raises(StorageError):
        opened.close()
    assert not session_of(coordination)


def test_a_callback_that_closes_the_handle_is_refused_and_a_later_close_ends_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had left the writer's lease, and the lock by which its host tells that it lives."""
    site, refused = Site(tmp_path, "east"), list[Exception]()
    site.coordination.enrol(MemberKind.WORKERS, "h0", {})
    spec, before = table(), set(threading.enumerate())
    site.ledger.tables.create(spec)
    opened = OpenedParts(site.config, site.ledger)
    monkeypatch.setattr(opened, "_coordination", site.coordination)

    def close(_: object) -> None:
        try:
            opened.close()
        except Exception as error:
            refused.append(error)

    appended = opened.writer.upsert_async(spec, [{"id": 1}])
    appended.add_done_callback(close)
    opened.writer.flush()
    assert [type(each) for each in refused] == [RequestError]
    opened.close()
    assert not [each.name for each in set(threading.enumerate()) - before if each.is_alive()]
    site.close()


def test_a_handle_that_is_closed_opens_nothing_again_and_knows_its_name(tmp_path: Path) -> None:
    """Its ledger had opened itself again, and nobody closed it."""
    site = Site(tmp_path, "east")
    site.ledger.tables.create(table())
    handle = Cluster(site.config, open_ledger(site.config.ledger_url))
    assert handle.tables()
    handle.close()
    calls: list[Callable[[], object]] = [
        handle.tables,
        lambda: handle.create_table("ops.new", "id long"),
        lambda: handle.wait(Position(handle.id)),
        lambda: handle.drain("west"),
    ]
    for call in calls:
        with pytest.raises(RequestError, match="the handle of cluster east is closed"):
            call()
    assert handle.name == "east" and handle.id == site.cluster
    site.close()


@pytest.mark.parametrize("given", [None, ["east.toml", "west.toml"]])
def test_what_is_not_one_cluster_is_shown_by_connect(given: Any) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{given!r} is not one cluster")):
        connect(given)


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
