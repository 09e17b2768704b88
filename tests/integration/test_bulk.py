"""Imported files on their way: ranges, streams, kills, relays; every row once, a whole file at one commit time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from replication.coordination.base import HostRecord, Public
from replication.coordination.paths import MemberKind
from replication.core.coverage import Ranges
from replication.core.definition.schema import TableSpec
from replication.core.frame import FrameView, check_payload, scan
from replication.core.ids import FileId
from replication.core.rows.batch import decode_payload
from replication.core.shipping.chunk import Assignment, ChunkAssignment, Tail
from replication.core.shipping.planner import Limits
from replication.core.shipping.streams import Streams
from replication.ledger.base import FileRow
from replication.link.grpc_client import connect
from replication.master.loop import HostDisk, Master, MasterTimes
from replication.settings import WorkerSection
from replication.worker.peers.chunk_streams import ChunkStreams
from replication.worker.peers.chunks import ChunkStep
from replication.worker.peers.loop import PeerConnector
from replication.worker.report.attempts import AttemptLog
from replication.worker.report.progress import ProgressLog
from replication.worker.ship.peer_context import PeerContext
from replication.worker.ship.throttle import Throttle
from replication.writer.importing.importer import Imported
from replication.writer.wal.wal_series import Place
from replication.writer.writer import Writer
from tests.bench.shipping_process import started
from tests.frames_on_disk import registered
from tests.integration import shipping
from tests.integration.shipping import frames_of, provenances, sequences
from tests.sites import Site
from tests.slow_route import slow_route
from tests.waiting import wait_until

ROWS = 400_000
RANGE = 2 << 20


def numbers(count: int = ROWS) -> pa.Table:
    """Rows that do not compress."""
    rng = np.random.default_rng(1)
    text = [bytes(row).hex() for row in rng.integers(0, 256, (count, 16), np.uint8)]
    return pa.table({"id": range(count), "text": text}, schema=pa.schema([("id", pa.int64()), ("text", pa.string())]))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "a.parquet"
    pq.write_table(numbers(), path)
    return path


class World(shipping.World):
    """East and west with imports at east, whose worker is quick to see them."""

    worker: ClassVar[dict[str, float]] = {**shipping.World.worker, "heartbeat_interval_s": 0.1}

    def imported(self, path: Path) -> tuple[Imported, FileRow]:
        """Import at east, whose worker runs; what became of it, and its WAL, registered."""
        config = self.east.config
        wait_until(lambda: self.east.coordination.members(MemberKind.WORKERS), what="the worker to be a member")
        with Writer(
            self.east.ledger, self.east.coordination, Place(str(config.wal_dir), "h0"), config.writer
        ) as writer:
            done = writer.import_file(self.spec, path, "", lambda _: None)
        assert done.position is not None
        (file,) = done.position.ends
        return done, wait_until(lambda: self.registered(file), what="the import to be registered")

    def registered(self, file: FileId) -> FileRow | None:
        row = self.east.ledger.files.get(file)
        assert row is not None
        return row if row.closed and row.length == row.closed_length else None

    def whole(self, file: FileId) -> bool:
        return self.west.received(file, self.east.ledger.files.get(file).closed_length)  # type: ignore[union-attr]


def cut(row: FileRow, count: int = 6) -> list[ChunkAssignment]:
    edges = [row.closed_length * n // count for n in range(count + 1)]
    return [ChunkAssignment(row.file, low, high, "west") for low, high in zip(edges, edges[1:], strict=False)]


def landed_ids(site: Site, spec: TableSpec) -> list[int]:
    """Ids in claimed frames of the landing files, in no order, each payload checked."""
    found: list[int] = []
    for pending in site.ledger.replay.pending():
        content = Path(pending.row.path).read_bytes()[: pending.end]
        for frame in scan(content, 256):
            if frame.header.table == spec.uuid and not pending.duplicates.contains(frame.begin):
                payload = content[frame.payload_begin : frame.end]
                check_payload(frame, payload)
                found += decode_payload(payload, spec.versions[frame.header.group])["id"].to_pylist()
    return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, stack)


def test_an_import_arrives_whole_and_its_repetition_not_at_all(world: World, file: Path) -> None:  # 004-6
    receiver = world.stack.enter_context(world.west.receiver())
    world.stack.enter_context(world.east.worker())
    world.east.assign(world.west.cluster, receiver.port)
    done, row = world.imported(file)
    wait_until(lambda: world.whole(row.file))
    again, same = world.imported(file)
    assert again.repeated and same.file == row.file
    assert again.position is not None and done.position is not None and again.position.ends == done.position.ends
    assert sorted(landed_ids(world.west, world.spec)) == list(range(ROWS))
    commits = {frame.header.commit_hi for frame in landed_frames(world.west, world.spec)}
    assert commits == {done.position.commit}


def landed_frames(site: Site, spec: TableSpec) -> Sequence[FrameView]:
    return [frame for row in site.ledger.files.all() for frame in registered(row)[1] if frame.header.table == spec.uuid]


def shipped(world: World, row: FileRow, port: int, chunks: Sequence[ChunkAssignment], **streams: Any) -> list[int]:
    """Ship chunks by streams of their own; how many there were, each time it was looked."""
    limits = WorkerSection(window_bytes=256 << 10, message_bytes_max=128 << 10)
    make = partial(
        ChunkStep,
        context=PeerContext(world.east.ledger, ProgressLog(world.east.ledger), limits, Throttle()),
        connector=PeerConnector(
            partial(connect, caller=world.east.cluster),
            lambda: 1,
            AttemptLog(world.east.ledger, "h0"),
            limits.retry_min_s,
            limits.retry_max_s,
        ),
    )
    tail = Tail("west", world.west.cluster, (f"127.0.0.1:{port}",))
    made = ChunkStreams(tail, tuple(chunks), 1, make, 3, **streams)
    counts: list[int] = []

    def done() -> bool:
        made.update(tail, tuple(chunks), 1)
        counts.append(len(made._steps))
        return not any(step.waiting for step in made._steps)

    try:
        wait_until(done)
    finally:
        for loop in made.loops:
            loop.stop()
    return counts


def test_its_ranges_go_by_several_streams_at_once_and_in_any_order(world: World, file: Path) -> None:
    receiver = world.stack.enter_context(world.west.receiver())
    with world.east.worker():
        _, row = world.imported(file)
    counts = shipped(world, row, receiver.port, cut(row, 12)[::-1], streams=Streams(3))
    assert max(counts) == 3
    assert sorted(landed_ids(world.west, world.spec)) == list(range(ROWS))
    frames = frames_of(world.west, world.spec)
    assert sequences(world.west, world.spec) == [(0, len(set(frames)))]
    wait_until(lambda: all(r.closed for r in world.west.ledger.files.all() if r.source == row.file))


def test_a_route_that_limits_each_connection_gets_as_many_as_are_allowed(world: World, file: Path) -> None:
    with world.east.worker():
        _, row = world.imported(file)
    receiver = world.stack.enter_context(world.west.receiver())
    port = world.stack.enter_context(slow_route(receiver.port, 2e6))
    counts = shipped(world, row, port, cut(row, 40), clock_s=lambda: time.monotonic() * 4)  # trials of half a second
    assert max(counts) == 3, counts
    assert sorted(landed_ids(world.west, world.spec)) == list(range(ROWS))


@pytest.mark.parametrize("victim", ["receiver", "worker"])
def test_after_a_kill_ranges_go_on_inside(world: World, file: Path, victim: str) -> None:
    with world.east.worker():
        _, row = world.imported(file)
    chunks = cut(row, 2)
    sides = {"receiver": ("receiver", str(world.folder), str(world.west.cluster))}

    def landed() -> int:
        return world.west.ledger.landing.received(row.file).total

    with started(*sides["receiver"]) as receiver:
        assert receiver.stdout is not None
        port = int(receiver.stdout.readline())
        if victim == "receiver":
            with world.east.worker():
                world.east.assign(world.west.cluster, port, *chunks, chunked_files=(row.file,))
                wait_until(lambda: landed() > RANGE // 2, what="some of the file to land")
                receiver.kill()
                receiver.wait()
        else:
            arguments = ("worker", str(world.folder), str(world.east.cluster), str(world.west.cluster), str(port))
            with started(*arguments) as worker:
                wait_until(lambda: landed() > RANGE // 2, what="some of the file to land")
                worker.kill()
            world.east.term = world.east.ledger.terms.raise_to_next()
    before = landed()
    assert before > RANGE // 2
    with started(*sides["receiver"]) as receiver, world.east.worker():
        assert receiver.stdout is not None
        world.east.assign(world.west.cluster, int(receiver.stdout.readline()), *chunks, chunked_files=(row.file,))
        wait_until(lambda: world.whole(row.file))
    assert sorted(landed_ids(world.west, world.spec)) == list(range(ROWS))
    sent_twice = len(frames_of(world.west, world.spec)) - len(set(frames_of(world.west, world.spec)))
    lengths = [frame.end - frame.begin for frame in landed_frames(world.west, world.spec)]
    assert sent_twice * min(lengths) < before, "what had landed is not sent again from the start"


def test_a_relay_ships_an_import_on_with_itself_in_the_provenance(world: World, file: Path) -> None:
    north = world.site("north")
    world.west.ledger.tables.create(world.spec)
    world.west.send_to(north, world.spec)
    on = world.stack.enter_context(north.receiver())
    receiver = world.stack.enter_context(world.west.receiver())
    world.stack.enter_context(world.east.worker())
    world.stack.enter_context(world.west.worker())
    world.east.assign(world.west.cluster, receiver.port)
    world.west.assign(north.cluster, on.port)
    world.imported(file)
    wait_until(lambda: len(landed_ids(north, world.spec)) >= ROWS)
    assert sorted(landed_ids(north, world.spec)) == list(range(ROWS))
    assert {path for path in provenances(north) if path[0] == "east"} == {("east", "west", "north")}


def test_a_master_cuts_a_large_import_for_the_streams_of_one_worker(world: World, file: Path) -> None:
    receiver = world.stack.enter_context(world.west.receiver())
    with world.east.worker():
        _, row = world.imported(file)
    public = Public(world.west.cluster, "0", (f"127.0.0.1:{receiver.port}",))
    limits, times = Limits(range_bytes=RANGE, streams=4), MasterTimes(interval_s=0.05, poll_s=0.2)
    east = world.east
    master = Master(east.ledger, east.coordination, HostDisk(east.files, "h0"), lambda _: public, limits, times)
    stop = threading.Event()
    thread = threading.Thread(target=master.run, args=(stop,))
    assigned: set[ChunkAssignment] = set()

    def seen() -> bool:
        for read in east.coordination.assignments().values():
            assigned.update(Assignment.decode(read.content).chunks)
        return world.whole(row.file)

    east.coordination.put_host(HostRecord("h0", str(east.config.data_dir), east.config.ledger_url))
    member = east.coordination.enrol(MemberKind.WORKERS, "h0", {})
    thread.start()
    try:
        wait_until(lambda: seen() or assigned, what="ranges")
        member.leave()
        world.stack.enter_context(east.worker())
        wait_until(seen, what="the file to arrive")
    finally:
        stop.set()
        thread.join()
        master.close()
    ranges = Ranges.union_of((chunk.begin, chunk.end) for chunk in assigned if chunk.file == row.file)
    assert ranges.contains(256, row.closed_length)
    assert {chunk.begin % RANGE for chunk in assigned if chunk.begin > 256} == {0}
    assert sorted(landed_ids(world.west, world.spec)) == list(range(ROWS))
