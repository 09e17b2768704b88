"""A WAL goes bad where it was written and is salvaged by hand: what can be read goes on, who lacks the rest is told."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from peer.repair import salvage as salvaging
from peer.repair.salvage import plan_salvage, salvage
from peer.replay.loop import replay_lock
from peer.status.collect import ClusterStatus, collect
from peer.status.members import Members
from replication import config as configuration
from replication.core.coverage import Ranges
from replication.core.definition.schema import TableSpec
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import StreamId
from replication.core.routes.freshness import ClosedNotice
from replication.errors import LockedFileError, RequestError
from replication.ledger.base import FileKind, Phase
from replication.ledger.orphans import OrphanRemover
from replication.ledger.sql.parts.salvage import SqlSalvage
from replication.writer.wal.registration import lock_path
from shell.cli.render import Printer
from shell.main import run
from shell.status.page import show_status
from tests.noted import note_closed
from tests.replaying import TableSite
from tests.sites import Site, flip, rows, site_of, table
from tests.waiting import wait_until

SETTINGS = {"worker": {"retry_min_s": 0.05, "retry_max_s": 0.2, "heartbeat_interval_s": 0.1}}


class World:
    """East with a closed WAL of three frames of one table, and west, to which two tables go."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.stack = stack
        self.east, self.west = (TableSite(folder, name, **SETTINGS) for name in ("east", "west"))
        for site in (self.east, self.west):
            stack.callback(site.close)
        self.spec, self.other = table(), table("ops.other")
        for spec in (self.spec, self.other):
            self.east.ledger.tables.create(spec)
        self.east.send_to(self.west, self.spec, self.other)
        self.wal = self.east.wal()
        self.ends = [FILE_HEADER_BYTES, *(self.wal.append(self.spec, rows(n * 10, 10)) for n in range(3))]

    @property
    def stream(self) -> StreamId:
        return StreamId(self.wal.file, self.spec.uuid, "default")

    def connect(self) -> None:
        receiver = self.stack.enter_context(self.west.receiver())
        self.stack.enter_context(self.east.worker())
        self.east.assign(self.west.cluster, receiver.port)

    def salvage(self) -> None:
        salvage(site_of(self.east), self.wal.file)

    def status(self) -> ClusterStatus:
        return collect(self.east.config, self.east.ledger, Members())

    def state(self, spec: TableSpec) -> str:
        """Of a table at west."""
        return next(found.state for found in self.status().peers if found.table == spec.name)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, stack)


def ids(site: TableSite, spec: TableSpec) -> list[int]:
    return sorted(row["id"] for row in site.shown(spec)) if site.tables.exists(spec.name) else []


def tens(*firsts: int) -> list[int]:
    return [n for first in firsts for n in range(first, first + 10)]


def bootstrap(source: TableSite, peer: TableSite, spec: TableSpec) -> None:
    """Begin one for rules that are there, and carry it through."""
    source.ledger.rules.begin_bootstrap(peer.cluster.name, spec.uuid, source.term)

    def done() -> bool:
        source.keeper.run_once()
        peer.replay()
        rules = [rule for rule in source.ledger.rules.all() if rule.table == spec.uuid]
        return {rule.phase for rule in rules} == {Phase.LIVE}

    wait_until(done, what="the bootstrap")


def test_later_files_of_the_writer_go_on_and_a_bootstrap_brings_what_home_has(world: World) -> None:
    east, west = world.east, world.west
    world.wal.finish()
    later = east.wal()
    later.append(world.spec, rows(100, 10))
    later.append(world.other, rows(0, 10))
    east.register()
    east.replay()
    flip(world.wal, world.ends[2] - 20)
    world.connect()
    wait_until(lambda: west.received(world.wal.file, world.ends[1]), what="what is before the damage")
    wait_until(lambda: world.state(world.spec) == "failing", what="the damage in the status")
    assert not west.ledger.landing.received(later.file)
    before = east.ledger.landing.coverage(world.spec.uuid)
    world.salvage()
    assert east.ledger.landing.coverage(world.spec.uuid) == before, "home has applied everything"
    wait_until(lambda: west.received(later.file, later.length), what="the writer's later file")
    wait_until(lambda: west.replay() and ids(west, world.other) == tens(0), what="the other table")
    wait_until(lambda: world.state(world.other) == "caught_up", what="the other table to be caught up")
    assert world.state(world.spec) == "needs_bootstrap"
    assert world.status().lost == () and world.status().unreadable == ()
    bootstrap(east, west, world.spec)
    wait_until(lambda: west.replay() and ids(west, world.spec) == tens(0, 10, 20, 100), what="the same rows")
    assert ids(east, world.spec) == ids(west, world.spec)
    later.append(world.spec, rows(200, 10))
    wait_until(lambda: west.replay() and 209 in ids(west, world.spec), what="what is written afterwards")


