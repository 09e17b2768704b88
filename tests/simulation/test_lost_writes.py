"""Lost writes of failovers, decided: what a person is told happens, whatever else happened before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import duckdb
import pytest

from peer.failover import failover as failing
from peer.failover import lost_writes, restate, take_back
from peer.failover.failover import failover, plan_failover
from peer.failover.take_back import TAKEN_BACK
from peer.repair.quarantine_actions import saved_frame
from peer.tables.read import read
from replication.core.definition.alter import rename_column
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId, FileId
from replication.core.roles import Role
from replication.core.rows.batch import EncodedBatch
from replication.core.succession import Succession
from replication.errors import RequestError, StepFailedError
from replication.ledger.base import BatchPart, Peer, Quarantined
from replication.tables.base import Catalog
from tests.simulation import failing_over
from tests.simulation.failing_over import Acked, World
from tests.simulation.test_schedules import quiet

__all__ = ["quiet"]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: None) -> Iterator[World]:
    made = World(0, tmp_path, monkeypatch)
    yield made
    made.close()


def send(world: World, table: int, ids: list[int], text: str) -> Acked:
    """East writes rows in one frame; west has them in its table, or as lost writes."""
    world.now_us += 1000
    rows = world.east.put(world.specs[table], ids, text)
    world.acked += rows
    for _ in range(200):
        world.now_us += 1000
        for move in (world.east.register, world.east.close_time, world.east.ship, world.west.receive):
            move()
        covered = world.west.ledger.landing.coverage()
        if rows[0].stream in covered and covered[rows[0].stream].contains(rows[0].sequence):
            break
    world.west.apply()
    return rows[0]


def fail_over(world: World, upto: int) -> None:
    """West takes over; the tables open at ``upto``."""
    plan = plan_failover(world.west.context, "east", at=upto)
    assert not plan.refusals, plan.refusals
    failover(world.west.context, plan)
    world.east.role_epoch = 2
    world.west.apply()


def kept(world: World) -> list[Quarantined]:
    return [each for each in world.west.ledger.replay.quarantined() if not each.discarded]


def move_to(world: World, succession: Succession) -> None:
    """Let the lost write that was not applied be one that another failover took back."""
    world.west.ledger.successions.record(succession)
    (found,) = [each for each in kept(world) if not each.reason.startswith(TAKEN_BACK)]
    world.west.ledger.replay.release(found.file, found.begin)
    reason = f"{TAKEN_BACK}{world.acked[-1].commit + 1}: {found.reason}"
    moved, header = replace(found, reason=reason, succession=str(succession)), saved_frame(found)[0].header
    world.west.ledger.replay.quarantine(moved, (header.stream, header.sequence))


def test_rows_written_since_a_failover_win_over_its_lost_writes_after_another_failover(world: World) -> None:
    west, name = world.west, world.specs[0].name
    base = send(world, 0, [1, 2], "base")
    send(world, 0, [1], "lost at first")
    fail_over(world, base.commit)
    assert west.rows()[name] == {1: "base", 2: "base"}
    world.now_us += 1000
    (newer,) = west.put(world.specs[0], [1], "newer")
    west.register()
    later = send(world, 0, [2], "lost at last")
    assert newer.commit < later.commit
    again = Succession(world.east.id, west.id, 6, world.now_us, is_planned=False)
    move_to(world, again)
    lost_writes.merge(west.handle)
    west.apply()
    assert west.rows()[name] == {1: "newer", 2: "lost at last"} and not kept(world)


@pytest.mark.parametrize("why", ["no key", "timestamps"])
def test_lost_writes_that_cannot_be_undone_are_discarded_once_a_person_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    west = world.west
    fail_over(world, send(world, 0, [1], "base").commit)
    send(world, 0, [1], "late")
    before = west.rows()
    if why == "no key":
        keyless = [replace(spec, key=()) for spec in world.specs]
        monkeypatch.setattr(west.handle, "tables", lambda: keyless)
    else:
        monkeypatch.setattr("peer.failover.lost_writes.has_timestamps", lambda _: True)
    with pytest.raises(RequestError) as refused:
        lost_writes.discard(west.handle)
    assert "--leave-applied" in refused.value.hint and len(kept(world)) == 1
    assert lost_writes.discard(west.handle, leave_applied=True) == 1
    west.apply()
    assert west.rows() == before and not kept(world)


def test_rows_written_before_a_discarded_lost_write_stay_though_the_clock_was_set_back(world: World) -> None:
    west, (spec, _) = world.west, world.specs
    fail_over(world, send(world, 0, [1], "base").commit)
    before, world.now_us = world.now_us, world.now_us + 3_600_000_000
    west.close_time()
    west.register()
    (newer,) = west.put(spec, [1], "newer")  # acked, and not registered yet
    assert west.series is not None
    world.now_us += 1000
    late = send(world, 0, [1], "late")
    assert newer.commit < late.commit and len(kept(world)) == 1
    world.now_us += 100_000
    west.series.tick()  # its clock follows what has landed
    world.now_us = before
    assert lost_writes.discard(west.handle) == 1
    west.apply()
    assert west.rows()[spec.name] == {1: "newer"}


def test_lost_writes_are_discarded_in_batches_of_bounded_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    west, (spec, _) = world.west, world.specs
    fail_over(world, send(world, 0, [1, 2], "base").commit)
    send(world, 0, [1, 3], "late")
    west.put(spec, [1], "between")
    west.register()
    send(world, 0, [1, 2], "later")
    sizes, real = [], lost_writes.rows_in_place

    def rows_in_place(catalog: Catalog, spec: TableSpec, lost: Sequence[restate.LostRows], *rest: Any) -> Any:
        sizes.append(len(lost))
        return real(catalog, spec, lost, *rest)

    monkeypatch.setattr(lost_writes, "_BYTES_MAX", 1)
    monkeypatch.setattr(lost_writes, "rows_in_place", rows_in_place)
    commits, written = [], west.handle.restate

    def restated(logs: Any, commit: int) -> Any:
        commits.append(commit)
        return written(logs, commit)

    monkeypatch.setattr(west.handle, "restate", restated)
    assert lost_writes.discard(west.handle) == 2
    assert sizes == [1, 1] and commits == [world.acked[-1].commit + 1] * 2
    assert west.rows()[spec.name] == {1: "between", 2: "base"} and not kept(world)


def test_lost_writes_whose_copies_are_on_another_host_are_counted_by_frames(world: World) -> None:
    west = world.west
    fail_over(world, send(world, 0, [1], "base").commit)
    send(world, 0, [1, 2], "here")
    assert lost_writes.undecided(west.handle) == (1, 2, "1 frame of lost writes with 2 rows")
    send(world, 0, [3], "there")
    copy = Path(kept(world)[-1].copy)
    copy.unlink()
    frames, rows, text = lost_writes.undecided(west.handle)
    assert (frames, rows) == (2, 2) and "2 frames" in text and str(copy) in text


def test_a_peer_of_the_lost_clusters_name_keeps_nobody_from_taking_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing, "answer", lambda *_: None)
    west, base = world.west, send(world, 0, [1], "base")
    west.ledger.rules.define(
        Peer("east", "old:2181/walship", ClusterId("east", UUID(int=77))), west.ledger.terms.current()
    )
    west.ledger.successions.keep_address(world.east.id, "new:2181/walship")
    note = plan_failover(west.context, "east", at=base.commit).note
    fail_over(world, base.commit)
    assert "walship deletecluster east, walship definecluster east" in note
    assert west.coordination.role().state.role is Role.ACTIVE


def hide(frame: Quarantined) -> Path:
    """Let a copy be on another host; returns where it is."""
    return Path(frame.copy).rename(f"{frame.copy}.hidden")


def test_each_host_merges_the_lost_writes_that_it_can_read(world: World) -> None:
    west, name = world.west, world.specs[0].name
    fail_over(world, send(world, 0, [1], "base").commit)
    send(world, 0, [1], "one host")
    send(world, 0, [2], "the other")
    one, other = kept(world)
    there = hide(other)
    assert lost_writes.merge(west.handle) == 1
    west.apply()
    assert west.rows()[name] == {1: "one host"} and kept(world) == [other]
    assert other.copy in lost_writes.still_undecided(west.handle, name)
    assert lost_writes.discard(west.handle) == 0 and kept(world) == [other]
    there.rename(other.copy)
    assert lost_writes.merge(west.handle) == 1
    west.apply()
    assert west.rows()[name] == {1: "one host", 2: "the other"} and not kept(world)


def test_taken_back_rows_wait_for_the_copies_on_another_host(world: World) -> None:
    west, name = world.west, world.specs[0].name
    base = send(world, 0, [1, 2], "base")
    send(world, 0, [1], "taken back")
    fail_over(world, base.commit)
    send(world, 0, [2], "late")
    (taken,) = [each for each in kept(world) if each.reason.startswith(TAKEN_BACK)]
    (late,) = [each for each in kept(world) if each != taken]
    there = hide(late)
    with pytest.raises(RequestError) as refused:
        lost_writes.merge(west.handle)
    assert late.copy in refused.value.what and "0 frames merged" in refused.value.what
    assert "copy the files here" in refused.value.hint and kept(world) == [taken, late]
    there.rename(late.copy)
    away = hide(taken)
    assert lost_writes.merge(west.handle) == 1  # the host of the late one
    away.rename(taken.copy)
    assert lost_writes.merge(west.handle) == 1  # the other host
    west.apply()
    assert west.rows()[name] == {1: "taken back", 2: "late"} and not kept(world)


def test_copies_of_discarded_lost_writes_are_not_needed(world: World) -> None:
    west, name = world.west, world.specs[0].name
    base = send(world, 0, [1, 2], "base")
    send(world, 0, [1], "taken back")
    fail_over(world, base.commit)
    (taken,) = kept(world)
    assert lost_writes.discard(west.handle) == 1
    Path(taken.copy).unlink()
    send(world, 0, [2], "late")
    assert lost_writes.merge(west.handle) == 1
    west.apply()
    assert west.rows()[name] == {1: "base", 2: "late"} and not kept(world)


def lands_during(world: World, monkeypatch: pytest.MonkeyPatch, *tables: int) -> None:
    """Rows land, and are applied, after the failover saw what has landed and before it made the cut."""
    real = failing.counting_sequences

    def counting(*given: Any) -> Any:
        made = real(*given)
        for table in tables:
            send(world, table, [1], "meanwhile")
        return made

    monkeypatch.setattr(failing, "counting_sequences", counting)


def as_keyless(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let failovers see the first table as one without a key."""
    keyless = [replace(world.specs[0], key=()), world.specs[1]]
    monkeypatch.setattr(world.west.handle, "tables", lambda: keyless)


