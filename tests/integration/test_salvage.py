"""A landing file goes bad and is salvaged by hand: its sender ships it anew, over the real link, to the same ledger."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from peer.repair.quarantine_actions import discard
from peer.repair.salvage import salvage
from peer.replay.commit import TableReplay
from peer.replay.loop import replay_lock
from peer.status.collect import collect
from peer.status.members import Members
from replication import config as configuration
from replication.core.coverage import Ranges
from replication.core.definition.define import typed_table
from replication.core.frame import scan
from replication.core.shipping.chunk import ChunkAssignment
from replication.errors import LedgerBusyError, LockedFileError
from replication.ledger.base import FileKind, FileRow, PeerProgress, ReplayCheckpoint
from replication.ledger.decisions.progress import join
from shell.main import run
from tests.bootstrap_pair import Pair, bootstraps, ids, other_pair
from tests.sites import SCHEMA, Site, Wal, rows, site_of, table
from tests.waiting import wait_until


class World:
    """East, which sends, and west, whose landing files a test ruins while both run."""

    def __init__(self, folder: Path, stack: ExitStack, *, with_worker: bool = True) -> None:
        self.folder, self.stack = folder, stack
        self.east, self.west = (self.site(name) for name in ("east", "west"))
        self.spec = table()
        self.east.ledger.tables.create(self.spec)
        self.east.send_to(self.west, self.spec)
        self.port = stack.enter_context(self.west.receiver()).port
        if with_worker:
            stack.enter_context(self.east.worker())

    def site(self, name: str) -> Site:
        made = Site(self.folder, name, worker={"retry_min_s": 0.05, "retry_max_s": 0.5})
        self.stack.callback(made.close)
        return made

    def arrived(self, wal: Wal) -> bool:
        return any(
            known.file == wal.file and known.shipped.contains(256, wal.length)
            for known in self.east.ledger.files.progress("west")
        )

    def landed(self, wal: Wal) -> FileRow:
        """A closed WAL of three frames, all of it known to have arrived, in one closed landing file."""
        for n in range(3):
            wal.append(self.spec, rows(n * 10, 10))
        wal.finish()
        wait_until(lambda: self.arrived(wal))
        wait_until(lambda: all(row.closed for row in self.of(wal)))
        (row,) = self.of(wal)
        return row

    def of(self, wal: Wal) -> list[FileRow]:
        return [row for row in self.west.ledger.files.all() if row.source == wal.file]

    def covered(self) -> list[Ranges]:
        return [r for s, r in self.west.ledger.landing.coverage().items() if s.table == self.spec.uuid]

    def pending(self) -> list[tuple[str, int]]:
        """(WAL, sequence) of what west's replay would apply, in files that can be read."""
        found = []
        for part in self.west.ledger.replay.pending():
            content = Path(part.row.path).read_bytes()[: part.end]
            found += [
                (str(frame.header.wal), frame.header.sequence)
                for frame in scan(content, part.begin)
                if frame.header.table == self.spec.uuid and not part.duplicates.contains(frame.begin)
            ]
        return sorted(found)

    def whole(self, wal: Wal) -> bool:
        return self.west.received(wal.file, wal.length) and self.covered() == [Ranges.of((0, 3))]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, stack)


def test_a_missing_landing_file_that_is_given_up_comes_again_by_itself(world: World) -> None:
    world.east.assign(world.west.cluster, world.port)
    wal, other = world.east.wal(), world.east.wal("w1")
    row = world.landed(wal)
    Path(row.path).unlink()
    assert world.covered() == [Ranges.of((0, 3))], "the ledger does not know yet"
    done = salvage(site_of(world.west), row.file)
    assert done.plan.again == Ranges.of((256, wal.length)) and done.copies is None
    assert world.covered() == [] and not world.west.ledger.landing.received(wal.file)
    wait_until(lambda: world.whole(wal), timeout_s=30, what="the file to come again")
    wait_until(lambda: world.arrived(wal))
    assert world.pending() == [(str(wal.file), n) for n in range(3)]
    (progress,) = [known for known in world.east.ledger.files.progress("west") if known.file == wal.file]
    assert progress.losses == 1
    other.append(world.spec, rows(100, 10))
    wait_until(lambda: world.arrived(other))


