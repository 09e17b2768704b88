"""A bootstrap of a peer that has most rows already sends only what differs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pyarrow as pa
import pytest

from replication.core.coverage import Ranges
from replication.core.ids import StreamId
from replication.files.notifier import NotificationListener
from replication.ledger.base import Phase
from tests.bootstrap_pair import Pair, bootstraps, ids
from tests.sites import SCHEMA
from tests.waiting import wait_until

ROWS = 20_000


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def some_rows(numbers: list[int]) -> pa.Table:
    chance = random.Random(7)
    return pa.table({"id": numbers, "text": [chance.randbytes(50).hex() for _ in numbers]}, schema=SCHEMA)


def write(pair: Pair, numbers: list[int]) -> int:
    """How many bytes it takes in the WAL."""
    before = pair.wal.length
    pair.wal.append(pair.spec, some_rows(numbers))
    pair.east.register()
    pair.east.replay()
    return pair.wal.length - before


def begin_again(pair: Pair, known: dict[StreamId, Ranges]) -> None:
    """As after the disk budget for west was used up: what was written meanwhile is in no file that goes there."""
    ledger, table = pair.east.ledger, pair.spec.uuid
    begun = ledger.rules.begin_bootstrap("west", table, pair.east.term)
    ledger.bootstraps.keep_known("west", table, max(rule.generation for rule in begun), known)


def bootstrapped(pair: Pair) -> None:
    write(pair, list(range(ROWS)))
    pair.begin()
    pair.connect()
    pair.finish()
    pair.level()
    pair.stack.close()
    pair.stack = ExitStack()


def test_after_1_percent_changed_a_bootstrap_sends_little_more_than_what_changed(pair: Pair) -> None:
    bootstrapped(pair)
    changed = random.Random(1).sample(range(ROWS), ROWS // 100)
    differs = write(pair, changed[: len(changed) // 2]) + write(pair, changed[len(changed) // 2 :])
    pair.east.delete(pair.wal, pair.spec, [ROWS - 1, ROWS - 2])
    pair.east.register()
    pair.east.replay()
    begin_again(pair, dict(pair.west.ledger.landing.coverage(pair.spec.uuid)))
    pair.connect()
    pair.finish()
    pair.level()
    assert ids(pair.west, pair.spec)[-1] == ROWS - 3
    whole, less = (row.length for row in bootstraps(pair.west))
    assert less <= 1.2 * differs < whole / 50
    assert set(pair.east.phases("west")) == {Phase.LIVE}


def test_what_a_peer_lost_after_it_was_asked_is_not_claimed_by_a_bootstrap_without_its_rows(pair: Pair) -> None:
    bootstrapped(pair)
    write(pair, [1])
    there = dict(pair.west.ledger.landing.coverage(pair.spec.uuid))
    (stream,) = (stream for stream in there if stream.wal == pair.wal.file)
    begin_again(pair, {**there, stream: Ranges.of((0, 2))})  # more than west has
    pair.connect()
    pair.finish()
    assert pair.west.ledger.landing.coverage(pair.spec.uuid)[stream] == there[stream]
    reached = pair.west.ledger.time.reached({stream: 1})[stream]
    assert not reached.durable and reached.covered == there[stream]


def test_what_is_known_for_an_earlier_bootstrap_does_not_count_for_the_next(pair: Pair) -> None:
    bootstrapped(pair)
    ledger, table = pair.east.ledger, pair.spec.uuid
    begun = ledger.rules.begin_bootstrap("west", table, pair.east.term)
    (wanted,) = ledger.bootstraps.wanted()
    known = pair.west.ledger.landing.coverage(table)
    ledger.bootstraps.keep_known("west", table, begun[0].generation - 1, known)
    assert not ledger.bootstraps.known(wanted)
    ledger.bootstraps.keep_known("west", table, begun[0].generation, known)
    assert ledger.bootstraps.known(wanted) == known


def test_a_bootstrap_that_is_written_wakes_the_worker(pair: Pair) -> None:
    write(pair, list(range(10)))
    with closing(NotificationListener(str(pair.east.config.wal_dir))) as worker:
        while worker.wait(0):
            pass  # of what was written before
        pair.begin()
        wait_until(lambda: (pair.east.keeper.run_once(), bootstraps(pair.east))[1], what="the bootstrap's file")
        assert bootstraps(pair.east)[0].closed and worker.wait(0)