def test_what_lands_of_a_table_without_a_key_while_the_cut_is_made_counts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    west, (log, typed) = world.west, [spec.name for spec in world.specs]
    send(world, 0, [1], "base")
    base = send(world, 1, [1], "base")
    as_keyless(world, monkeypatch)
    lands_during(world, monkeypatch, 0, 1)
    told: list[str] = []
    west.context.report = told.append
    fail_over(world, base.commit)
    assert west.rows() == {log: {1: "meanwhile"}, typed: {1: "base"}}
    assert len([text for text in told if f"{log} has no key" in text and "counts and is not taken back" in text]) == 1
    (taken,) = kept(world)
    assert taken.table == world.specs[1].uuid and west.context.unfinished() is None


def test_an_error_of_one_table_keeps_no_other_from_being_taken_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    west, (first, second) = world.west, [spec.name for spec in world.specs]
    send(world, 0, [1], "base")
    base = send(world, 1, [1], "base")
    send(world, 0, [1], "later")
    send(world, 1, [1], "later")
    real = take_back.rows_in_place

    def fails_once(catalog: Catalog, spec: TableSpec, *rest: Any) -> Any:
        if spec.name == first:
            raise duckdb.Error("no memory")
        return real(catalog, spec, *rest)

    monkeypatch.setattr(take_back, "rows_in_place", fails_once)
    with pytest.raises(StepFailedError, match=f"are still in {first}: Error: no memory"):
        fail_over(world, base.commit)
    west.apply()
    assert west.rows() == {first: {1: "later"}, second: {1: "base"}}
    monkeypatch.setattr(take_back, "rows_in_place", real)
    failover(west.context, plan_failover(west.context, "east"))
    west.apply()
    assert west.rows() == {first: {1: "base"}, second: {1: "base"}} and len(kept(world)) == 2