def test_what_a_peer_lost_comes_again_when_the_ledger_did_not_take_the_news_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.east.assign(world.west.cluster, world.port)
    wal = world.east.wal()
    row = world.landed(wal)
    record = world.east.ledger.files.record
    refused: dict[str, float] = {}
    recorded: list[str] = []

    def busy(reports: Sequence[PeerProgress]) -> None:
        """As a ledger that takes the loss first when it is told by chance, once who asks and who ships have tried."""
        who = threading.current_thread().name
        if any(report.losses for report in reports) and not recorded:
            waited_s = time.monotonic() - min(refused.values(), default=time.monotonic())
            if who != "reports" or "tail west" not in refused and waited_s < 2:
                refused.setdefault(who, time.monotonic())
                raise LedgerBusyError("the ledger is busy")
            recorded.append(who)
        record(reports)

    monkeypatch.setattr(world.east.ledger.files, "record", busy)
    Path(row.path).unlink()
    salvage(site_of(world.west), row.file)
    wait_until(lambda: recorded, what="the ledger to know of the loss")
    wait_until(lambda: world.whole(wal), timeout_s=10, what="the file to come again")


def test_what_can_be_read_of_a_damaged_file_is_saved_and_its_remains_are_kept(world: World) -> None:
    world.east.assign(world.west.cluster, world.port)
    wal = world.east.wal()
    row = world.landed(wal)
    path = Path(row.path)
    content = bytearray(path.read_bytes())
    second = [frame for frame in scan(bytes(content[: row.length]), 256)][1]
    content[second.begin : second.begin + 8] = b"ruined!!"
    path.write_bytes(bytes(content))
    done = salvage(site_of(world.west), row.file)
    assert [claim.sequence for claim in (*done.plan.wanted, *done.plan.elsewhere)] == [0, 2]
    assert not path.exists() and Path(done.damaged).read_bytes() == bytes(content)
    wait_until(lambda: world.whole(wal), timeout_s=30, what="the file to come again")
    assert world.pending() == [(str(wal.file), n) for n in range(3)]


def test_a_landed_duplicate_is_used_and_nothing_is_sent_again(world: World) -> None:
    north = world.site("north")
    north.ledger.tables.create(world.spec)
    north.send_to(world.west, world.spec)
    world.east.send_to(north, world.spec)
    back = world.stack.enter_context(north.receiver())
    world.east.assign_all([(world.west.cluster, world.port), (north.cluster, back.port)])
    wal = world.east.wal()
    row = world.landed(wal)
    world.stack.enter_context(north.worker())
    north.assign(world.west.cluster, world.port)

    def spared() -> int:
        """How many frames of the file landed by way of north too."""
        found = 0
        streams = [each for each in world.west.ledger.landing.coverage() if each.table == world.spec.uuid]
        for duplicates, begin, end in world.west.ledger.salvage.duplicates(row.file, streams):
            found += len(list(scan(Path(duplicates.path).read_bytes()[:end], begin)))
        return found

    wait_until(lambda: spared() == 3)
    Path(row.path).unlink()
    done = salvage(site_of(world.west), row.file)
    assert not done.plan.again and done.copies is not None
    assert world.pending() == [(str(wal.file), n) for n in range(3)]
    assert world.whole(wal)


def test_a_chunk_that_was_done_is_shipped_again(world: World) -> None:
    wal = world.east.wal()
    for n in range(3):
        wal.append(world.spec, rows(n * 10, 10))
    length = wal.finish()
    chunk = ChunkAssignment(wal.file, 256, length, "west")
    world.east.assign(world.west.cluster, world.port, chunk, chunked_files=(wal.file,))
    wait_until(lambda: world.arrived(wal))
    wait_until(lambda: all(row.closed for row in world.of(wal)))
    for row in world.of(wal):
        Path(row.path).unlink()
        salvage(site_of(world.west), row.file)
    wait_until(lambda: world.whole(wal), timeout_s=30, what="the chunk to come again")


