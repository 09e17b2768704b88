"""The acks of the failover demo's application, by the half second."""

from __future__ import annotations

from uuid import UUID

import pytest

from replication.core.ids import ClusterId
from replication.core.position import Position
from shell.demo import load
from shell.demo.load import Acks


def test_a_time_without_acks_shows_as_empty_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(load.time, "monotonic", lambda: now)
    acks = Acks()
    east, west = (Position(ClusterId(name, UUID(int=1))) for name in ("east", "west"))
    acks.note(0, 200, east)
    acks.note(1, 200, east)
    now = 102.1
    acks.tick()
    acks.note(2, 200, west)
    assert list(acks.beats) == [(400, "east"), (0, ""), (0, ""), (0, ""), (200, "west")]
    assert acks.rows == {"east": 400, "west": 200} and acks.batches == [0, 1, 2] and acks.last_s == 102.1
    assert acks.positions == {"east": east, "west": west}