@pytest.mark.parametrize("part", ["head", "payload"])
def test_frames_before_and_after_the_damage_are_saved_for_both(
    world: World, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    east, west = world.east, world.west
    world.wal.finish()
    east.register()
    note_closed(east.ledger, east.cluster, ClosedNotice(50, ((world.stream, 2),)))
    flip(world.wal, world.ends[1] + 6 if part == "head" else world.ends[2] - 20)
    world.connect()
    done = salvage(site_of(east), world.wal.file)
    assert done.plan.lost == {world.stream: Ranges.of((1, 2))} and done.copies is not None
    assert done.plan.lacking == {"west": {world.spec.uuid: 1}}
    assert not Path(world.wal.path).exists() and Path(done.damaged).exists()
    east.replay()
    assert ids(east, world.spec) == tens(0, 20)
    assert east.ledger.time.replicated()[east.cluster].t >= 50, "nobody waits for what is lost"
    (lost,) = world.status().lost
    assert (lost.file, lost.table, lost.frames) == (world.wal.file.local, world.spec.name, 1)
    show_status(Printer(as_json=False), world.status())
    assert "lost here: 1 frame of ops.flights" in capsys.readouterr().err
    bootstrap(east, west, world.spec)
    wait_until(lambda: west.replay() and ids(west, world.spec) == tens(0, 20), what="the same rows")
    wait_until(
        lambda: [r.acknowledged for r in west.ledger.landing.routes() if r.acknowledged], what="the acknowledged gap"
    )
    wait_until(
        lambda: west.ledger.time.replicated(world.spec.uuid)[east.cluster].t >= 50, what="west's replicated time"
    )


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("place", ["link_damaged", "copied", "carry_out", "remove_original"])
@pytest.mark.parametrize("after", [False, True])
def test_a_salvage_that_is_killed_anywhere_is_run_again_and_what_is_left_of_the_file_is_kept(
    world: World, place: str, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    east, file = world.east, world.wal.file
    world.wal.finish()
    flip(world.wal, world.ends[2] - 20)
    damaged = Path(world.wal.path).read_bytes()
    owner = SqlSalvage if place == "carry_out" else salvaging
    real = getattr(owner, place)

    def killed(*args: Any, **named: Any) -> None:
        if after:
            real(*args, **named)
        raise Killed(place)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(owner, place, killed)
        world.salvage()
    if east.ledger.files.get(file) is not None:
        world.salvage()
    config = east.config
    cleaner = OrphanRemover(east.ledger, east.files, config.cluster.host, [str(config.wal_dir)], age_s=0)
    east.wal("w1")  # a newer number, so that the file is an orphan
    cleaner.run_once(0)
    assert not Path(world.wal.path).exists() and east.ledger.files.get(file) is None
    (kept,) = (config.data_dir / "quarantine").iterdir()
    assert kept.read_bytes() == damaged
    saved = [row for row in east.ledger.files.all() if row.kind is FileKind.LANDING and row.length > FILE_HEADER_BYTES]
    assert len(saved) == 1, "what could be read is in one file"


def test_rows_that_only_a_peer_has_are_named_and_come_back_by_its_bootstrap(world: World) -> None:
    east, west = world.east, world.west
    world.wal.finish()
    east.register()
    world.connect()
    wait_until(lambda: west.received(world.wal.file, world.wal.length))
    wait_until(lambda: west.replay() and ids(west, world.spec) == tens(0, 10, 20))
    wait_until(lambda: not [s for f, _, s in east.ledger.files.statuses("west") if f == world.wal.file and s.remaining])
    Path(world.wal.path).unlink()
    loss = plan_salvage(site_of(east), world.wal.file)
    assert loss.at_peers == {"west": {world.stream: Ranges.of((0, 3))}} and not loss.lacking
    world.salvage()
    assert east.replay().held == {} and ids(east, world.spec) == []
    assert world.state(world.spec) == "caught_up"
    back = world.stack.enter_context(east.receiver())
    world.stack.enter_context(west.worker())
    west.send_to(east, world.spec)
    west.assign(east.cluster, back.port)
    bootstrap(west, east, world.spec)
    wait_until(lambda: east.replay() and ids(east, world.spec) == tens(0, 10, 20), what="the rows, back home")
    assert world.status().lost == () and east.versions(world.spec) == west.versions(world.spec)


def test_an_open_file_of_a_dead_writer_is_given_up_and_closed_time_goes_on(world: World) -> None:
    east = world.east
    east.ledger.time.register_writer("w0", "h0", 1, east.boot, 1)
    east.register()
    flip(world.wal, world.ends[1] + 6)
    lock = east.files.create(lock_path(str(east.config.wal_dir), "w0"))
    lock.lock()
    with pytest.raises(RequestError, match="is still written by w0"):
        world.salvage()
    lock.close()
    world.connect()
    wait_until(lambda: east.ledger.time.closed() > 0, what="closed time, up to what the writer promised")
    now = time.time_ns() // 1000
    assert len(east.ledger.time.writers()) == 1
    world.salvage()
    wait_until(lambda: east.ledger.time.closed() > now, what="closed time")
    assert east.ledger.time.writers() == []
    east.replay()
    assert ids(east, world.spec) == tens(0, 20)


def test_what_was_given_up_is_waived_by_clusters_that_pass_it_on(tmp_path: Path) -> None:
    with ExitStack() as stack:
        a, b, c = (Site(tmp_path, name, **SETTINGS) for name in "abc")
        for site in (a, b, c):
            stack.callback(site.close)
        spec = table()
        for site in (a, b):
            site.ledger.tables.create(spec)
        a.send_to(b, spec)
        b.send_to(c, spec)
        wal = a.wal()
        ends = [wal.append(spec, rows(n * 10, 10)) for n in range(3)]
        wal.finish()
        flip(wal, ends[1] - 20)
        for source, peer in ((a, b), (b, c)):
            receiver = stack.enter_context(peer.receiver())
            stack.enter_context(source.worker())
            source.assign(peer.cluster, receiver.port)
        wait_until(lambda: a.ledger.landing.coverage(spec.uuid), what="the WAL to be registered")
        salvage(site_of(a), wal.file)
        gap = {wal.file: Ranges.of((1, 2))}
        wait_until(
            lambda: any(route.acknowledged == gap for route in c.ledger.landing.routes()),
            what="the gap, told two hops away",
        )


def test_while_replay_runs_nothing_is_given_up(world: World) -> None:
    world.wal.finish()
    world.east.register()
    with replay_lock(world.east.config.run_dir), pytest.raises(LockedFileError, match="own replay is running"):
        world.salvage()
    assert world.east.ledger.files.get(world.wal.file) is not None


def test_the_shell_says_what_would_be_lost_and_does_it_when_told(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.wal.finish()
    world.east.register()
    flip(world.wal, world.ends[1] + 6)
    home = world.east.config.data_dir
    (home / "walship.toml").write_text(configuration.default_toml("east", "."))
    verb = ["wal", "salvage", world.wal.file.local, "--cluster", str(home / "walship.toml")]
    assert run([*verb, "--json"]) == 4
    said = capsys.readouterr()
    assert json.loads(said.out)["lost"] == {"ops.flights": 1}
    assert "nothing was changed" in said.err and world.east.ledger.files.get(world.wal.file) is not None
    assert run(verb) == 4
    said = capsys.readouterr()
    assert "lost here: 1 frame of ops.flights" in said.out and "unknown_bytes" not in said.out
    assert "west may not get up to 1 frame of ops.flights" in said.out
    assert run([*verb, "--json", "--yes"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["needs_bootstrap"] == {"west": {"ops.flights": 1}} and told["frames_saved"] == 2
    (left,) = world.east.ledger.files.all()
    assert (left.kind, left.file.local) == (FileKind.LANDING, told["copies"])
