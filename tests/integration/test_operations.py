"""Pausing, throttling and draining a peer while worker and receiver run: real sockets, files and ledgers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from peer.client.draining import Drained, drain
from peer.client.operations import Operations
from peer.status.collect import ClusterStatus, collect, durable_lengths
from peer.status.members import members_of
from replication.coordination.base import HostRecord
from replication.coordination.paths import Election, MemberKind
from replication.core.coverage import Ranges
from replication.core.definition.schema import TableSpec
from replication.errors import PeerRefusedError, RequestError, UnknownPeerError, WaitTimeoutError
from replication.ledger.base import FileKind, PeerProgress
from tests.sites import SCHEMA, Site, Wal, rows, table
from tests.waiting import wait_until


class World:
    """East sends ``spec`` to west; both run."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.stack = stack
        worker = {"retry_min_s": 0.05, "retry_max_s": 0.5}
        self.east, self.west = (Site(folder, name, worker=worker) for name in ("east", "west"))
        for site in (self.east, self.west):
            stack.callback(site.close)
        self.spec = table()
        self.east.ledger.tables.create(self.spec)
        self.east.send_to(self.west, self.spec)
        receiver = stack.enter_context(self.west.receiver())
        self.port = receiver.port
        stack.enter_context(self.east.worker())
        self.east.assign(self.west.cluster, self.port)
        wait_until(lambda: self.east.coordination.members(MemberKind.WORKERS))
        self.operations = Operations(self.east.ledger, self.east.coordination)

    def landed(self, wal: Wal) -> int:
        return self.west.ledger.landing.received(wal.file).end

    def arrived(self, wal: Wal) -> bool:
        return any(
            progress.file == wal.file and progress.shipped.contains(256, wal.length)
            for progress in self.east.ledger.files.progress("west")
        )

    def drain(
        self, name: str = "", timeout_s: float = 20.0, report: Callable[[int, int], None] = lambda *_: None
    ) -> Drained:
        ledger = self.east.ledger
        return drain(ledger, "west", name, lambda: durable_lengths(ledger, "h0"), timeout_s, report)

    def status(self) -> ClusterStatus:
        return collect(self.east.config, self.east.ledger, members_of(self.east.coordination))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, stack)


