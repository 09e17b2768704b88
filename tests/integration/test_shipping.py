"""From WAL to landed frames through worker and receiver: real sockets, files and ledgers, and things going wrong."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from replication.core.ids import NIL_UUID
from replication.core.shipping.chunk import ChunkAssignment
from replication.files.reading import frame_start
from replication.link import wire
from replication.link.base import Data
from replication.link.grpc_client import GrpcShipSession
from replication.worker.ship import opening
from replication.worker.ship.shipment import Shipment
from tests.bench.shipping_process import started
from tests.frames_on_disk import registered
from tests.integration.shipping import World, frames_of, provenances, sequences, sequences_by_wal
from tests.sites import Site, rows, table
from tests.waiting import wait_until


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, stack)


def test_what_is_appended_arrives_over_rolls_and_is_claimed_on_both_sides(world: World) -> None:
    world.run()
    wals = []
    for n in range(3):
        wals.append(world.east.wal())
        for m in range(4):
            wals[-1].append(world.spec, rows(n * 100 + m * 10, 10))
        wals[-1].finish()
    wait_until(lambda: all(world.arrived(wal) for wal in wals))
    assert len(frames_of(world.west, world.spec)) == len(set(frames_of(world.west, world.spec))) == 12
    wait_until(lambda: all(row.closed for row in world.west.ledger.files.all() if row.source in {w.file for w in wals}))
    wait_until(lambda: sequences(world.east, world.spec) == sequences(world.west, world.spec) == [(0, 4)])


def test_bytes_of_an_open_file_are_at_the_peer_before_it_closes(world: World) -> None:  # 004-8
    world.run()
    wal = world.east.wal()
    wal.append(world.spec, rows(0, 10))
    wait_until(lambda: world.arrived(wal))
    here, there = world.east.ledger.files.get(wal.file), world.west.ledger.landing.received(wal.file)
    assert here is not None and not here.closed and there.contains(256, wal.length)
    wal.append(world.spec, rows(10, 10))  # and shipping goes on from the offset that it had come to
    wait_until(lambda: world.arrived(wal))
    assert world.west.ledger.landing.received(wal.file).spans == ((256, wal.length),)


def test_frames_that_wait_together_go_as_one_message(world: World, monkeypatch: pytest.MonkeyPatch) -> None:  # 004-13
    sent: list[Data] = []
    send = GrpcShipSession.send

    def noting(session: GrpcShipSession, message: Data) -> None:
        sent.append(message)
        send(session, message)

    monkeypatch.setattr(GrpcShipSession, "send", noting)
    wal = world.written(frames=8)
    world.run()
    wait_until(lambda: world.arrived(wal))
    ours = [message for message in sent if message.file == wal.file]
    assert [(message.begin, message.end) for message in ours] == [(256, wal.length)]
    assert len(frames_of(world.west, world.spec)) == 8


def test_of_more_files_than_an_opening_may_name_all_arrive(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "HELLO_FILES_MAX", 2)
    monkeypatch.setattr(wire, "HELLO_FILES_MAX", 2)
    wals = [world.written(frames=2) for _ in range(5)]
    world.run()
    wait_until(lambda: all(world.arrived(wal) for wal in wals))
    assert sequences(world.west, world.spec) == [(0, 2)]


def test_only_tables_with_a_rule_go_and_skipped_bytes_count_as_shipped(world: World) -> None:  # 004-28
    private = table("ops.private")
    world.east.ledger.tables.create(private)
    world.run()
    wal = world.east.wal()
    wal.append(private, rows(0, 10))
    wal.append(world.spec, rows(0, 10))
    wal.append(private, rows(10, 10))
    wal.finish()
    wait_until(lambda: world.arrived(wal))
    assert sequences(world.west, private) == [] and sequences(world.west, world.spec) == [(0, 1)]
    for row in world.west.ledger.files.all():
        assert b"private" not in registered(row)[0]
    assert world.west.ledger.landing.received(wal.file).spans == ((256, wal.length),)


def test_a_rule_made_later_owes_only_what_comes_then(world: World) -> None:
    late = table("ops.late")
    world.east.ledger.tables.create(late)
    world.run()
    wal = world.east.wal()
    wal.append(late, rows(0, 10))
    wal.append(world.spec, rows(0, 10))
    wait_until(lambda: world.arrived(wal))
    wait_until(lambda: sequences(world.east, late) == [(0, 1)])
    world.east.send_to(world.west, late)
    world.east.coordination.announce()
    wal.append(late, rows(10, 10))
    wait_until(lambda: world.arrived(wal))
    wait_until(lambda: sequences(world.west, late) == [(1, 2)])


def test_batch_ids_and_claims_of_own_frames_are_registered(world: World) -> None:
    world.run()
    wal = world.east.wal()
    wal.append(world.spec, rows(0, 10), batch_id="load-7")
    wait_until(lambda: world.east.ledger.batches.parts(world.spec.uuid, "load-7"))
    wait_until(lambda: sequences(world.east, world.spec) == [(0, 1)])
    (row,) = [row for row in world.east.ledger.files.all() if row.file == wal.file]
    assert row.length == wal.length


def test_closed_time_moves_on_and_reaches_the_peer_though_nobody_writes(world: World) -> None:
    world.run()
    first = wait_until(world.east.ledger.time.closed)
    wait_until(lambda: world.east.ledger.time.closed() > first)
    wait_until(lambda: sequences(world.west, NIL_UUID))
    wait_until(lambda: world.west.ledger.time.replicated().get(world.east.cluster) is not None)
    wait_until(lambda: world.west.ledger.time.replicated()[world.east.cluster].t >= first)


def test_a_receiver_killed_in_the_middle_loses_and_doubles_nothing(world: World) -> None:
    wal = world.written(200, width=200)
    with started("receiver", str(world.folder), str(world.west.cluster)) as receiver:
        assert receiver.stdout is not None
        world.stack.enter_context(world.east.worker())
        world.east.assign(world.west.cluster, int(receiver.stdout.readline()))
        wait_until(lambda: sequences(world.west, world.spec), what="some frames to land")
        receiver.kill()
    for n in range(20):
        wal.append(world.spec, rows(20_000 + n, 1))
    with started("receiver", str(world.folder), str(world.west.cluster)) as receiver:
        assert receiver.stdout is not None
        world.east.assign(world.west.cluster, int(receiver.stdout.readline()))
        wait_until(lambda: world.arrived(wal), timeout_s=30)
    assert sequences(world.west, world.spec) == [(0, 220)]
    assert world.west.ledger.landing.received(wal.file).contains(256, wal.length)


def test_a_worker_killed_in_the_middle_goes_on_where_it_was(world: World) -> None:
    wal = world.written(200, width=200)
    receiver = world.stack.enter_context(world.west.receiver())
    arguments = ("worker", str(world.folder), str(world.east.cluster), str(world.west.cluster), str(receiver.port))
    with started(*arguments) as worker:
        wait_until(lambda: sequences(world.west, world.spec), what="some frames to land")
        worker.kill()
    with started(*arguments):
        wait_until(lambda: world.arrived(wal), timeout_s=30)
    assert sequences(world.west, world.spec) == [(0, 200)]


def test_chunks_go_beside_the_tail_and_fill_the_file(world: World) -> None:
    wal = world.written(50)
    length = wal.finish()
    cuts = [0, length // 3, length // 3 + 7, 2 * length // 3, length]
    chunks = [ChunkAssignment(wal.file, low, high, "west") for low, high in zip(cuts, cuts[1:], strict=False)]
    receiver = world.stack.enter_context(world.west.receiver())
    world.stack.enter_context(world.east.worker())
    world.east.assign(world.west.cluster, receiver.port, *reversed(chunks), chunked_files=(wal.file,))
    wait_until(lambda: world.arrived(wal))
    assert sequences(world.west, world.spec) == [(0, 50)]
    assert len(frames_of(world.west, world.spec)) == 50


def test_a_worker_ships_chunks_of_another_hosts_file_when_it_can_read_it(world: World) -> None:
    wal = world.east.wal(host="h1")
    for n in range(20):
        wal.append(world.spec, rows(n * 50, 50))
    length = wal.finish()
    receiver = world.stack.enter_context(world.west.receiver())
    world.stack.enter_context(world.east.worker())
    world.east.assign(world.west.cluster, receiver.port, ChunkAssignment(wal.file, 0, length, "west"))
    wait_until(lambda: world.arrived(wal))
    assert sequences(world.west, world.spec) == [(0, 20)]


def test_chunks_that_come_in_any_order_end_with_their_landing_file_closed(world: World) -> None:
    wal = world.written(30)
    length = wal.finish()
    receiver = world.stack.enter_context(world.west.receiver())
    world.stack.enter_context(world.east.worker())
    parts = [(2 * length // 3, length), (0, length // 3), (length // 3, 2 * length // 3)]
    for low, high in parts:
        chunk = ChunkAssignment(wal.file, low, high, "west")
        world.east.assign(world.west.cluster, receiver.port, chunk, chunked_files=(wal.file,))
        begin, end = (frame_start(wal.path, at, length) for at in (low, high))
        wait_until(lambda b=begin, e=end: world.west.ledger.landing.received(wal.file).contains(b, e))
    wait_until(lambda: world.arrived(wal))
    landed = wait_until(lambda: [r for r in world.west.ledger.files.all() if r.source == wal.file and r.closed])
    assert len(landed) == 1, "one landing file, closed when all of it is there and not before"


def test_a_chunk_whose_ack_is_lost_with_its_stream_is_known_to_be_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = world.written(1)
    length = wal.finish()
    receiver = world.stack.enter_context(world.west.receiver())
    world.stack.enter_context(world.east.worker())
    chunk = ChunkAssignment(wal.file, 0, length, "west")
    with monkeypatch.context() as lost:
        lost.setattr(Shipment, "_take", lambda *_: None)
        world.east.assign(world.west.cluster, receiver.port, chunk, chunked_files=(wal.file,))
        wait_until(lambda: world.west.received(wal.file, length))
        assert not world.arrived(wal)
        world.east.term = world.east.ledger.terms.raise_to_next()
        world.east.assign(world.west.cluster, receiver.port, chunk, chunked_files=(wal.file,))
        wait_until(lambda: world.arrived(wal), what="the ledger to know")


def test_a_closed_file_whose_acks_are_lost_with_the_stream_is_known_to_be_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = world.written(1)
    length = wal.finish()
    receiver = world.stack.enter_context(world.west.receiver())
    with monkeypatch.context() as lost, world.east.worker():
        lost.setattr(Shipment, "_take", lambda *_: None)
        world.east.assign(world.west.cluster, receiver.port)
        wait_until(lambda: world.west.received(wal.file, length))
    assert not world.arrived(wal)
    with world.east.worker():
        world.east.assign(world.west.cluster, receiver.port)
        wait_until(lambda: world.arrived(wal), what="the ledger to know")


def test_one_refused_table_holds_up_no_other_and_comes_when_it_is_taken(world: World) -> None:
    taken = table("ops.weather")
    world.west.ledger.tables.create(taken)
    other = table("ops.weather")
    world.east.ledger.tables.create(other)
    world.east.send_to(world.west, other)
    world.run()
    wal = world.east.wal()
    for n in range(5):
        wal.append(other, rows(n, 1))
        wal.append(world.spec, rows(n, 1))
    wait_until(lambda: sequences(world.west, world.spec) == [(0, 5)])
    assert not world.arrived(wal)
    wait_until(lambda: any("ops.weather" in p.error for p in world.east.ledger.files.progress("west")))
    world.west.ledger.tables.drop(taken.uuid)
    wait_until(lambda: world.arrived(wal), timeout_s=30)
    assert sequences(world.west, other) == [(0, 5)] and sequences(world.west, world.spec) == [(0, 5)]


def test_one_bad_peer_does_not_stop_another(world: World) -> None:
    north = world.site("north")
    world.east.send_to(north, world.spec)
    receiver = world.stack.enter_context(world.west.receiver())
    world.stack.enter_context(world.east.worker())
    world.east.assign_all([(world.west.cluster, receiver.port), (north.cluster, 9)])
    wal = world.east.wal()
    wal.append(world.spec, rows(0, 10))
    wait_until(lambda: world.arrived(wal))
    wait_until(lambda: any(p.error for p in world.east.ledger.files.progress("north")))


def test_nothing_loops_and_what_landed_goes_on_to_the_next_cluster(world: World) -> None:  # 004-11
    north = world.site("north")
    world.run()
    wal = world.east.wal()
    wal.append(world.spec, rows(0, 10))
    wait_until(lambda: sequences(world.west, world.spec) == [(0, 1)])
    world.west.send_to(world.east, world.spec)
    world.west.send_to(north, world.spec)
    back = world.stack.enter_context(world.east.receiver())
    on = world.stack.enter_context(north.receiver())
    world.stack.enter_context(world.west.worker())
    world.west.assign_all([(world.east.cluster, back.port), (north.cluster, on.port)])
    wal.append(world.spec, rows(10, 10))
    own = world.west.wal()
    own.append(world.spec, rows(100, 10))
    wait_until(lambda: len(sequences_by_wal(north, world.spec)) == 2, timeout_s=30)
    wait_until(lambda: any(wal.startswith("west") for wal in sequences_by_wal(world.east, world.spec)))
    assert all(wal.startswith("west") for wal, _ in frames_of(world.east, world.spec))
    wait_until(lambda: ("east", "west", "north") in provenances(north))


def test_a_frozen_receiver_is_noticed_within_15_s_and_waited_for(world: World) -> None:
    with started("receiver", str(world.folder), str(world.west.cluster)) as receiver:
        assert receiver.stdout is not None
        world.stack.enter_context(world.east.worker())
        world.east.assign(world.west.cluster, int(receiver.stdout.readline()))
        wal = world.east.wal()
        wal.append(world.spec, rows(0, 10))
        wait_until(lambda: world.arrived(wal))
        os.kill(receiver.pid, signal.SIGSTOP)
        begin = time.monotonic()
        wal.append(world.spec, rows(10, 10))
        try:
            wait_until(
                lambda: any(p.error for p in world.east.ledger.files.progress("west")),
                timeout_s=20,
                what="an error in the status",
            )
            assert time.monotonic() - begin <= 15
        finally:
            os.kill(receiver.pid, signal.SIGCONT)
        wait_until(lambda: world.arrived(wal), timeout_s=30)
    assert sequences(world.west, world.spec) == [(0, 2)]


def test_an_idle_receiver_that_freezes_is_noticed_within_15_s(world: World) -> None:
    """Nothing is sent or awaited: only HTTP/2's keepalive can tell."""
    with started("receiver", str(world.folder), str(world.west.cluster)) as receiver:
        assert receiver.stdout is not None
        port = receiver.stdout.readline().strip()
        wal = world.east.wal()
        wal.append(world.spec, rows(0, 10))
        clusters = (str(world.east.cluster), str(world.west.cluster))
        with started("worker", str(world.folder), *clusters, port, "3600"):
            wait_until(lambda: world.arrived(wal), timeout_s=30)
            os.kill(receiver.pid, signal.SIGSTOP)
            begin = time.monotonic()
            try:
                wait_until(
                    lambda: any(p.error for p in world.east.ledger.files.progress("west")),
                    timeout_s=20,
                    what="an error",
                )
                assert time.monotonic() - begin <= 15
            finally:
                os.kill(receiver.pid, signal.SIGCONT)
            wal.append(world.spec, rows(10, 10))
            wait_until(lambda: world.arrived(wal), timeout_s=30)
    assert sequences(world.west, world.spec) == [(0, 2)]


