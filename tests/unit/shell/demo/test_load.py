"""The acks of the failover demo's application, by the half second."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from uuid import UUID

import pyarrow as pa
import pytest

from replication.core.ids import ClusterId
from replication.core.position import Position
from shell.demo import load
from shell.demo.data import DemoTable
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


def test_an_application_whose_rows_are_all_written_writes_them_again_so_that_a_slow_demo_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrote: list[int] = []
    enough = threading.Event()

    def upsert(_: str, rows: pa.Table) -> Position:
        wrote.append(rows["id"][0].as_py())
        if len(wrote) == 5:
            enough.set()
        return Position(ClusterId("east", UUID(int=1)))

    monkeypatch.setattr(load, "connect", lambda *_, **__: nullcontext(SimpleNamespace(upsert=upsert)))
    monkeypatch.setattr(load, "pace", lambda _: None)
    table = DemoTable("ops.flights", ("id",), pa.table({"id": range(load.BATCH_ROWS + 1)}))
    acks = Acks()
    application = load.DemoApplication([], table, acks)
    assert enough.wait(5.0), wrote
    application.stop()
    assert wrote[:5] == [0, load.BATCH_ROWS, 0, load.BATCH_ROWS, 0] and set(acks.batches) == {0, 1}
