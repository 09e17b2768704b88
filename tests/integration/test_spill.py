"""A peer that stays away: files past its budget move to a store and are shipped from there, or are let go loudly."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from peer.repair.salvage import plan_salvage, salvage
from peer.status.collect import ClusterStatus, collect
from peer.status.members import members_of
from replication.core.coverage import Ranges
from replication.core.definition.schema import TableSpec
from replication.core.phase import Phase
from replication.core.shipping.chunk import ChunkAssignment
from replication.core.shipping.retention import RetentionPolicy
from replication.errors import StorageError
from replication.files.base import Files
from replication.files.local import LocalFiles
from replication.files.reading import FrameReader, frame_start
from replication.files.store import RemoteStore
from replication.ledger.base import FileKind
from replication.ledger.orphans import OrphanRemover
from replication.master.budget import SAMPLE_US, Budgets, disk_gauge
from replication.master.retire import retire
from replication.worker.files.spill import Spiller
from tests.sites import Site, Wal, rows, site_of, table
from tests.waiting import wait_until

RELAY = RetentionPolicy(keeps_tables=False)


class World:
    """East sends to west, which is away; east keeps no tables, so that files wait for west only."""

    def __init__(self, folder: Path, stack: ExitStack, **master: object) -> None:
        self.stack, self.folder = stack, folder
        sections = {
            "replay": {"enabled": False},
            "worker": {"retry_min_s": 0.05, "retry_max_s": 0.5},
            "master": {"peer_bytes_max": 1, "spill_url": f"file://{folder}/store", **master},
        }
        self.east, self.west = (Site(folder, name, **sections) for name in ("east", "west"))
        for site in (self.east, self.west):
            stack.callback(site.close)
        self.spec = self.create("ops.flights")

    def create(self, name: str) -> TableSpec:
        spec = table(name)
        self.east.ledger.tables.create(spec)
        self.east.send_to(self.west, spec)
        return spec

    def closed(self, spec: TableSpec, first: int, count: int = 3) -> Wal:
        wal = self.east.wal()
        for n in range(count):
            wal.append(spec, rows(first + n, 1))
        wal.finish()
        return wal

    def run(self) -> None:
        self.stack.enter_context(self.east.worker())

    def open(self) -> None:
        """West comes back."""
        receiver = self.stack.enter_context(self.west.receiver())
        self.east.assign(self.west.cluster, receiver.port)

    def there(self, spec: TableSpec) -> int:
        found = Ranges()
        for number, ranges in enumerate(self.west.ledger.landing.coverage(spec.uuid).values()):
            found = found.union(Ranges.of(*((b + 1000 * number, e + 1000 * number) for b, e in ranges)))
        return found.total

    def stored(self, wal: Wal) -> bool:
        row = self.east.ledger.files.get(wal.file)
        return row is not None and row.is_stored

    def shipped(self, wal: Wal) -> bool:
        known = self.east.ledger.files.progress("west")
        return any(p.file == wal.file and p.shipped.contains(256, wal.length) for p in known)

    def status(self) -> ClusterStatus:
        return collect(self.east.config, self.east.ledger, members_of(self.east.coordination))


def make_spiller(world: World, store: RemoteStore, files: Files | None = None) -> Spiller:
    """One that brings back what the own replay has not had."""
    folders = {FileKind.WAL: str(world.east.config.wal_dir)}
    return Spiller(world.east.ledger, files or world.east.files, "h0", store, 1, True, folders)


@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_files_past_the_budget_are_shipped_from_the_store_and_retired_there(tmp_path: Path, protocol: str) -> None:
    with ExitStack() as stack:
        url = f"{protocol}://{tmp_path}/store"
        world = World(tmp_path, stack, spill_url=url)
        wals = [world.closed(world.spec, 10 * n) for n in range(3)]
        growing = world.east.wal()
        growing.append(world.spec, rows(100, 1))
        world.run()
        wait_until(lambda: all(world.stored(wal) for wal in wals))
        wait_until(lambda: not any(Path(w.path).exists() or Path(w.path).with_suffix(".len").exists() for w in wals))
        assert Path(growing.path).exists() and not world.stored(growing)
        (outlook,) = world.status().peer_forecasts
        assert outlook.stored_files == 3 and outlook.stored_bytes == sum(wal.length for wal in wals)
        assert outlook.then == "spill" and not world.status().unreadable
        world.open()
        wait_until(lambda: world.there(world.spec) == 10)
        wait_until(lambda: all(world.shipped(wal) for wal in wals))
        row = world.east.ledger.files.get(wals[0].file)
        assert row is not None
        world.east.ledger.rules.delete("west", world.east.term)
        assert wals[0].file in {r.file for r in world.east.ledger.files.retirable("h0", RELAY)}
        assert retire(world.east.ledger, world.east.files, row, world.east.term, "h0", RELAY)
        left = RemoteStore(url).names(f"east-{world.east.cluster.incarnation}/h0")
        assert len(left) == 2 and not any(row.path.endswith(name) for name in left)


def test_chunks_of_a_stored_file_start_where_they_would_on_disk(tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack)
        wal = world.closed(world.spec, 0, 20)
        places = [frame_start(wal.path, at, wal.length) for at in range(0, wal.length, 97)]
        with closing(FrameReader(wal.path)) as reader:
            content, _ = reader.read(256, wal.length, 1 << 20)
        world.run()
        wait_until(lambda: world.stored(wal))
        row = world.east.ledger.files.get(wal.file)
        assert row is not None
        assert [frame_start(row.path, at, wal.length) for at in range(0, wal.length, 97)] == places
        with closing(FrameReader(row.path)) as reader:
            assert reader.read(256, wal.length, 1 << 20)[0] == content
        receiver = stack.enter_context(world.west.receiver())
        middle = wal.length // 2
        chunks = [ChunkAssignment(wal.file, begin, end, "west") for begin, end in ((0, middle), (middle, wal.length))]
        world.east.assign(world.west.cluster, receiver.port, *chunks, chunked_files=(wal.file,))
        wait_until(lambda: world.there(world.spec) == 20)


def test_a_worker_that_died_while_spilling_leaves_nothing_behind(tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack)
        wal, kept = world.closed(world.spec, 0), world.closed(world.spec, 10)
        store = RemoteStore(f"file://{tmp_path}/store")
        folders = {FileKind.WAL: str(world.east.config.wal_dir)}

        def make(budget: int) -> Spiller:
            return Spiller(world.east.ledger, world.east.files, "h0", store, budget, False, folders)

        for each in (wal, kept):
            world.east.ledger.registration.register_own(each.file, 256, each.length, [])
        below = f"{world.east.cluster.name}-{world.east.cluster.incarnation}/h0"
        store.put(wal.path, f"{below}/{wal.file.number:012d}.wal")
        world.east.wal()
        make(1 << 40).run_once()
        assert store.names(below) == [], "a copy that the ledger does not know of"
        make(1).run_once()
        assert world.stored(wal) and world.stored(kept) and len(store.names(below)) == 2
        make(1).run_once()
        assert len(store.names(below)) == 2


def test_what_the_own_replay_needs_again_is_brought_back(tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack)
        wal = world.closed(world.spec, 0)
        content = Path(wal.path).read_bytes()
        store = RemoteStore(f"file://{tmp_path}/store")
        folders = {FileKind.WAL: str(world.east.config.wal_dir)}
        with world.east.worker():
            wait_until(lambda: world.stored(wal))
        Spiller(world.east.ledger, world.east.files, "h0", store, 1, True, folders).run_once()
        row = world.east.ledger.files.get(wal.file)
        assert row is not None and not row.is_stored and Path(row.path).read_bytes() == content


def test_what_another_host_has_yet_to_replay_stays_and_comes_back(tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack)
        away, here = world.closed(world.spec, 0), world.closed(world.spec, 10)
        with world.east.worker():
            wait_until(lambda: world.stored(away) and world.stored(here))
        world.east.ledger.replay.note_replayer("h1", True)
        store, folders = RemoteStore(f"file://{tmp_path}/store"), {FileKind.WAL: str(world.east.config.wal_dir)}
        for _ in range(2):
            Spiller(world.east.ledger, world.east.files, "h0", store, 1, False, folders).run_once()
            assert not world.stored(away) and not world.stored(here)


def test_a_file_on_its_way_back_is_no_orphan_however_long_that_takes(tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack)
        wal = world.closed(world.spec, 0)
        content = Path(wal.path).read_bytes()
        orphans = OrphanRemover(world.east.ledger, world.east.files, "h0", [str(world.east.config.wal_dir)])

        class Slow(RemoteStore):
            def get(self, address: str, path: str, *given: Any) -> None:
                super().get(address, path, *given)
                for now_s in (0.0, 100.0):
                    orphans.run_once(now_s)

        with world.east.worker():
            wait_until(lambda: world.stored(wal))
        world.east.wal()
        make_spiller(world, Slow(f"file://{tmp_path}/store")).run_once()
        row = world.east.ledger.files.get(wal.file)
        assert row is not None and not row.is_stored and Path(row.path).read_bytes() == content


def test_a_file_that_did_not_come_back_stays_in_the_store(tmp_path: Path) -> None:
    class Losing(LocalFiles):
        def rename(self, old: str, new: str) -> None:
            super().rename(old, new)
            Path(new).unlink()

    with ExitStack() as stack:
        world = World(tmp_path, stack)
        wal = world.closed(world.spec, 0)
        with world.east.worker():
            wait_until(lambda: world.stored(wal))
        store = RemoteStore(f"file://{tmp_path}/store")
        with pytest.raises(StorageError, match="stays in the store"):
            make_spiller(world, store, Losing()).run_once()
        assert world.stored(wal) and len(list(tmp_path.glob("store/**/*.wal"))) == 1
        make_spiller(world, store).run_once()
        assert not world.stored(wal) and Path(wal.path).exists()


def test_a_file_that_the_store_has_in_part_is_not_brought_back(tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack)
        wal = world.closed(world.spec, 0)
        with world.east.worker():
            wait_until(lambda: world.stored(wal))
        (kept,) = tmp_path.glob("store/**/*.wal")
        kept.write_bytes(kept.read_bytes()[: wal.length - 1])
        with pytest.raises(StorageError, match="stays in the store"):
            make_spiller(world, RemoteStore(f"file://{tmp_path}/store")).run_once()
        assert world.stored(wal) and not list(world.east.config.wal_dir.glob(f"{wal.file.number:012d}.wal*"))


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_a_file_that_the_store_lost_is_given_up_and_the_others_go_on(tmp_path: Path, how: str) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack)
        wals = [world.closed(world.spec, 10 * n) for n in range(3)]
        world.run()
        wait_until(lambda: all(world.stored(wal) for wal in wals))
        row = world.east.ledger.files.get(wals[1].file)
        assert row is not None
        kept = Path(row.path.removeprefix("file://"))
        if how == "gone":
            kept.unlink()
        else:
            damaged = bytearray(kept.read_bytes())
            damaged[-300:] = bytes(300)  # the end record, and of the last frame's payload the end
            damaged[300] ^= 1  # in the first frame
            kept.write_bytes(damaged)
        loss = plan_salvage(site_of(world.east), row.file)
        assert loss.lacking["west"][world.spec.uuid] >= 1 and kept.exists() is (how == "damaged")
        done = salvage(site_of(world.east), row.file)
        assert not kept.exists() and bool(done.damaged) is (how == "damaged")
        assert world.east.ledger.files.get(row.file) is None
        assert not list(world.east.config.run_dir.glob("salvage-*"))
        other = world.create("ops.other")
        world.closed(other, 0)
        world.open()
        wait_until(lambda: world.there(other) == 3, what="another table")
        (status,) = [peer for peer in world.status().peers if peer.table == world.spec.name]
        assert status.state == "needs_bootstrap"


def test_a_store_that_does_not_answer_is_no_reason_to_give_a_file_up(tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack)
        wal = world.closed(world.spec, 0)
        world.run()
        wait_until(lambda: world.stored(wal))
        row = world.east.ledger.files.get(wal.file)
        assert row is not None
        kept = Path(row.path.removeprefix("file://"))
        kept.rename(tmp_path / "aside")
        kept.mkdir()  # reading it fails otherwise than by its absence
        with pytest.raises(StorageError, match="the store at"):
            salvage(site_of(world.east), wal.file)
        assert world.stored(wal)


def test_a_store_spelt_otherwise_keeps_what_it_has(tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack)
        wal = world.closed(world.spec, 0)
        with world.east.worker():
            wait_until(lambda: world.stored(wal))
        other = RemoteStore(f"file://{tmp_path}/./store")
        Spiller(world.east.ledger, world.east.files, "h0", other, 1, False, {}).run_once()
        assert len(list(tmp_path.glob("store/**/*.wal"))) == 1


def test_a_store_that_fails_loses_nothing(tmp_path: Path) -> None:
    with ExitStack() as stack:
        (tmp_path / "store").write_text("no folder")
        world = World(tmp_path, stack)
        wal = world.closed(world.spec, 0)
        store = RemoteStore(f"file://{tmp_path}/store")
        folders = {FileKind.WAL: str(world.east.config.wal_dir)}
        world.east.ledger.registration.register_own(wal.file, 256, wal.length, [])
        with pytest.raises(StorageError, match="the store at"):
            Spiller(world.east.ledger, world.east.files, "h0", store, 1, False, folders).run_once()
        assert not world.stored(wal) and Path(wal.path).exists()


def test_status_says_why_files_stay_until_the_store_takes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        (tmp_path / "store").write_text("no folder")
        world = World(tmp_path, stack)
        wal = world.closed(world.spec, 0)
        world.run()
        wait_until(lambda: world.status().peer_forecasts[0].spill_error, what="the store's failure")
        assert "the store at" in world.status().peer_forecasts[0].spill_error
        (tmp_path / "store").unlink()
        wait_until(
            lambda: world.stored(wal) and not world.status().peer_forecasts[0].spill_error,
            what="the store to work",
        )


def test_a_peer_that_dies_while_it_is_bootstrapped_with_a_table_fills_no_disk(tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack, spill_url="", peer_bytes_max=5000)
        small = world.create("ops.small")
        world.east.ledger.rules.begin_bootstrap("west", small.uuid, world.east.term)
        budgets = Budgets(world.east.ledger, "h0", str(tmp_path), 5000, False)
        world.run()

        def needing() -> set[str]:
            return {row.table for row in world.status().peers if row.state == Phase.NEEDS_BOOTSTRAP.value}

        def write(spec: TableSpec) -> None:
            before = world.status().peer_forecasts[0].local_bytes
            wals: list[Wal] = []
            while sum(wal.length for wal in wals) <= 5000:
                wals.append(world.closed(spec, 10 * len(wals)))
            newest = wals[-1].file
            wait_until(lambda: world.east.ledger.files.get(newest).length == wals[-1].length)  # type: ignore[union-attr]
            assert world.status().peer_forecasts[0].local_bytes > before + 5000
            budgets.keep(world.east.term)

        write(world.spec)
        assert needing() == {"ops.flights"}
        write(small)
        assert needing() == {"ops.flights", "ops.small"}


def test_a_disk_is_sampled_on_after_the_clock_stepped_back(tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack)
        clock = [10**15]
        budgets = Budgets(world.east.ledger, "h0", str(tmp_path), None, False, lambda: clock[0])
        for step in (0, SAMPLE_US // 2, -3_600_000_000):
            clock[0] += step
            budgets.watch()
        assert [at for at, _ in world.east.ledger.sending.samples(disk_gauge("h0"))] == [clock[0]]


def test_without_a_store_a_peer_past_its_budget_needs_a_bootstrap_of_the_affected_tables_only(tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack, spill_url="", peer_bytes_max=5000)
        weather = world.create("ops.weather")
        clock = [10**15]
        budgets = Budgets(world.east.ledger, "h0", str(tmp_path), 5000, False, lambda: clock[0])
        old = world.closed(world.spec, 0)
        world.run()
        wait_until(lambda: world.east.ledger.files.get(old.file).length == old.length)  # type: ignore[union-attr]
        budgets.keep(world.east.term)
        assert [o.runs_out_s for o in world.status().peer_forecasts] == [None] and world.status().peer_forecasts[
            0
        ].budget == 5000
        wals = []
        while sum(wal.length for wal in (old, *wals)) <= 5000:
            wals.append(world.closed(weather, 10 * len(wals)))
        newest = wals[-1]
        wait_until(lambda: world.east.ledger.files.get(newest.file).length == newest.length)  # type: ignore[union-attr]
        with capture_logs() as logs:
            budgets.keep(world.east.term)
        assert {e["table"] for e in logs if e["event"] == "table_needs_bootstrap"} == {"ops.flights"}
        assert {e["event"] for e in logs if e["log_level"] == "error"} == {"table_needs_bootstrap"}
        states = {row.table: row.state for row in world.status().peers}
        assert states == {"ops.flights": Phase.NEEDS_BOOTSTRAP.value, "ops.weather": "behind"}
        world.east.wal().append(world.spec, rows(900, 1))
        world.open()
        wait_until(lambda: world.there(weather) == 3 * len(wals))
        assert world.there(world.spec) == 0, "never a part of it with a silent gap"
