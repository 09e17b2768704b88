"""Quarantined frames tried again and salvaged: through the shell, over real files, a real ledger and a replayer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peer.frames.check import check_file
from peer.frames.quarantine import Quarantine
from peer.replay.context import ReplayContext
from peer.replay.rounds import Replayer
from peer.status.collect import LocalTable, collect
from peer.status.members import Members
from peer.tables.read import read
from replication import config as configuration
from replication.core.coverage import Ranges
from replication.core.ids import StreamId
from replication.ledger.base import Ledger, Quarantined
from shell.cli.render import Printer
from shell.main import run
from shell.status.page import show_status
from tests.fakes.tables import MemoryTables
from tests.origin import OriginWal, new_ledger
from tests.tables_made import keyed


class World:
    """A cluster with one WAL and one table, whose replay does not know the table's schema until it is told."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.file = folder / "walship.toml"
        self.file.write_text(configuration.default_toml("east", "."))
        self.config = configuration.load(self.file, environ={})
        self.ledger: Ledger = new_ledger(folder)
        self.tables = MemoryTables()
        self.wal = OriginWal(self.ledger, folder / "wal")
        self.spec = keyed("ops.t")
        self.ledger.tables.create(self.spec)
        self._patch = patch

    def replay(self, *, knows_schema: bool) -> None:
        with self._patch.context() as patch:
            if not knows_schema:
                patch.setattr(self.ledger.tables, "schemas", lambda _: [])
            quarantine = Quarantine(self.config.data_dir / "quarantine", self.ledger.replay)
            replayer = Replayer(
                ReplayContext(self.ledger, self.tables, quarantine, self.ledger.replay.raise_epoch()), parallel=1
            )
            for _ in range(3):
                replayer.round()
            replayer.close()

    def put(self, key: str, value: int, *, knows_schema: bool) -> None:
        self.wal.upsert(self.spec, [{"k": key, "v": value}])
        self.wal.register(closed=self.wal.now)
        self.replay(knows_schema=knows_schema)

    def rows(self) -> dict[str, Any]:
        return {row["k"]: row["v"] for row in read(self.tables, self.spec).read_all().to_pylist()}

    def received(self) -> int:
        counted = self.tables.query(f"select count(*) as n from {self.tables.ref('ops.t__changes')} where _op >= 0")
        return int(counted.column("n")[0].as_py())

    def replicated(self) -> int:
        return self.ledger.time.replicated(self.spec.uuid)[self.ledger.cluster].t

    def held(self) -> list[Quarantined]:
        return self.ledger.replay.quarantined()

    def walship(self, *arguments: str) -> int:
        return run([*arguments, "--cluster", str(self.file), "--json"])


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path, monkeypatch)
    made.put("a", 1, knows_schema=True)
    made.put("b", 2, knows_schema=False)
    made.put("c", 3, knows_schema=True)
    assert made.rows() == {"a": 1, "c": 3} and len(made.held()) == 1 and made.replicated() == 1
    yield made
    made.ledger.close()


