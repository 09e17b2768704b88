"""A bootstrap that cannot be taken, as one with a frame of another history: it waits longer after each attempt."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from peer.replay import bootstraps, held_tables
from replication.core.ids import StreamId
from replication.errors import StorageError
from tests.bootstrap_pair import Pair, ids
from tests.waiting import wait_until


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def test_a_bootstrap_that_cannot_be_taken_is_tried_more_and_more_rarely_and_delays_no_frame(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.write(0, 10)
    pair.begin()
    pair.connect()
    tries, clock = [], [0.0]
    for module in (bootstraps, held_tables):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0], time_ns=time.time_ns))

    def fail(*_: object) -> bool:
        tries.append(clock[0])
        raise StorageError("a frame of it is damaged")

    def began() -> bool:
        pair.east.keeper.run_once()
        pair.west.replay()
        return bool(tries)

    with monkeypatch.context() as patch:
        patch.setattr(bootstraps, "take_bootstrap", fail)
        wait_until(began, what="the bootstrap")
        for _ in range(600):
            clock[0] += 1.0
            result = pair.west.replayer.round()
            assert "damaged" in result.held[pair.spec.name]
        assert 5 < len(tries) < 30
        pair.write(100, 5)
        stream = StreamId(pair.wal.file, pair.spec.uuid, pair.spec.groups[0].name)
        wait_until(lambda: stream in pair.west.ledger.landing.coverage(pair.spec.uuid), what="the frame")
        for _ in range(5):
            clock[0] += 1.0
            pair.west.replayer.round()
        assert ids(pair.west, pair.spec) == list(range(100, 105))
    clock[0] += 60.0
    pair.finish()
    pair.level()
