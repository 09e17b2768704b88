"""A bootstrap that is broken off: the peer expects nothing any more, whether or not it was there to be told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from peer.repair.salvage import salvage
from peer.replay.loop import replay_lock
from peer.status.unreadable import unreadable
from replication.core.definition.schema import TableSpec
from replication.ledger.base import FileKind, FileRow, Phase
from tests.replaying import TableSite
from tests.sites import Wal, rows, site_of, table
from tests.tables_made import grouped
from tests.waiting import wait_until

TIMES = {"heartbeat_interval_s": 0.1, "closed_time_interval_s": 0.1, "retry_min_s": 0.05, "retry_max_s": 0.5}


class World:
    """East, which sends to west."""

    def __init__(self, folder: Path, stack: ExitStack, **worker: object) -> None:
        self.stack = stack
        self.east = TableSite(folder, "east", worker={**TIMES, **worker})
        self.west = TableSite(folder, "west", worker=TIMES)
        for site in (self.east, self.west):
            stack.callback(site.close)
        self.wal = Wal(self.east, "w0")
        self.east.send_to(self.west)

    def create(self, spec: TableSpec, data: pa.Table) -> TableSpec:
        self.east.ledger.tables.create(spec)
        self.wal.append(spec, data)
        self.east.register()
        self.east.replay()
        return spec

    def bootstrap(self, spec: TableSpec) -> None:
        groups = [group.name for group in spec.groups]
        self.east.ledger.rules.enable("west", spec.uuid, groups, spec.name, self.east.term, bootstrap=True)
        self.east.coordination.announce()

    def disable(self, spec: TableSpec) -> None:
        groups = [group.name for group in spec.groups]
        self.east.ledger.rules.disable("west", spec.uuid, groups, self.east.term)
        self.east.coordination.announce()

    def receive(self) -> ExitStack:
        """Run west's receiver until what is returned is closed."""
        running = self.stack.enter_context(ExitStack())
        receiver = running.enter_context(self.west.receiver())
        self.east.assign(self.west.cluster, receiver.port)
        return running

    def held(self, spec: TableSpec) -> str:
        """What holds a table's replicated time at west, of whatever origin."""
        return "; ".join(found.held_by for found in self.west.ledger.time.replicated(spec.uuid).values())

    def moves_on(self, spec: TableSpec) -> None:
        """Wait until west's replicated time of a table is past this moment."""

        def least() -> int:
            return min(found.t for found in self.west.ledger.time.replicated(spec.uuid).values())

        with self.west.worker():
            wait_until(lambda: least() > self.wal.row.created, what=f"the time of {spec.name} to move on")
            now = least()
            wait_until(lambda: least() > now)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.mark.parametrize("others", [False, True], ids=["the only table", "beside an older one"])
def test_a_peer_that_was_away_when_a_bootstrap_was_ended_does_not_wait_for_it(
    tmp_path: Path, stack: ExitStack, others: bool
) -> None:
    world = World(tmp_path, stack)
    if others:
        world.east.send_to(world.west, world.create(table("ops.other"), rows(0, 5)))
    spec = world.create(table(), rows(0, 50))
    world.bootstrap(spec)
    running = world.receive()
    stack.enter_context(world.east.worker())
    wait_until(lambda: "is being bootstrapped from east" in world.held(spec))
    running.close()
    world.disable(spec)
    world.receive()
    wait_until(lambda: "bootstrapped" not in world.held(spec), what="west to hear that it has ended")
    world.moves_on(spec)


def test_what_came_of_an_ended_bootstrap_is_let_go(tmp_path: Path, stack: ExitStack) -> None:
    world = World(tmp_path, stack, message_bytes_max=1024, window_bytes=1024)
    spec = world.create(grouped("ops.g"), pa.table({"k": [str(n) for n in range(2000)], "a": range(2000)}))
    world.bootstrap(spec)
    world.east.keeper.run_once()
    world.east.ledger.rules.set_rate("west", 10_000, world.east.term)
    running = world.receive()

    def part() -> list[int]:
        return [row.length for row in world.west.ledger.files.all() if row.kind is FileKind.BOOTSTRAP]

    with world.east.worker():
        wait_until(part, what="the first of it")
        world.west.replay()
        world.disable(spec)
        wait_until(lambda: not [route for route in world.west.ledger.landing.routes() if route.table == spec.uuid])
    running.close()
    assert world.east.phases("west") == []
    assert world.west.ledger.replay.pending()
    with world.west.receiver():  # closes what the one before left open
        wait_until(
            lambda: (world.west.replay(), not world.west.ledger.replay.pending())[1], what="nothing to be pending"
        )
    assert [row.file for row in world.west.ledger.files.retirable("h0") if row.kind is FileKind.BOOTSTRAP]
    world.east.ledger.rules.set_rate("west", 0, world.east.term)
    world.bootstrap(spec)
    world.receive()
    stack.enter_context(world.east.worker())

    def whole() -> bool:
        world.east.keeper.run_once()
        world.west.replay()
        return world.east.phases("west") == [Phase.LIVE] * 2

    wait_until(whole, what="the second bootstrap")
    assert world.west.shown(spec) == world.east.shown(spec)


def test_a_bootstrap_file_that_is_lost_under_way_is_given_up_and_written_anew(tmp_path: Path, stack: ExitStack) -> None:
    world = World(tmp_path, stack, message_bytes_max=1024, window_bytes=1024)
    east, west = world.east, world.west
    spec = world.create(grouped("ops.g"), pa.table({"k": [str(n) for n in range(2000)], "a": range(2000)}))
    world.bootstrap(spec)
    east.keeper.run_once()
    (lost,) = (row for row in east.ledger.files.all() if row.kind is FileKind.BOOTSTRAP)
    east.ledger.rules.set_rate("west", 10_000, east.term)

    def landed() -> list[FileRow]:
        return [row for row in west.ledger.files.all() if row.kind is FileKind.BOOTSTRAP]

    running = world.receive()
    with east.worker():
        wait_until(landed, what="the first of it")
    running.close()
    (old,) = landed()
    Path(lost.path).unlink()
    (found,) = unreadable(east.ledger, east.ledger.files.all(), "h0", east.config.data_dir, None)
    assert found.remedy == f"It is written anew after: walship wal salvage {lost.file.local} --yes"
    with replay_lock(east.config.run_dir):  # the own replay
        salvage(site_of(east), lost.file)
    east.ledger.rules.set_rate("west", 0, east.term)
    world.receive()
    stack.enter_context(east.worker())

    def whole() -> bool:
        east.keeper.run_once()
        west.replay()
        return east.phases("west") == [Phase.LIVE] * 2

    wait_until(whole, what="the second bootstrap")
    assert west.shown(spec) == east.shown(spec)
    assert not [part for part in west.ledger.replay.pending() if part.row.kind is FileKind.BOOTSTRAP]
    wait_until(lambda: old.file in [row.file for row in west.ledger.files.retirable("h0")], what="the old one to go")