def test_rows_are_taken_back_in_batches_of_bounded_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    west, name = world.west, world.specs[0].name
    base = send(world, 0, [1, 2, 3], "base")
    for ids in ([1, 2], [2, 3], [3, 4]):
        send(world, 0, ids, "later")
    limits = []
    real_bound, real_rows = restate.limit_memory, take_back.rows_in_place

    def bound(connection: duckdb.DuckDBPyConnection, scratch: Path, bytes_max: int) -> None:
        real_bound(connection, scratch, bytes_max)
        limits.append(scratch.parent.is_dir())

    sizes = []

    def rows_in_place(catalog: Catalog, spec: TableSpec, lost: Sequence[restate.LostRows], *rest: Any) -> Any:
        sizes.append(len(lost))
        return real_rows(catalog, spec, lost, *rest)

    monkeypatch.setattr(take_back, "_BYTES_MAX", 1)
    monkeypatch.setattr(restate, "limit_memory", bound)
    monkeypatch.setattr(take_back, "rows_in_place", rows_in_place)
    fail_over(world, base.commit)
    assert sizes == [1, 1, 1] and limits == [True] * 3
    assert west.rows()[name] == dict.fromkeys((1, 2, 3), "base") and len(kept(world)) == 3
    lost_writes.merge(west.handle)
    west.apply()
    assert west.rows()[name] == dict.fromkeys((1, 2, 3, 4), "later") and len(limits) == 4


