"""A bootstrap that takes long delays no other table, and its own table goes on once it is applied."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from peer.bootstrap.decode import plan_bootstrap
from peer.replay import bootstraps
from peer.replay_report import TAKING
from replication.core.ids import StreamId
from replication.errors import StorageError
from tests.bootstrap_pair import Pair, ids
from tests.sites import Wal, rows, table
from tests.waiting import wait_until


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    made.west.restart(parallel=2)
    yield made
    made.west.replayer.close()
    made.close()


@pytest.mark.parametrize("fails", [False, True])
def test_rounds_go_on_while_a_bootstrap_is_applied(pair: Pair, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    begun, go_on = threading.Event(), threading.Event()
    errors = [StorageError("the disk failed")] if fails else []

    def slow(*given: object) -> object:
        begun.set()
        assert go_on.wait(120)
        if errors:
            raise errors.pop()
        return plan_bootstrap(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(bootstraps, "plan_bootstrap", slow)
    monkeypatch.setattr(bootstraps, "_PROMPT_S", 0.01)
    pair.write(0, 10)
    other = table("ops.weather")
    pair.east.ledger.tables.create(other)
    pair.begin()
    pair.east.send_to(pair.west, other)
    pair.connect()

    def is_taking() -> bool:
        pair.east.keeper.run_once()
        pair.west.replayer.round()
        return begun.is_set()

    wait_until(is_taking, what="the bootstrap")
    weather = Wal(pair.east, "w1")
    weather.append(other, rows(0, 5))
    pair.write(10, 10)
    own = StreamId(pair.wal.file, pair.spec.uuid, pair.spec.groups[0].name)
    wait_until(lambda: own in pair.west.ledger.landing.coverage(pair.spec.uuid), what="its frame")

    def is_shown() -> bool:
        assert pair.west.replayer.round().held == {pair.spec.name: TAKING}
        return pair.west.tables.exists(other.name) and ids(pair.west, other) == list(range(5))

    wait_until(is_shown, what="the other table's rows")
    assert ids(pair.west, pair.spec) == []
    go_on.set()
    pair.finish()
    pair.level()
    assert ids(pair.west, pair.spec) == list(range(20))
