"""Files that cannot be spilled, or copied back from the store, hold up no others."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from peer.repair.reincarnate import reincarnate
from replication.core.ids import FileId
from replication.errors import MissingFileError, StorageError
from replication.files.store import RemoteStore
from replication.ledger.base import FileKind
from replication.ledger.sql.ledger import open_ledger
from replication.worker.files import spill
from replication.worker.files.spill import Spiller
from replication.worker.report.attempts import SPILL
from tests.integration.test_spill import World, make_spiller
from tests.sites import Wal
from tests.waiting import wait_until


def registered(world: World, *firsts: int) -> list[Wal]:
    wals = [world.closed(world.spec, first) for first in firsts]
    for wal in wals:
        world.east.ledger.registration.register_own(wal.file, 256, wal.length, [])
    return wals


def relay_spiller(world: World, store: RemoteStore) -> Spiller:
    """One of a host that keeps no tables, so every file may be moved."""
    folders = {FileKind.WAL: str(world.east.config.wal_dir)}
    return Spiller(world.east.ledger, world.east.files, "h0", store, 1, False, folders)


def test_a_lost_file_keeps_no_other_file_from_the_store(tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack)
        lost, *others = registered(world, 0, 10, 20)
        Path(lost.path).unlink()
        spiller = relay_spiller(world, RemoteStore(f"file://{tmp_path}/store"))
        for _ in range(2):
            with pytest.raises(MissingFileError, match=lost.path):
                spiller.run_once()
        assert [world.stored(wal) for wal in (lost, *others)] == [False, True, True]


def test_an_object_that_the_store_lost_keeps_no_file_from_moving_either_way(tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack)
        lost, back = world.closed(world.spec, 0), world.closed(world.spec, 10)
        with world.east.worker():
            wait_until(lambda: world.stored(lost) and world.stored(back))
        row = world.east.ledger.files.get(lost.file)
        assert row is not None
        Path(row.path.removeprefix("file://")).unlink()
        away = registered(world, 20, 30)
        with pytest.raises(MissingFileError, match="not in the store"):
            make_spiller(world, RemoteStore(f"file://{tmp_path}/store")).run_once()
        assert world.stored(lost) and not world.stored(back) and Path(back.path).exists()
        assert all(world.stored(wal) for wal in away)


def test_a_store_that_does_not_answer_is_asked_for_another_file_in_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away(RemoteStore):
        is_away = True

        def put(self, path: str, name: str) -> str:
            asked.append(path)
            if self.is_away or path == wals[0].path:
                raise StorageError("the store does not answer")
            return super().put(path, name)

    asked: list[str] = []
    monkeypatch.setattr(spill, "_FAILING_S", 0.0)  # each failure takes that long
    with ExitStack() as stack:
        world = World(tmp_path, stack)
        wals = registered(world, 0, 10, 20)
        store = Away(f"file://{tmp_path}/store")
        spiller = relay_spiller(world, store)
        for _ in range(4):
            with pytest.raises(StorageError, match="does not answer"):
                spiller.run_once()
        assert asked == [wal.path for wal in (*wals, wals[0])]
        store.is_away = False
        with pytest.raises(StorageError, match="does not answer"):
            spiller.run_once()
        assert [world.stored(wal) for wal in wals] == [False, True, True]


def test_a_worker_that_starts_while_the_store_is_away_ships_all_the_same(tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack, spill_url="ftp://127.0.0.1:1/store")
        wal = world.closed(world.spec, 0)
        world.run()
        world.open()
        wait_until(lambda: world.shipped(wal), what="the file to be shipped")
        wait_until(lambda: world.status().peer_forecasts[0].spill_error, what="the store's failure")
        assert "Connection refused" in world.status().peer_forecasts[0].spill_error


def test_a_worker_whose_ledger_is_from_before_a_file_was_moved_keeps_the_only_copy(tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack)
        wal, newer = world.closed(world.spec, 0), world.east.wal()
        store = RemoteStore(f"file://{tmp_path}/store")
        world.east.ledger.registration.register_own(wal.file, 256, wal.length, [])
        relay_spiller(world, store).run_once()
        assert world.stored(wal) and not Path(wal.path).exists() and Path(newer.path).exists()
        assert world.east.ledger.files.move(wal.file, wal.path)  # as a copy of the ledger from before has it
        relay_spiller(world, store).run_once()
        (kept,) = tmp_path.glob("store/**/*.wal")
        row = world.east.ledger.files.get(wal.file)
        assert row is not None and row.path == kept.as_uri()


def test_a_cluster_that_was_restored_finds_what_it_had_moved_under_its_former_id(tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack)
        (wal,) = registered(world, 0)
        store = RemoteStore(f"file://{tmp_path}/store")
        relay_spiller(world, store).run_once()
        (kept,) = tmp_path.glob("store/**/*.wal")
        assert world.east.ledger.files.move(wal.file, wal.path)  # as a backup of the ledger from before has it
        reincarnate(world.east.config)
        ledger = stack.enter_context(closing(open_ledger(world.east.config.ledger_url)))
        folders = {FileKind.WAL: str(world.east.config.wal_dir), FileKind.LANDING: str(world.east.config.landing_dir)}
        Spiller(ledger, world.east.files, "h0", store, 1, False, folders).run_once()
        row = ledger.files.get(wal.file)
        assert row is not None and row.path == kept.as_uri() and kept.exists()


def test_what_a_restored_cluster_moves_of_its_former_id_is_no_orphan_to_the_next_worker(tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack)
        (wal,) = registered(world, 0)
        reincarnate(world.east.config)
        ledger = stack.enter_context(closing(open_ledger(world.east.config.ledger_url)))
        folders = {FileKind.WAL: str(world.east.config.wal_dir), FileKind.LANDING: str(world.east.config.landing_dir)}
        ledger.files.allocate("h0", FileKind.WAL, str(world.east.config.wal_dir), "")  # a newer file of the new id
        for _ in range(2):
            store = RemoteStore(f"file://{tmp_path}/store")
            Spiller(ledger, world.east.files, "h0", store, 1, False, folders).run_once()
            row = ledger.files.get(wal.file)
            assert row is not None and row.is_stored and store.size(row.path) >= wal.length


def test_while_no_peer_is_past_its_budget_no_file_is_looked_at_under_each_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacked() -> dict[str, list[FileId]]:
        raise AssertionError("it takes as long as there are files times rules")

    with ExitStack() as stack:
        world = World(tmp_path, stack)
        wals = registered(world, 0, 10)
        folders = {FileKind.WAL: str(world.east.config.wal_dir)}
        store, budget = RemoteStore(f"file://{tmp_path}/store"), sum(wal.length for wal in wals)
        with monkeypatch.context() as patched:
            patched.setattr(world.east.ledger.files, "lacked", lacked)
            Spiller(world.east.ledger, world.east.files, "h0", store, budget, False, folders).run_once()
        Spiller(world.east.ledger, world.east.files, "h0", store, budget - 1, False, folders).run_once()
        assert [world.stored(wal) for wal in wals] == [True, False]


def test_a_failure_of_a_store_that_is_configured_no_more_is_forgotten(tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack, spill_url="")
        world.east.ledger.sending.attempted("west", "h0", SPILL, 3, 0, 1, "the store is away")
        assert world.status().peer_forecasts[0].spill_error
        world.run()
        wait_until(lambda: not world.status().peer_forecasts[0].spill_error)


def test_what_chunks_failed_with_is_forgotten_once_they_were_taken_back(tmp_path: Path) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack)
        world.east.ledger.sending.attempted("west", "h0", "chunks", 3, 0, 1, "nobody answers")
        assert world.status().sending[0].state == "failing"
        world.run()
        world.open()
        wait_until(lambda: world.status().sending[0].state == "sending")


def test_a_file_that_is_retired_while_it_moves_leaves_no_object_and_a_part_that_was_copied_back_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        world = World(tmp_path, stack)
        (wal,), store = registered(world, 0), RemoteStore(f"file://{tmp_path}/store")
        spiller = relay_spiller(world, store)
        part = Path(f"{wal.path}.part")
        part.write_bytes(b"an earlier worker died as it copied this")
        with monkeypatch.context() as patch:
            patch.setattr(world.east.ledger.files, "move", lambda *_: False)  # as of a file that is not there any more
            spiller.run_once()
        below = f"{world.east.cluster.name}-{world.east.cluster.incarnation}/h0"
        assert store.names(below) == [] and Path(wal.path).exists() and not part.exists()
        spiller.run_once()
        assert world.stored(wal) and len(store.names(below)) == 1