def test_lost_writes_from_before_a_key_column_was_renamed_are_undone_and_written_again(world: World) -> None:
    west, spec = world.west, world.specs[0]
    base = send(world, 0, [1, 2], "base")
    send(world, 0, [1], "later")

    def renamed(given: TableSpec) -> TableSpec:
        moved = rename_column(given, "text", "said", world.now_us)
        return rename_column(rename_column(moved, "id", "number", world.now_us), "said", "id", world.now_us)

    west.tables = [west.ledger.tables.alter(spec.uuid, renamed), world.specs[1]]

    def rows() -> dict[int, str]:
        return {row["number"]: row["id"] for row in read(west.warehouse, west.tables[0]).read_all().to_pylist()}

    fail_over(world, base.commit)
    assert rows() == {1: "base", 2: "base"} and len(kept(world)) == 1
    lost_writes.merge(west.handle)
    west.apply()
    assert rows() == {1: "later", 2: "base"} and not kept(world)


@pytest.mark.parametrize("is_keyless", [True, False])
@pytest.mark.parametrize("is_repeated", [True, False])
def test_a_lost_batch_is_known_once_it_is_merged_and_never_twice_in_a_table_without_a_key(
    world: World, monkeypatch: pytest.MonkeyPatch, is_keyless: bool, is_repeated: bool
) -> None:
    west, spec = world.west, world.specs[0]
    fail_over(world, send(world, 0, [1], "base").commit)
    encode = partial(EncodedBatch.encode, batch_id="load")
    monkeypatch.setattr(failing_over, "EncodedBatch", SimpleNamespace(encode=encode))
    late = send(world, 0, [1], "late")
    group = spec.groups[0].name
    assert not west.ledger.batches.parts(spec.uuid, "load"), "it may be repeated"
    if is_repeated:
        wal = FileId(west.id, "w1", 77)
        (frame,) = kept(world)
        header = lost_writes._read(frame).view.header
        west.ledger.batches.put(
            spec.uuid, "load", [BatchPart(group, 0, 1, header.payload_sha256, wal, 3, 9)], late.commit
        )
    if is_keyless:
        as_keyless(world, monkeypatch)
    if is_keyless and is_repeated:
        with pytest.raises(
            RequestError, match="would be there twice; 0 frames merged.*with all others that are still kept"
        ):
            lost_writes.merge(west.handle)
        assert len(kept(world)) == 1
        assert lost_writes.discard(west.handle, leave_applied=True) == 1
        return
    lost_writes.merge(west.handle)
    west.apply()
    assert west.rows()[spec.name] == {1: "late"}
    (part,) = west.ledger.batches.parts(spec.uuid, "load")
    assert is_repeated or (part.wal, part.sequence) == (late.stream.wal, late.sequence)