def noise(count: int, width: int = 1000) -> pa.Table:
    """Rows that do not compress."""
    return pa.table({"id": range(count), "text": [os.urandom(width // 2).hex() for _ in range(count)]}, schema=SCHEMA)


def test_a_paused_peer_gets_nothing_and_all_of_it_once_resumed(world: World) -> None:  # 004-5
    wal = world.east.wal()
    wal.append(world.spec, rows(0, 10))
    wait_until(lambda: world.arrived(wal))
    assert world.operations.pause("west") == ("h0",)
    before = world.landed(wal)
    wal.append(world.spec, rows(10, 10))
    wal.finish()
    other = world.east.wal()
    other.append(world.spec, rows(20, 10))
    wait_until(lambda: all(world.east.ledger.files.get(w.file).length == w.length for w in (wal, other)))  # type: ignore[union-attr]
    (state,) = world.status().sending
    assert state.state == "paused" and world.status().peers[0].state == "paused"
    assert world.landed(wal) == before and world.landed(other) == 0
    assert world.east.ledger.files.retirable("h0") == []
    with pytest.raises(RequestError, match="west is paused, with .* bytes pending") as refused:
        world.drain()
    assert "walship resume west" in refused.value.hint
    world.operations.resume("west")
    wait_until(lambda: world.arrived(wal) and world.arrived(other))
    assert world.status().sending[0].state == "sending"


def test_pausing_says_which_worker_has_not_acted_on_it(world: World) -> None:
    frozen = world.east.coordination.enrol(MemberKind.WORKERS, "h9", {"version": "x", "announcement": 0})
    with pytest.raises(WaitTimeoutError, match="west is paused; workers on h9 have not"):
        world.operations.pause("west", timeout_s=2)
    frozen.leave()
    assert world.operations.resume("west") == ("h0",)
    with pytest.raises(UnknownPeerError, match="no peer 'north'"):
        world.operations.pause("north")


def test_a_throttled_peer_gets_its_rate_live_without_a_new_stream(world: World) -> None:
    streams = []
    rate = 1_000_000
    world.operations.throttle("west", rate)
    wal = world.east.wal()
    wal.append(world.spec, noise(10))
    wait_until(lambda: world.arrived(wal))
    for _ in range(40):
        wal.append(world.spec, noise(100))
    started_s, start = time.monotonic(), world.landed(wal)
    wait_until(lambda: world.landed(wal) - start > 1_200_000)
    assert (world.landed(wal) - start) / (time.monotonic() - started_s) < rate * 1.6
    assert world.landed(wal) < wal.length, "the rest waits its turn"
    assert world.status().sending[0].rate == rate
    (threads,) = [t for t in threading.enumerate() if t.name.startswith("replies")]
    streams.append(threads.ident)
    world.operations.throttle("west", 0)
    wait_until(lambda: world.arrived(wal), timeout_s=10)
    assert [t.ident for t in threading.enumerate() if t.name.startswith("replies")] == streams


def test_workers_share_a_peers_rate(world: World) -> None:
    others = [
        world.east.coordination.enrol(MemberKind.WORKERS, f"h{n}", {"version": "x", "announcement": 10**6})
        for n in (1, 2, 3)
    ]
    world.operations.throttle("west", 2_000_000)
    wal = world.east.wal()
    wal.append(world.spec, noise(10))
    wait_until(lambda: world.arrived(wal))
    for _ in range(15):
        wal.append(world.spec, noise(100))
    started_s, start = time.monotonic(), world.landed(wal)
    wait_until(lambda: world.landed(wal) - start > 700_000)
    assert (world.landed(wal) - start) / (time.monotonic() - started_s) < 500_000 * 1.8
    for other in others:
        other.leave()
    wait_until(lambda: world.arrived(wal))


def test_a_drain_waits_for_what_is_pending_at_the_call_and_not_for_later_writes(world: World) -> None:
    wal = world.east.wal()
    wal.append(world.spec, rows(0, 10))
    wait_until(lambda: world.arrived(wal))
    world.operations.throttle("west", 20_000)
    for _ in range(4):
        wal.append(world.spec, noise(100))
    length, result, waiting = wal.length, list[Drained](), threading.Event()

    def drained_then() -> None:
        result.append(world.drain(world.spec.name, 60, lambda *_: waiting.set()))

    thread = threading.Thread(target=drained_then)
    thread.start()
    assert waiting.wait(60)
    landed = world.landed(wal)
    world.operations.throttle("west", 400_000)
    for _ in range(40):
        wal.append(world.spec, noise(100))
    thread.join()
    (drained,) = result
    assert drained.files == 1 and length - landed <= drained.pending_bytes < length
    assert world.landed(wal) >= length and not world.arrived(wal)
    world.operations.throttle("west", 0)
    assert world.drain().pending_bytes > 0
    with pytest.raises(UnknownPeerError, match="no peer 'north'"):
        drain(world.east.ledger, "north", "", dict, 1, lambda *_: None)
    other = table("ops.other")
    world.east.ledger.tables.create(other)
    with pytest.raises(UnknownPeerError, match="ops.other does not go to west"):
        world.drain("ops.other")


def test_a_drain_gives_up_in_time_and_says_what_is_left(world: World) -> None:
    world.operations.throttle("west", 50_000)
    wal = world.east.wal()
    wal.append(world.spec, rows(0, 1))
    wait_until(lambda: world.arrived(wal))
    for _ in range(10):
        wal.append(world.spec, noise(100))
    with pytest.raises(WaitTimeoutError, match="west is not drained within 0.3 s: .* of .* bytes are left in 1 file"):
        world.drain(timeout_s=0.3)


def test_a_held_table_neither_lags_others_nor_lets_itself_be_drained(world: World) -> None:
    refused = table("ops.weather")
    world.west.ledger.tables.create(table("ops.weather"))
    world.east.ledger.tables.create(refused)
    world.east.send_to(world.west, refused)
    world.east.coordination.announce()
    wal = world.east.wal()
    for n in range(5):
        wal.append(refused, rows(n, 1))
        wal.append(world.spec, rows(n, 1))
    assert world.drain(world.spec.name).table == world.spec.name
    wait_until(lambda: world.east.ledger.sending.held())
    states = {row.table: row for row in world.status().peers}
    assert states["ops.flights"].state == "caught_up" and states["ops.flights"].last_error == ""
    assert (
        states["ops.weather"].state == "held" and "another table named ops.weather" in states["ops.weather"].last_error
    )
    (peer,) = world.status().sending
    assert peer.state == "held" and [held.table for held in peer.held] == ["ops.weather"]
    for name in ("ops.weather", ""):
        with pytest.raises(PeerRefusedError, match="west has all that can be sent now; .* bytes are held") as error:
            world.drain(name)
        assert "--remote-table" in error.value.hint


def sending_pair(folder: Path, stack: ExitStack, retry_max_s: float) -> tuple[Site, Site, TableSpec]:
    """East, which sends a table to west; nothing runs yet."""
    worker = {"retry_min_s": 0.2, "retry_max_s": retry_max_s}
    east, west = (Site(folder, name, worker=worker) for name in ("east", "west"))
    for site in (east, west):
        stack.callback(site.close)
    spec = table()
    east.ledger.tables.create(spec)
    east.send_to(west, spec)
    return east, west, spec


def test_status_counts_retries_and_says_when_the_next_is(tmp_path: Path) -> None:
    with ExitStack() as stack:
        east, west, spec = sending_pair(tmp_path, stack, retry_max_s=30.0)
        stack.enter_context(east.worker())
        east.assign(west.cluster, 9)

        def sending() -> object:
            return collect(east.config, east.ledger, members_of(east.coordination)).sending[0]

        failing = wait_until(lambda: (s := sending()).retries >= 3 and s.next_try_s and s)  # type: ignore[attr-defined]
        assert failing.state == "failing" and 0 < failing.next_try_s <= 30 and failing.retries_total >= 3
        assert "cannot be reached" in failing.last_error
        receiver = stack.enter_context(west.receiver())
        east.assign(west.cluster, receiver.port)
        wait_until(lambda: sending().state == "sending")  # type: ignore[attr-defined]
        assert sending().retries == 0 and sending().retries_total >= 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_peer_that_was_away_fails_no_longer_though_nothing_is_to_be_sent(tmp_path: Path, restarted: bool) -> None:
    with ExitStack() as stack:
        east, west, spec = sending_pair(tmp_path, stack, retry_max_s=0.5)
        wals = [east.wal(), east.wal("other")]
        for wal in wals:
            wal.append(spec, rows(0, 10))

        def errors() -> set[str]:
            return {known.error for known in east.ledger.files.progress("west") if known.file in {w.file for w in wals}}

        with ExitStack() as first:
            first.enter_context(east.worker())
            with west.receiver() as receiver:
                east.assign(west.cluster, receiver.port)
                wait_until(lambda: errors() == {""}, what="both at the peer")
            wait_until(lambda: len(errors()) == 1 and "" not in errors(), what="an error of both")
            for wal in wals:
                wal.finish()
            if restarted:
                first.close()
                of_before = [
                    PeerProgress(wal.file, "west", Ranges(), 0, error="another that came before") for wal in wals
                ]
                east.ledger.files.record(of_before)
                first = stack.enter_context(ExitStack())
                first.enter_context(east.worker())
            receiver = stack.enter_context(west.receiver())
            east.assign(west.cluster, receiver.port)
            wait_until(lambda: errors() == {""}, what="no error")
            assert east.ledger.files.failing() == frozenset()


def test_a_host_is_forgotten_once_it_is_gone_and_nothing_lies_there(world: World) -> None:
    world.east.coordination.put_host(HostRecord("h0", "/data", ""))
    world.east.coordination.put_host(HostRecord("h9", "/data", ""))
    with pytest.raises(RequestError, match="no host h7"):
        world.operations.remove_host("h7")
    with pytest.raises(RequestError, match="h0 is running"):
        world.operations.remove_host("h0")
    for election in Election:
        candidacy = world.east.coordination.campaign("h9", election)
        candidacy.leads()
        with pytest.raises(RequestError, match="h9 is running"):
            world.operations.remove_host("h9")
        candidacy.withdraw()
    lost = world.east.ledger.files.allocate("h9", FileKind.WAL, "/data/wal", "boot", "w9")
    with pytest.raises(RequestError, match=r"host h9 has 1 file of this cluster, for example h9/0+.*salvage"):
        world.operations.remove_host("h9")
    world.east.ledger.files.close(lost.file, 0)
    world.east.ledger.files.retire(lost.file, world.east.term)
    world.operations.remove_host("h9")
    assert [host.slot for host in world.east.coordination.hosts()] == ["h0"]
    world.east.ledger.replay.note_replayer("h8", True)  # ZooKeeper has lost its record
    assert [host.slot for host in world.status().members.hosts] == ["h0", "h8"]
    world.operations.remove_host("h8")
    assert [host.slot for host in world.status().members.hosts] == ["h0"]
    assert world.east.ledger.replay.replayers() == ()