def test_work_goes_on_without_zookeeper(world: World) -> None:  # 004-35
    world.run()
    wal = world.east.wal()
    wal.append(world.spec, rows(0, 10))
    wait_until(lambda: world.arrived(wal))
    session = world.east.coordination._keeper.session()
    world.east.ensemble.cut(session)
    wal.append(world.spec, rows(10, 10))
    wait_until(lambda: world.arrived(wal))
    wal.finish()
    successor = world.east.wal()
    successor.append(world.spec, rows(20, 10))
    wait_until(lambda: world.arrived(successor))
    world.east.ensemble.heal()


def test_a_damaged_wal_is_told_and_never_shipped_past(world: World) -> None:
    wal = world.east.wal()
    ends = [wal.append(world.spec, rows(n * 10, 10)) for n in range(3)]
    with open(wal.path, "r+b") as file:
        file.seek(ends[0] + 100)
        byte = file.read(1)[0]
        file.seek(ends[0] + 100)
        file.write(bytes((byte ^ 1,)))
    world.run()
    wait_until(lambda: any(p.error for p in world.east.ledger.files.progress("west") if p.file == wal.file))
    assert sequences(world.west, world.spec) in ([], [(0, 1)])
    assert not world.arrived(wal)


def test_a_peer_that_was_made_again_is_not_shipped_to(world: World) -> None:
    again = Site(world.folder / "again", "west")
    world.stack.callback(again.close)
    receiver = world.stack.enter_context(again.receiver())
    world.stack.enter_context(world.east.worker())
    world.east.assign(world.west.cluster, receiver.port)
    wal = world.east.wal()
    wal.append(world.spec, rows(0, 10))
    wait_until(lambda: any("define it again" in p.error for p in world.east.ledger.files.progress("west")))
    assert not again.ledger.files.all()
