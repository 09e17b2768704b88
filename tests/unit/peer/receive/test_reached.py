"""What a receiver remembers of streams answers who waits for durable rows, without the ledger."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from peer.receive.reached import DurableStreams, ReachedAnswers
from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.routes.freshness import Reach, Until
from replication.ledger.base import Claim, Ledger

WAL = FileId(ClusterId("east", UUID(int=1)), "h0", 3)
STREAM = StreamId(WAL, UUID(int=2), "default")
OTHER = replace(STREAM, group="other")
HERE = Reach(True, False, False, covered=Ranges.of((0, 8)))
AWAY = Reach(False, False, False, "not arrived")


def claim(sequence: int, stream: StreamId = STREAM) -> Claim:
    return Claim(stream, sequence, b"", b"", 0, 1, 1)


class Time:
    """A ledger's answers, in order; the last one again and again."""

    def __init__(self, *answers: Reach) -> None:
        self.answers = list(answers)
        self.asked = 0

    def reached(self, sequences: Mapping[StreamId, int]) -> dict[StreamId, Reach]:
        self.asked += 1
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return dict.fromkeys(sequences, found)


def answering(monkeypatch: pytest.MonkeyPatch, *answers: Reach) -> tuple[ReachedAnswers, Time]:
    monkeypatch.setattr("peer.receive.reached.silence", lambda _: "")
    times = Time(*answers)
    ledger: Any = SimpleNamespace(time=times, replay=None)
    return ReachedAnswers(cast(Ledger, ledger), ""), times


def test_what_lands_in_order_needs_the_ledger_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, times = answering(monkeypatch, HERE)
    assert answers.wait({STREAM: 4}, Until.DURABLE, 1.0) == {STREAM: HERE} and times.asked == 1
    assert answers.wait({STREAM: 7}, Until.DURABLE, 1.0)[STREAM].durable, "covered when the ledger was asked"
    later = threading.Thread(target=lambda: (time.sleep(0.01), answers.landed([claim(8), claim(9)])))
    later.start()
    found = answers.wait({STREAM: 9}, Until.DURABLE, 60.0)
    later.join()
    assert found[STREAM].durable and not found[STREAM].applied and times.asked == 1
    answers.refresh()
    assert answers.wait({STREAM: 9}, Until.DURABLE, 1.0) == {STREAM: HERE} and times.asked == 2


def test_a_gap_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, times = answering(monkeypatch, HERE, AWAY)
    answers.wait({STREAM: 7}, Until.DURABLE, 1.0)
    answers.landed([claim(9), claim(10)])
    assert answers.wait({STREAM: 10}, Until.DURABLE, 0.01) == {STREAM: AWAY} and times.asked > 1


def test_an_unknown_stream_is_looked_up_when_something_lands(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, times = answering(monkeypatch, AWAY, HERE)
    threading.Timer(0.02, answers.landed, ([claim(0, OTHER)],)).start()
    assert answers.wait({STREAM: 4}, Until.DURABLE, 1.0) == {STREAM: HERE} and times.asked == 2


def test_a_dropped_table_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped = Reach(False, False, False, "dropped", comes=False, dropped=True)
    answers, times = answering(monkeypatch, dropped)
    assert answers.wait({STREAM: 4, OTHER: 1}, Until.DURABLE, 60.0)[OTHER] == dropped and times.asked == 1


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.receive.reached._STREAMS_MAX", 2)
    known = DurableStreams()
    for number in range(9):
        known.note({replace(STREAM, group=f"g{number}"): HERE}, {replace(STREAM, group=f"g{number}"): 3})
        assert known.knows([replace(STREAM, group=f"g{number}")]) and len(known._upto) <= 2


def test_rows_that_are_not_durable_are_not_looked_for_in_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, times = answering(monkeypatch, AWAY)
    assert answers.wait({STREAM: 4}, Until.VISIBLE, 0.01) == {STREAM: AWAY}
    durable, visible = replace(AWAY, durable=True), replace(HERE, applied=True)
    answers, times = answering(monkeypatch, durable, durable, visible)
    assert answers.wait({STREAM: 4}, Until.VISIBLE, 60.0) == {STREAM: visible} and times.asked == 3