def test_a_file_lost_while_its_sender_was_away_comes_when_it_is_back(tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack, with_worker=False)
        wal = world.east.wal()
        with world.east.worker():
            world.east.assign(world.west.cluster, world.port)
            row = world.landed(wal)
        Path(row.path).unlink()
        salvage(site_of(world.west), row.file)
        with world.east.worker():
            wait_until(lambda: world.whole(wal), timeout_s=30, what="the file to come again")


def test_while_replay_runs_nothing_is_given_up(world: World) -> None:
    world.east.assign(world.west.cluster, world.port)
    row = world.landed(world.east.wal())
    with (
        replay_lock(world.west.config.run_dir),
        pytest.raises(LockedFileError, match="own replay is running.*walship down"),
    ):
        salvage(site_of(world.west), row.file)
    assert world.covered() == [Ranges.of((0, 3))] and Path(row.path).exists()


def test_what_is_applied_is_not_asked_for_again(world: World) -> None:
    world.east.assign(world.west.cluster, world.port)
    wal = world.east.wal()
    row = world.landed(wal)
    world.west.ledger.replay.checkpoint_applied(ReplayCheckpoint(world.spec.uuid, 1, 1, 1, {row.file: row.length}))
    Path(row.path).unlink()
    done = salvage(site_of(world.west), row.file)
    assert not done.plan.again and world.covered() == [Ranges.of((0, 3))]


def test_the_shell_asks_first_and_then_says_what_comes_again(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.east.assign(world.west.cluster, world.port)
    wal = world.east.wal()
    row = world.landed(wal)
    home = world.west.config.data_dir
    (home / "walship.toml").write_text(configuration.default_toml("west", "."))
    assert collect(world.west.config, world.west.ledger, Members()).unreadable == ()
    Path(row.path).unlink()
    (alarm,) = collect(world.west.config, world.west.ledger, Members()).unreadable
    assert alarm.file == row.file.local and f"walship wal salvage {alarm.file} --yes" in alarm.remedy
    verb = ["wal", "salvage", row.file.local, "--cluster", str(home / "walship.toml"), "--json"]
    assert run(verb) == 4
    asked = capsys.readouterr()
    assert json.loads(asked.out.splitlines()[-1])["frames_again"] == 3 and "nothing was changed" in asked.err
    assert world.covered() == [Ranges.of((0, 3))]
    assert run([*verb, "--yes"]) == 0
    told = capsys.readouterr()
    said = json.loads(told.out)
    assert told.err == "", "no line of a log"
    assert said["again"] == [[256, wal.length]] and said["frames_again"] == 3
    wait_until(lambda: world.whole(wal), timeout_s=30, what="the file to come again")
    own = [found for found in world.west.ledger.files.all() if found.kind is not FileKind.LANDING]
    assert not own


def damage(row: FileRow, at: int) -> None:
    """Flip a bit in the payload of a file's frame."""
    content = bytearray(Path(row.path).read_bytes())
    content[[frame.end for frame in scan(bytes(content[: row.length]), 256)][at] - 1] ^= 1
    Path(row.path).write_bytes(bytes(content))


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "keyless"])
def test_a_frame_that_is_damaged_before_replay_is_not_applied_and_comes_again(tmp_path: Path, keyed: bool) -> None:
    with ExitStack() as stack:
        pair = Pair(tmp_path)
        stack.callback(pair.close)
        east, west = pair.east, pair.west
        if not keyed:
            other_pair(pair, typed_table("ops.log", SCHEMA, [], uuids=iter(uuid4, None)))
        east.send_to(west, pair.spec)
        pair.connect()
        for n in range(4):
            pair.write(n * 10, 10)
        pair.wal.finish()
        later = Wal(east, "w1")
        later.append(pair.spec, rows(100, 10))

        def landing(wal: Wal) -> list[FileRow]:
            return [row for row in west.ledger.files.all() if row.source == wal.file and row.length]

        wait_until(lambda: west.received(pair.wal.file, pair.wal.length) and west.received(later.file, later.length))
        wait_until(lambda: all(row.closed for row in landing(pair.wal)))
        (row,) = landing(pair.wal)
        damage(row, 2)
        held = west.replay().held[pair.spec.name]
        assert f"walship wal salvage {row.file.local} --yes" in held and not west.ledger.replay.quarantined()
        assert ids(west, pair.spec) == [*range(20), *range(100, 110)], "what is in other files, or before it, goes on"
        assert west.ledger.landing.applied_prefix([pair.wal.file])[pair.wal.file] < pair.wal.length
        west.restart()
        assert west.replay().held[pair.spec.name] == held
        done = salvage(site_of(west), row.file)
        assert done.plan.again and len((*done.plan.wanted, *done.plan.elsewhere)) == 1
        west.restart()
        pair.level()
        assert len(ids(west, pair.spec)) == 50 and west.versions(pair.spec) == east.versions(pair.spec)