def test_a_quarantined_frame_shows_in_status_until_it_is_given_up(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    def told() -> tuple[LocalTable, str]:
        status = collect(world.config, world.ledger, Members())
        show_status(Printer(as_json=False), status)
        return status.tables[0], "".join(capsys.readouterr())

    (frame,) = world.held()
    name = f"{frame.file.local}:{frame.begin}"
    here, shown = told()
    assert (here.quarantined, here.discarded) == (1, 0) and "quarantined" in here.held_by
    assert here.held_by in shown
    assert f"quarantined: frame {name}: {frame.reason}; copy {frame.copy}" in shown
    assert world.walship("quarantine", "discard", name, "--yes") == 0
    here, shown = told()
    assert (here.quarantined, here.discarded, here.held_by) == (0, 1, "")
    assert "quarantined: frame" not in shown and f"Z: frame {name}: {frame.reason}; copy {frame.copy}" in shown


def test_a_frame_tried_again_once_its_schema_is_known_is_applied_once(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    (frame,) = world.held()
    name = f"{frame.file.local}:{frame.begin}"
    assert world.walship("quarantine", "list") == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed["frame"] == name and listed["table"] == "ops.t" and listed["state"] == "held"
    assert listed["bytes"] == frame.end - frame.begin
    assert world.walship("quarantine", "retry", name) == 0
    assert world.held() == [] and world.replicated() == 1
    (pending,) = world.ledger.replay.pending()
    assert check_file(Path(pending.row.path), pending.row.length).problems == ()
    world.replay(knows_schema=True)
    assert world.rows() == {"a": 1, "b": 2, "c": 3} and world.received() == 3
    assert world.replicated() == world.wal.now and not world.ledger.replay.pending()


def test_a_frame_that_fails_again_is_quarantined_again(world: World) -> None:
    assert world.walship("quarantine", "retry", "--all") == 0
    world.replay(knows_schema=False)
    (frame,) = world.held()
    assert frame.file != world.wal.row.file and world.replicated() == 1
    assert world.walship("quarantine", "retry", "--all") == 0
    world.replay(knows_schema=True)
    assert world.rows() == {"a": 1, "b": 2, "c": 3} and world.replicated() == world.wal.now


def test_giving_a_frame_up_is_asked_for_twice_keeps_its_copy_and_is_shown(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    (frame,) = world.held()
    name = f"{frame.file.local}:{frame.begin}"
    assert world.walship("quarantine", "discard", name) == 4
    assert "--yes" in capsys.readouterr().err and world.replicated() == 1
    assert world.walship("quarantine", "discard", name, "--yes") == 0
    assert world.replicated() == world.wal.now and Path(frame.copy).stat().st_size == frame.end - frame.begin
    status = collect(world.config, world.ledger, Members())
    (shown,) = status.tables
    assert (shown.quarantined, shown.discarded) == (0, 1) and status.quarantined[0].discarded > 0
    assert world.walship("quarantine", "retry", "--all") == 0, "what was salvaged is left alone"
    assert len(world.held()) == 1
    capsys.readouterr()
    assert run(["quarantine", "retry", "--all", "--cluster", str(world.file)]) == 0
    assert "no frame is held: a discarded one is retried by its name" in capsys.readouterr().out
    assert world.walship("quarantine", "retry", name) == 0, "unless it is named"
    world.replay(knows_schema=True)
    assert world.rows() == {"a": 1, "b": 2, "c": 3}


def test_a_frame_that_is_damaged_and_given_up_may_come_back(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    begin = world.wal.registered
    world.wal.upsert(world.spec, [{"k": "d", "v": 4}])
    world.wal.register(closed=world.wal.now)
    content = bytearray(world.wal.path.read_bytes())
    content[world.wal.registered - 1] ^= 1
    world.wal.path.write_bytes(bytes(content))
    world.replay(knows_schema=True)
    (other, frame) = world.held()
    assert frame.begin == begin
    names = [f"{each.file.local}:{each.begin}" for each in (other, frame)]
    assert world.walship("quarantine", "retry", names[1]) == 3
    capsys.readouterr()
    assert world.walship("quarantine", "discard", names[1], "--yes") == 0
    assert [row["damaged"] for row in json.loads(capsys.readouterr().out)] == [True]
    stream = StreamId(world.wal.row.file, world.spec.uuid, "default")
    assert world.ledger.landing.coverage() == {stream: Ranges.of((0, 3))}, "so that it counts when it comes"
    assert [waiver.sequences for waiver in world.ledger.salvage.acknowledged_losses()] == [Ranges.of((3, 4))]
    assert world.walship("quarantine", "discard", names[0], "--yes") == 0
    assert world.replicated() == world.wal.now and len(world.ledger.salvage.acknowledged_losses()) == 1
    assert world.ledger.landing.coverage() == {stream: Ranges.of((0, 3))}, "the other may still be tried again"


def test_a_frame_that_cannot_be_tried_again_stops_no_other(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.put("d", 4, knows_schema=False)
    first, second = world.held()
    Path(first.copy).unlink()
    assert world.walship("quarantine", "retry", "--all") == 4
    shown = capsys.readouterr()
    assert [row["frame"] for row in json.loads(shown.out)] == [f"{second.file.local}:{second.begin}"]
    assert f"{first.file.local}:{first.begin}: the copy" in shown.err and "1 of 2 frames were left" in shown.err
    assert world.held() == [first]
    world.replay(knows_schema=True)
    assert world.rows() == {"a": 1, "c": 3, "d": 4}


def test_a_copy_that_is_damaged_or_gone_is_refused_and_loses_nothing(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    (frame,) = world.held()
    copy, name = Path(frame.copy), f"{frame.file.local}:{frame.begin}"
    content = copy.read_bytes()
    copy.write_bytes(content[:-1] + bytes((content[-1] ^ 1,)))
    assert world.walship("quarantine", "retry", name) == 3
    assert "quarantine discard" in capsys.readouterr().err
    copy.unlink()
    assert world.walship("quarantine", "retry", name) == 7
    assert world.held() == [frame] and not world.ledger.replay.pending()
    assert world.walship("quarantine", "retry", "h0/9:1") == 4
    copy.write_bytes(content)
    assert world.walship("quarantine", "retry", name) == 0


def test_a_lost_write_is_left_to_lostwrites(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    (frame,) = world.held()
    lost = replace(frame, succession="west -> east, epoch 2")
    world.ledger.replay.release(frame.file, frame.begin)
    world.ledger.replay.quarantine(lost, (StreamId(frame.file, frame.table, "default"), 1))
    name = f"{frame.file.local}:{frame.begin}"
    assert world.walship("quarantine", "retry", "--all") == 0 and world.held() == [lost]
    for verb in (("retry", name), ("discard", name, "--yes")):
        assert world.walship("quarantine", *verb) == 4
        told = capsys.readouterr().err
        assert "lost write" in told and "walship lostwrites merge" in told and world.held() == [lost]


def test_rows_that_came_with_a_quarantined_frame_are_visible(world: World) -> None:
    spec = keyed("ops.u")
    world.ledger.tables.create(spec)
    stream = StreamId(world.wal.row.file, spec.uuid, "default")
    world.wal.upsert(spec, [{"k": "a", "v": 1}])
    world.wal.frame(spec.uuid, "default", spec.versions["default"].hash, b"no record batch", 1)
    world.wal.register(closed=world.wal.now)
    world.replay(knows_schema=True)
    assert [frame.table for frame in world.held()].count(spec.uuid) == 1
    assert read(world.tables, spec).read_all().to_pylist() == [{"k": "a", "v": 1}]
    assert world.ledger.time.reached({stream: 0})[stream].visible
    assert not world.ledger.time.reached({stream: 1})[stream].visible
