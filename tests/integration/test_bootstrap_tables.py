"""Rows from before, of every kind of table, and only of the groups that go to the peer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.bootstrap_pair import Pair, other_pair
from tests.tables_made import SIMPLE, cell, grouped, keyed


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def test_a_table_without_key_gets_every_row_once(pair: Pair) -> None:
    other_pair(pair, keyed("ops.log", SIMPLE, ()))
    pair.wal.append(pair.spec, pa.table({"k": ["a", "a", "b"], "v": [1, 1, 2]}))
    pair.east.register()
    pair.east.replay()
    pair.begin()
    pair.connect()
    pair.wal.append(pair.spec, pa.table({"k": ["c"], "v": [3]}))
    pair.east.register()
    pair.east.replay()
    pair.finish()
    pair.level()
    assert pair.west.versions(pair.spec) == pair.east.versions(pair.spec)
    assert [row["k"] for row in pair.west.shown(pair.spec)] == ["a", "a", "b", "c"]


def test_only_the_groups_that_go_to_a_peer_are_in_its_bootstrap(pair: Pair) -> None:  # scenario 14
    other_pair(pair, grouped("ops.g"))
    pair.wal.append(pair.spec, pa.table({"k": ["x", "y"], "a": [1, 2], "b": ["one", "two"]}))
    pair.wal.delete(pair.spec, [{"k": "y"}])
    pair.east.register()
    pair.east.replay()
    pair.east.fold(pair.spec)
    pair.wal.append(pair.spec, pa.table({"k": ["z"], "a": [3]}))
    pair.east.register()
    pair.east.replay()
    pair.begin(["right-1"])
    pair.connect()
    pair.finish()
    assert pair.west.shown(pair.spec) == [{"k": "x", "a": None, "b": "one"}]
    assert {stream.group for stream in pair.west.ledger.landing.coverage(pair.spec.uuid)} == {"right-1"}
    pair.begin(["left"])
    pair.finish()
    pair.level()


def test_cells_keep_their_timestamps_and_their_groups(pair: Pair) -> None:
    other_pair(pair, cell("ops.cells"))
    at = {"row": b"r", "family": "f", "qualifier": "q", "visibility": ""}
    new = time.time_ns() // 1000
    pair.wal.cells(pair.spec, [{**at, "value": b"new", "timestamp": new}, {**at, "row": b"s", "value": b"now"}])
    pair.east.register()
    pair.east.replay()
    pair.east.fold(pair.spec)
    pair.wal.cells(pair.spec, [{**at, "value": b"older", "timestamp": new - 5}])
    pair.wal.cells(pair.spec, [{**at, "row": b"t", "timestamp": new, "delete": True}])
    pair.east.register()
    pair.east.replay()
    pair.begin()
    pair.connect()
    pair.finish()
    pair.level()
    assert [row["value"] for row in pair.west.shown(pair.spec)] == [b"new", b"now"]
    pair.wal.cells(pair.spec, [{**at, "row": b"t", "value": b"hidden", "timestamp": new - 1}])
    pair.wal.cells(pair.spec, [{**at, "value": b"newest", "timestamp": new + 1}])
    pair.east.register()
    pair.level()
    assert [row["value"] for row in pair.west.shown(pair.spec)] == [b"newest", b"now"]
