"""Lost writes that come once others of the same failover are merged: of a key the newest one wins, as of one merge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peer.failover import lost_writes
from replication.core.ids import FileId
from replication.errors import RequestError
from replication.ledger.sql.parts.replay import SqlReplay
from tests.simulation.failing_over import Acked, World
from tests.simulation.test_lost_writes import fail_over, hide, kept, send
from tests.simulation.test_schedules import quiet

__all__ = ["quiet"]


class Behind:
    """One of east's writers, whose WAL is not shipped until it is told to."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._files = world.east._worker().host_files
        self._poll = self._files.poll

    def put(self, ids: list[int], text: str) -> list[Acked]:
        """A row each, in one frame."""
        east, world = self.world.east, self.world
        usual, east.series = east.series, None
        world.now_us += 1000
        rows = east.put(world.specs[0], ids, text)
        east.series, hidden = usual, rows[0].stream.wal
        self._files.poll = lambda: [source for source in self._poll() if source.file != hidden]
        return rows

    def catch_up(self, rows: list[Acked]) -> None:
        """West keeps them as lost writes."""
        east, west = self.world.east, self.world.west
        self._files.poll = self._poll
        for _ in range(200):
            self.world.now_us += 1000
            for move in (east.register, east.close_time, east.ship, west.receive):
                move()
            if rows[0].stream in west.ledger.landing.coverage():
                break
        west.apply()
        assert kept(self.world)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: None) -> Iterator[World]:
    made = World(0, tmp_path, monkeypatch)
    yield made
    made.close()


def merged_with_late_rows(world: World, *, at_once: bool) -> dict[int, str]:
    """The rows after merges: key 1 has a newer late row, key 2 an older one, and key 3 was written at west since."""
    west, behind = world.west, Behind(world)
    base = send(world, 0, [1, 2, 3, 4], "base")
    send(world, 0, [1, 3], "first")
    late = behind.put([1, 2, 3, 4], "late")
    send(world, 0, [2], "last")
    fail_over(world, base.commit)
    assert west.rows()[world.specs[0].name] == dict.fromkeys((1, 2, 3, 4), "base")
    if at_once:
        behind.catch_up(late)
    else:
        assert lost_writes.merge(west.handle) == 2
        west.apply()
    world.now_us += 1000
    west.put(world.specs[0], [3], "since")
    west.register()
    west.apply()
    if not at_once:
        behind.catch_up(late)
    assert lost_writes.merge(west.handle) == (3 if at_once else 1)
    west.apply()
    assert not kept(world) and lost_writes.merge(west.handle) == 0
    return west.rows()[world.specs[0].name]


@pytest.mark.parametrize("at_once", [True, False])
def test_of_a_keys_lost_writes_the_newest_one_wins_however_they_are_merged(world: World, at_once: bool) -> None:
    assert merged_with_late_rows(world, at_once=at_once) == {1: "late", 2: "last", 3: "since", 4: "late"}


def test_the_first_row_since_a_failover_wins_over_merged_ones_though_the_clock_is_behind(world: World) -> None:
    west, base = world.west, send(world, 0, [1], "base")
    first = send(world, 0, [1], "first")
    world.now_us -= 3_600_000_000
    fail_over(world, base.commit)
    (since,) = west.put(world.specs[0], [1], "since")  # acked, and not registered yet
    assert since.commit == first.commit + 3, "the next time that is free"
    lost_writes.merge(west.handle)
    west.apply()
    assert west.rows()[world.specs[0].name] == {1: "since"}


def test_a_merge_that_was_interrupted_ends_as_one_that_was_not(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    west = world.west
    base = send(world, 0, [1, 2], "base")
    send(world, 0, [1, 2], "first")
    send(world, 0, [1], "last")
    fail_over(world, base.commit)
    real, left = SqlReplay.release, [1]

    def release(self: SqlReplay, file: FileId, begin: int) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        real(self, file, begin)

    with monkeypatch.context() as killed:
        killed.setattr(SqlReplay, "release", release)
        with pytest.raises(KeyboardInterrupt):
            lost_writes.merge(west.handle)
    west.apply()
    assert len(kept(world)) == 1
    assert lost_writes.merge(west.handle) == 1
    west.apply()
    assert west.rows()[world.specs[0].name] == {1: "last", 2: "first"} and not kept(world)


def test_late_rows_are_merged_where_the_copies_of_those_before_are(world: World) -> None:
    west, behind = world.west, Behind(world)
    base = send(world, 0, [1], "base")
    send(world, 0, [1], "first")
    late = behind.put([1], "late")
    send(world, 0, [2], "last")
    fail_over(world, base.commit)
    first = kept(world)[0]
    lost_writes.merge(west.handle)
    there = hide(first)
    behind.catch_up(late)
    with pytest.raises(RequestError, match=f"1 frame cannot be read here: the copy {first.copy}"):
        lost_writes.merge(west.handle)
    there.rename(first.copy)
    assert lost_writes.merge(west.handle) == 1
    west.apply()
    assert west.rows()[world.specs[0].name] == {1: "late", 2: "last"}


def test_rows_that_were_taken_back_are_written_again_frame_by_frame_however_many_they_are(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    west, name = world.west, world.specs[0].name
    base = send(world, 0, [1, 2], "base")
    for number in range(4):
        send(world, 0, [1, 10 + number], f"taken back {number}")
    fail_over(world, base.commit)
    decode, restate_all, decoded, written = lost_writes._decoded, west.handle.restate, list[object](), list[int]()

    def counted(*given: Any) -> Any:
        decoded.append(given)
        return decode(*given)

    def restated(logs: Any, commit: int) -> Any:
        taken = []
        for log in logs:
            taken.append(log)
            written.append(len(decoded))
        return restate_all(taken, commit)

    monkeypatch.setattr(lost_writes, "_decoded", counted)
    monkeypatch.setattr(west.handle, "restate", restated)
    assert lost_writes.merge(west.handle) == 4
    assert written == [5, 6, 7, 8], "of the others, only the keys are in memory"
    west.apply()
    assert west.rows()[name] == {1: "taken back 3", 2: "base"} | {10 + n: f"taken back {n}" for n in range(4)}
