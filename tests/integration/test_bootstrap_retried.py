"""A bootstrap that cannot be taken, as one with a frame of another history: it waits longer after each attempt."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pyarrow as pa
import pytest

from peer.repair.quarantine_actions import discard, retry
from peer.repair.salvage import salvage
from peer.replay import bootstraps, held_tables
from peer.replay_report import AWAITS
from replication.core.coverage import Ranges
from replication.core.definition.define import typed_table
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import ClusterId, FileId, StreamId
from replication.errors import StorageError
from replication.files.local import LocalFiles
from replication.ledger.base import FileKind, Landed
from tests.bootstrap_pair import Pair, ids, other_pair
from tests.bootstrap_pair import bootstraps as bootstraps_of
from tests.contract.ledger_stores import FRAME, claims
from tests.integration.test_bootstrap_purged import World
from tests.integration.test_salvage import damage
from tests.sites import SCHEMA, rows, site_of
from tests.tables_made import grouped
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


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[World]:
    """A bootstrap has landed at west, and waits for rows 0 to 3, which landed before and are not replayed."""
    world = World(tmp_path)
    world.send()
    world.write(0, 4)
    wait_until(lambda: world.west.ledger.landing.coverage(world.spec.uuid))
    world.part()
    world.wal.delete(world.spec, [{"id": 1}])
    world.forget(rows(9, 1))
    world.begin()
    world.connect()
    world.east.keeper.run_once()
    wait_until(lambda: any(row.closed for row in bootstraps_of(world.west)))
    yield world
    world.close()


def test_what_landed_before_and_is_not_replayed_goes_too(waiting: World) -> None:
    held = waiting.west.replayer.round().held
    assert held == {waiting.spec.name: "a bootstrap waits until frames that landed before are replayed"}
    waiting.finish()
    waiting.level()
    assert ids(waiting.west, waiting.spec) == [0, 2, 3, 9]


def test_a_bootstrap_that_waits_for_frames_asks_for_them_more_and_more_rarely(
    waiting: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    landed = [Path(row.path) for row in waiting.west.ledger.files.all() if row.source == waiting.wal.file]
    away, clock, tries = [path.rename(path.with_suffix(".away")) for path in landed], [0.0], []
    for module in (bootstraps, held_tables):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0], time_ns=time.time_ns))
    adopt = waiting.west.ledger.bootstraps.adopt
    monkeypatch.setattr(waiting.west.ledger.bootstraps, "adopt", lambda parts: tries.append(clock[0]) or adopt(parts))
    for _ in range(600):
        clock[0] += 1.0
        assert waiting.west.replayer.round().held[waiting.spec.name] == AWAITS
    assert 5 < len(tries) < 30
    for path, was in zip(away, landed, strict=True):
        path.rename(was)
    waiting.west.replayer.round()
    clock[0] += 60.0
    waiting.finish()
    waiting.level()
    assert ids(waiting.west, waiting.spec) == [0, 2, 3, 9]


def test_a_bootstrap_of_another_history_says_how_it_is_given_up_and_then_a_later_one_is_taken(pair: Pair) -> None:
    pair.write(0, 10)
    stream, source = StreamId(pair.wal.file, pair.spec.uuid, "default"), FileId(ClusterId("north", uuid4()), "h0", 0)
    west, end = pair.west, FILE_HEADER_BYTES + FRAME
    west.ledger.tables.create(pair.spec)
    landing = str(west.config.landing_dir)
    astray = west.ledger.files.allocate("h0", FileKind.LANDING, landing, west.boot, source=source).file
    at = (FILE_HEADER_BYTES, end)
    others = claims(stream, 0, 1, FILE_HEADER_BYTES, "astray")
    west.ledger.registration.register([Landed(astray, *at, source, *at, others)])
    pair.begin()
    pair.connect()
    told: dict[str, str] = {}

    def refused() -> bool:
        pair.east.keeper.run_once()
        told.update(west.replayer.round().held)
        return "another history" in told.get(pair.spec.name, "")

    wait_until(refused, what="the bootstrap to be refused", timeout_s=30)
    (first,) = bootstraps_of(west)
    assert f"walship wal salvage {first.file.local} --yes" in told[pair.spec.name]
    pair.east.ledger.rules.disable("west", pair.spec.uuid, ["default"], pair.east.term)
    pair.east.coordination.announce()
    west.ledger.files.close(astray, end)
    wait_until(
        lambda: all(row.closed for row in bootstraps_of(west)), what="the landing file to be closed", timeout_s=30
    )
    for file in (first.file, astray):
        salvage(site_of(west), file)
    west.restart()
    pair.begin()
    pair.finish()
    pair.level()


def test_a_bootstrap_that_is_refused_for_one_group_claims_nothing_of_another(pair: Pair) -> None:
    other_pair(pair, grouped("ops.g"))
    pair.wal.append(pair.spec, pa.table({"k": ["x"], "a": [1], "b": ["one"]}))
    pair.east.register()
    pair.east.replay()
    west, source = pair.west, FileId(ClusterId("north", uuid4()), "h0", 0)
    west.ledger.tables.create(pair.spec)
    astray = west.ledger.files.allocate("h0", FileKind.LANDING, "/data/landing", west.boot, source=source).file
    at = FILE_HEADER_BYTES, FILE_HEADER_BYTES + FRAME
    left, right = (StreamId(pair.wal.file, pair.spec.uuid, group.name) for group in pair.spec.groups)
    others = claims(right, 0, 1, FILE_HEADER_BYTES, "astray")
    west.ledger.registration.register([Landed(astray, *at, source, *at, others)])
    pair.begin()
    pair.connect()

    def refused() -> bool:
        pair.east.keeper.run_once()
        return "another history" in west.replayer.round().held.get(pair.spec.name, "")

    wait_until(refused, what="the bootstrap to be refused", timeout_s=30)
    assert left not in west.ledger.landing.coverage(pair.spec.uuid)


def test_rows_of_a_frame_that_was_discarded_before_a_bootstrap_and_retried_after_it_come_with_the_next_one(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.write(0, 3)
    east = pair.east
    with monkeypatch.context() as patch:
        patch.setattr(east.ledger.tables, "schemas", lambda _: [])
        pair.write(3, 1)
    (frame,) = east.ledger.replay.quarantined()
    assert not discard(east.ledger, frame)
    pair.write(4, 2)
    pair.begin()
    pair.connect()
    pair.finish()
    pair.level()
    retry(east.config, east.ledger, LocalFiles(), frame)
    east.replay()
    assert ids(east, pair.spec) == list(range(6)) and ids(pair.west, pair.spec) == [0, 1, 2, 4, 5]
    east.ledger.rules.begin_bootstrap("west", pair.spec.uuid, east.term)
    pair.finish()
    pair.level()
    assert ids(pair.west, pair.spec) == list(range(6))


def test_a_frame_from_before_a_bootstrap_that_is_damaged_unapplied_comes_with_another_one(pair: Pair) -> None:
    other_pair(pair, typed_table("ops.log", SCHEMA, [], uuids=iter(uuid4, None)))
    east, west = pair.east, pair.west
    east.send_to(west, pair.spec)
    pair.connect()
    for n in range(3):
        pair.write(n * 10, 10)
    pair.wal.finish()
    wait_until(lambda: west.received(pair.wal.file, pair.wal.length))
    wait_until(lambda: [row.closed for row in west.ledger.files.all() if row.source == pair.wal.file] == [True])
    (row,) = [row for row in west.ledger.files.all() if row.source == pair.wal.file]
    east.ledger.rules.begin_bootstrap("west", pair.spec.uuid, east.term)
    east.coordination.announce()
    east.keeper.run_once()
    wait_until(lambda: any(file.closed for file in bootstraps_of(west)), what="the bootstrap to land")
    away = Path(row.path).rename(Path(row.path).with_suffix(".away"))
    west.replayer.round()
    away.rename(row.path)
    damage(row, 1)
    wait_until(lambda: f"wal salvage {row.file.local}" in west.replay().held.get(pair.spec.name, ""))
    done = salvage(site_of(west), row.file)
    assert sum(ranges.total for ranges in done.plan.unsent.values()) == 1
    west.restart()
    pair.finish()
    assert ids(west, pair.spec) == [*range(10), *range(20, 30)]
    (loss,) = west.ledger.salvage.acknowledged_losses()
    assert loss.sequences == Ranges.of((1, 2))
    east.ledger.rules.begin_bootstrap("west", pair.spec.uuid, east.term)
    pair.finish()
    pair.level()
    assert len(ids(west, pair.spec)) == 30 and not west.ledger.salvage.acknowledged_losses()
