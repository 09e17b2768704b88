"""Routes that close and open again, and tables that are dropped under way: worker and receiver over real sockets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from peer.status.at_peers import TableAtPeer
from peer.status.collect import collect
from peer.status.members import members_of
from replication.coordination.base import Public
from replication.coordination.host import host_record
from replication.core.coverage import Ranges
from replication.core.definition.schema import TableSpec
from replication.core.shipping.planner import Limits
from replication.ledger.base import Rule
from replication.master.loop import HostDisk, Master, MasterTimes
from replication.worker.peers import tail
from tests.sites import Site, Wal, rows, table
from tests.waiting import wait_until


def settled(site: Site) -> list[Rule]:
    """Rules of dropped tables that end now that nothing can be unregistered any more."""
    site.ledger.time.raise_closed("h0", {}, time.time_ns() // 1000 + 20_000_000)
    return site.ledger.rules.end_of_dropped(site.term)


class World:
    """East sends to west."""

    def __init__(self, folder: Path, stack: ExitStack, **worker: object) -> None:
        self.stack = stack
        times = {"retry_min_s": 0.05, "retry_max_s": 0.5, "heartbeat_interval_s": 0.1, **worker}
        self.east, self.west = (Site(folder, name, worker=times) for name in ("east", "west"))
        for site in (self.east, self.west):
            stack.callback(site.close)

    def create(self, name: str) -> TableSpec:
        spec = table(name)
        self.east.ledger.tables.create(spec)
        self.east.send_to(self.west, spec)
        return spec

    def run(self) -> None:
        receiver = self.stack.enter_context(self.west.receiver())
        self.stack.enter_context(self.east.worker())
        self.east.assign(self.west.cluster, receiver.port)

    def there(self, spec: TableSpec) -> list[tuple[int, int]]:
        found = Ranges()
        for stream, ranges in self.west.ledger.landing.coverage().items():
            if stream.table == spec.uuid:
                found = found.union(ranges)
        return list(found.spans)

    def arrived(self, wal: Wal) -> bool:
        return any(
            progress.file == wal.file and progress.shipped.contains(256, wal.length)
            for progress in self.east.ledger.files.progress("west")
        )

    def status(self, spec: TableSpec) -> TableAtPeer:
        found = collect(self.east.config, self.east.ledger, members_of(self.east.coordination)).peers
        (row,) = [row for row in found if row.table == spec.name]
        return row


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def test_a_route_that_is_closed_and_opened_again_leaves_out_the_gap_and_nothing_else(
    tmp_path: Path, stack: ExitStack
) -> None:  # 004-5
    world = World(tmp_path, stack)
    spec, other = world.create("ops.flights"), world.create("ops.weather")
    world.run()
    wal = world.east.wal()
    for n in range(3):
        wal.append(spec, rows(n, 1))
    wait_until(lambda: world.there(spec) == [(0, 3)] and world.arrived(wal))
    world.east.ledger.rules.disable("west", spec.uuid, ["default"], world.east.term)
    world.east.coordination.announce()
    wait_until(
        lambda: spec.uuid not in {route.table for route in world.west.ledger.landing.routes()},
        what="the route to close",
    )
    for n in range(4):
        wal.append(spec, rows(10 + n, 1))
        wal.append(other, rows(n, 1))
    wait_until(lambda: world.there(other) == [(0, 4)] and world.arrived(wal))
    wait_until(lambda: world.east.ledger.landing.coverage(spec.uuid).popitem()[1].end == 7)
    (rule,) = world.east.send_to(world.west, spec)
    world.east.coordination.announce()
    assert [gap.frames for gap in rule.gaps] == [4]
    for n in range(2):
        wal.append(spec, rows(20 + n, 1))
        wal.append(other, rows(20 + n, 1))
    wait_until(lambda: world.arrived(wal) and world.there(other) == [(0, 6)])
    wait_until(lambda: world.there(spec) == [(0, 3), (7, 9)])
    wait_until(lambda: world.status(spec).state == "caught_up", what="the ack of the last file")
    row = world.status(spec)
    assert [gap.frames for gap in row.gaps] == [4] and row.since == rule.since


@pytest.mark.parametrize("policy", ["hold", "skip"])
def test_a_table_dropped_on_both_sides_is_held_or_skipped_and_stops_no_other(
    tmp_path: Path, stack: ExitStack, policy: str
) -> None:
    world = World(tmp_path, stack, dropped_tables=policy)
    gone, spec = world.create("ops.gone"), world.create("ops.flights")
    wal = world.east.wal()
    for n in range(3):
        wal.append(gone, rows(n, 1))
        wal.append(spec, rows(n, 1))
    wal.finish()
    world.west.ledger.tables.create(gone)
    for site in (world.west, world.east):
        site.ledger.tables.drop(gone.uuid)
    world.run()
    wait_until(lambda: world.there(spec) == [(0, 3)])
    if policy == "skip":
        wait_until(lambda: world.arrived(wal))
        wait_until(lambda: settled(world.east))
        assert [rule.table for rule in world.east.ledger.rules.all()] == [spec.uuid]
        assert world.east.ledger.sending.held() == []
        return
    wait_until(lambda: world.east.ledger.sending.held())
    assert not world.arrived(wal) and settled(world.east) == []
    row = world.status(gone)
    assert row.dropped and row.state == "held" and "was dropped on west" in row.last_error
    assert "disablereplication" in row.last_error and "drop it on east, too, with dropped_tables" in row.last_error
    wait_until(lambda: world.status(spec).state == "caught_up")
    world.east.ledger.rules.disable("west", gone.uuid, ["default"], world.east.term)
    world.east.coordination.announce()
    wait_until(lambda: world.arrived(wal))
    wait_until(lambda: world.east.ledger.sending.held() == [])


@pytest.mark.parametrize("policy", ["hold", "skip"])
def test_a_dropped_table_whose_name_has_another_one_is_held_or_skipped_and_the_peer_need_drop_nothing(
    tmp_path: Path, stack: ExitStack, policy: str
) -> None:
    world = World(tmp_path, stack, dropped_tables=policy)
    wal, gone = world.east.wal(), world.create("ops.flights")
    wal.append(gone, rows(0, 1))
    world.east.ledger.tables.drop(gone.uuid)
    spec = world.create("ops.flights")
    wal.append(spec, rows(1, 1))
    wal.finish()
    world.west.ledger.tables.create(spec)
    world.run()
    wait_until(lambda: world.there(spec) == [(0, 1)])
    if policy == "skip":
        wait_until(lambda: world.arrived(wal))
        assert world.there(gone) == [] and world.east.ledger.sending.held() == []
        return
    wait_until(lambda: world.east.ledger.sending.held())
    (held,) = world.east.ledger.sending.held()
    assert held.table == gone.uuid and "ops.flights was dropped here, and another table has its name" in held.reason
    assert 'dropped_tables = "skip"' in held.reason and "droptable" not in held.reason


def test_with_skip_a_table_dropped_at_the_peer_only_is_held_until_it_is_dropped_here(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "WITHHELD_S", 1.0)
    world = World(tmp_path, stack, dropped_tables="skip")
    gone = world.create("ops.gone")
    wal = world.east.wal()
    wal.append(gone, rows(0, 1))
    wal.finish()
    world.west.ledger.tables.create(gone)
    world.west.ledger.tables.drop(gone.uuid)
    world.run()
    wait_until(lambda: world.east.ledger.sending.held())
    assert not world.arrived(wal) and not world.status(gone).dropped
    world.east.ledger.tables.drop(gone.uuid)
    wait_until(lambda: world.arrived(wal))
    wait_until(lambda: world.east.ledger.sending.held() == [])


def test_a_table_dropped_here_only_is_sent_to_the_end(tmp_path: Path, stack: ExitStack) -> None:
    world = World(tmp_path, stack)
    gone = world.create("ops.gone")
    wal = world.east.wal()
    for n in range(3):
        wal.append(gone, rows(n, 1))
    wal.finish()
    world.east.ledger.tables.drop(gone.uuid)
    world.run()
    wait_until(lambda: world.there(gone) == [(0, 3)])
    wait_until(lambda: settled(world.east))


def test_the_master_gives_a_peer_to_which_nothing_goes_any_more_a_tail_that_tells_it(
    tmp_path: Path, stack: ExitStack
) -> None:
    world = World(tmp_path, stack)
    east, west = world.east, world.west
    spec = world.create("ops.flights")
    east.coordination.put_host(host_record(east.config))
    public: list[Public] = []
    times = MasterTimes(interval_s=0.05, poll_s=0.0, retry_min_s=0.05, retry_max_s=0.1)
    master = Master(east.ledger, east.coordination, HostDisk(east.files, "h0"), lambda _: public[-1], Limits(), times)
    stack.callback(master.close)

    def rounds(reached: Callable[[], object], what: str) -> None:
        def round_first() -> object:
            master.round()
            return reached()

        wait_until(round_first, what=what)

    stack.enter_context(east.worker())
    with west.receiver() as receiver:
        public.append(Public(west.cluster, "1", (f"127.0.0.1:{receiver.port}",)))
        east.wal().append(spec, rows(0, 1))
        rounds(lambda: world.there(spec) == [(0, 1)], "the row")
    east.ledger.rules.disable("west", spec.uuid, ["default"], master.term)
    east.coordination.announce()
    for _ in range(3):
        master.round()
    with west.receiver() as receiver:
        public.append(Public(west.cluster, "1", (f"127.0.0.1:{receiver.port}",)))
        rounds(lambda: not west.ledger.landing.routes(), "the route to close")


def test_a_peer_that_was_down_when_the_last_rule_ended_hears_of_it_when_it_is_back(
    tmp_path: Path, stack: ExitStack
) -> None:
    """Else its replicated time would wait for a route by which nothing comes for ever."""
    world = World(tmp_path, stack)
    spec = world.create("ops.flights")
    stack.enter_context(world.east.worker())
    with world.west.receiver() as receiver:
        world.east.assign(world.west.cluster, receiver.port)
        world.east.wal().append(spec, rows(0, 1))
        wait_until(lambda: world.there(spec) == [(0, 1)])

    def failing() -> bool:
        return any(attempt.failures for attempt in world.east.ledger.sending.attempts())

    wait_until(failing, what="the worker to say that it fails")
    world.east.ledger.rules.disable("west", spec.uuid, ["default"], world.east.term)
    world.east.coordination.announce()
    assert [route.table for route in world.west.ledger.landing.routes()] == [spec.uuid]
    with world.west.receiver() as receiver:
        world.east.assign(world.west.cluster, receiver.port)
        wait_until(lambda: not world.west.ledger.landing.routes(), what="the route to close")
        wait_until(lambda: not failing(), what="the worker to say that nothing fails any more")
        world.east.send_to(world.west, spec)
        world.east.coordination.announce()
        wait_until(
            lambda: [route.table for route in world.west.ledger.landing.routes()] == [spec.uuid], what="a new route"
        )