@pytest.mark.parametrize("is_lost", [False, True], ids=["damaged", "lost"])
def test_rows_of_a_damaged_frame_that_was_quarantined_come_by_a_bootstrap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    monkeypatch.setattr(TableReplay, "_comes_again", lambda *_: False)  # as an earlier version had it
    with ExitStack() as stack:
        pair = Pair(tmp_path)
        stack.callback(pair.close)
        east, west = pair.east, pair.west
        east.send_to(west, pair.spec)
        pair.connect()
        for n in range(3):
            pair.write(n * 10, 10)
        wait_until(lambda: west.received(pair.wal.file, pair.wal.length))
        (row,) = [row for row in west.ledger.files.all() if row.source == pair.wal.file]
        damage(row, 1)
        west.replay()
        (frame,) = west.ledger.replay.quarantined()
        if is_lost:
            Path(frame.copy).unlink()
            assert not discard(west.ledger, frame), "another host may have it"
        assert discard(west.ledger, frame, is_alone=True)
        now = time.time_ns() // 1000
        wait_until(lambda: west.replay() and west.ledger.time.replicated(pair.spec.uuid)[east.cluster].t > now)
        assert ids(west, pair.spec) == [*range(10), *range(20, 30)]
        east.ledger.rules.begin_bootstrap("west", pair.spec.uuid, east.term)
        pair.finish()
        pair.level()
        assert len(ids(west, pair.spec)) == 30 and west.versions(pair.spec) == east.versions(pair.spec)
        assert not west.ledger.salvage.acknowledged_losses()


@pytest.mark.parametrize("damaged", [0, -1, None], ids=["rows", "coverage", "nothing"])
def test_a_landed_bootstrap_that_is_given_up_comes_again_and_its_rows_are_taken(
    tmp_path: Path, damaged: int | None
) -> None:
    with ExitStack() as stack:
        pair = Pair(tmp_path)
        stack.callback(pair.close)
        east, west = pair.east, pair.west
        for n in range(3):
            pair.write(n * 10, 10)
        pair.begin()
        pair.connect()
        east.keeper.run_once()
        (sent,) = bootstraps(east)
        wait_until(lambda: west.received(sent.file, sent.length), what="the bootstrap to land")
        wait_until(lambda: all(row.closed for row in bootstraps(west)))
        (row,) = bootstraps(west)
        if damaged is not None:
            damage(row, damaged)
            (held,) = west.replay().held.values()
            assert "SHA-256" in held and (damaged or "walship wal salvage" in held)
            west.restart()
        done = salvage(site_of(west), row.file)
        assert done.plan.again == Ranges.of((256, sent.length))
        pair.finish()
        pair.level()
        assert len(west.shown(pair.spec)) == 30 and not west.ledger.replay.pending()


def test_reports_from_before_and_after_a_loss_join_alike_in_either_order(world: World) -> None:
    file = world.east.wal().file
    before = PeerProgress(file, "west", Ranges.of((256, 1000)), 900)
    loss = PeerProgress(file, "west", Ranges(), 0, losses=1, kept=Ranges.of((256, 500)))
    after = PeerProgress(file, "west", Ranges.of((500, 600)), 550, losses=1)
    for first, second in ((before, loss), (loss, before)):
        joined = join(first, second)
        assert (joined.shipped, joined.applied, joined.losses) == (Ranges.of((256, 500)), 500, 1)
        assert join(joined, after).shipped == Ranges.of((256, 600)) and join(joined, after).applied == 550
