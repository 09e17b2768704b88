"""A shipment over a link that loses, doubles, reorders and damages messages: everything lands, and counts once."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from peer.receive.landing import Landing
from peer.receive.limits import LandingLimits
from peer.receive.reception import Reception, SeenCluster
from replication.core.coverage import Ranges
from replication.core.routes.freshness import ClosedNotice
from replication.errors import CoordinationError, CorruptFrameError, FormatError, LedgerBusyError, TransferError
from replication.ledger.base import FileKind
from replication.link.base import Ack, Data, Reply
from replication.settings import ReceiverSection, WorkerSection
from replication.worker.files.control_log import ControlLog
from replication.worker.files.host_files import Source
from replication.worker.report.progress import ProgressLog
from replication.worker.ship.opening import Destination, open_shipment
from replication.worker.ship.peer_context import PeerContext
from replication.worker.ship.schemas import PeerSchemas
from replication.worker.ship.selection import FrameFilter
from replication.worker.ship.shipment import Shipment
from replication.worker.ship.throttle import Throttle
from tests.fakes.link import LinkFaults, MemoryLink
from tests.sites import Site, Wal, rows, table

LIMITS = WorkerSection(window_bytes=10_000, message_bytes_max=4000, ack_timeout_s=0.2)


def landing_of(site: Site) -> Landing:
    limits = LandingLimits(
        str(site.config.landing_dir), str(site.config.data_dir / "quarantine"), "h0", site.boot, 0, 1 << 40, 20_000
    )
    return Landing(site.ledger, site.files, limits)


def ship_until_there(east: Site, west: Site, wal: Wal, link: MemoryLink, deadline_s: float = 300.0) -> int:
    """Ship as a tail does, opening the stream again whenever it fails; how often that was."""
    progress = ProgressLog(east.ledger)
    durable, failures = Ranges(), 0
    deadline = time.monotonic() + deadline_s
    while not durable.contains(256, wal.length):
        assert time.monotonic() < deadline, f"only {durable} of {wal.length} bytes after {failures} failures"
        context = PeerContext(east.ledger, progress, LIMITS, Throttle())
        to = Destination("west", west.cluster, east.ledger.rules.all(), 1, 1)
        try:
            shipment, resume = open_shipment(link, context, to, [wal.file])
        except TransferError:
            failures += 1
            continue
        window = shipment.window
        with closing(shipment):
            shipment.follow(wal.file, 256, resume.durable(wal.file, durable))
            try:
                while not window.files[wal.file].finished(wal.length):
                    assert time.monotonic() < deadline, f"{window.files[wal.file].durable} after {failures} failures"
                    shipment.step(Source(wal.row, wal.length, closed=False))
                    shipment.drain(0.001)
            except CorruptFrameError as error:  # damaged on the way three times in a row
                shipment.skip_file(wal.file, error)
                failures += 1
            except TransferError:
                failures += 1
            durable = window.files[wal.file].durable
    return failures


@pytest.mark.parametrize("seed", range(4))
def test_everything_lands_once_whatever_the_link_does(tmp_path: Path, seed: int) -> None:
    east, west = Site(tmp_path, "east"), Site(tmp_path, "west")
    spec = table()
    east.ledger.tables.create(spec)
    east.send_to(west, spec)
    wal = east.wal()
    for n in range(60):
        wal.append(spec, rows(n * 10, 10))
    landing = landing_of(west)
    landing.start()
    reception = Reception(west.ledger, landing, SeenCluster())
    faults = LinkFaults(seed, lose=0.1, lose_reply=0.1, repeat=0.2, reorder=0.2, flip=0.05, cut_after=7)
    link = MemoryLink(reception, faults)
    failures = ship_until_there(east, west, wal, link)
    landing.stop()
    assert failures > 0
    (coverage,) = west.ledger.landing.coverage().values()
    assert coverage.spans == ((0, 60),)
    assert west.ledger.landing.received(wal.file).spans == ((256, wal.length),)
    east.close()
    west.close()


def test_a_ledger_that_fails_for_a_while_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    east, west = Site(tmp_path, "east"), Site(tmp_path, "west")
    spec = table()
    east.ledger.tables.create(spec)
    east.send_to(west, spec)
    wal = east.wal()
    for n in range(20):
        wal.append(spec, rows(n * 10, 10))
    register, calls = west.ledger.registration.register, iter(range(1000))

    def failing(landed: object) -> object:
        call = next(calls)
        if call % 3 == 1:
            raise LedgerBusyError("locked")
        done = register(landed)  # type: ignore[arg-type]
        if call % 3 == 2:
            raise CoordinationError("the answer was lost")  # it took effect all the same
        return done

    monkeypatch.setattr(west.ledger.registration, "register", failing)
    landing = landing_of(west)
    landing.start()
    ship_until_there(east, west, wal, MemoryLink(Reception(west.ledger, landing, SeenCluster())))
    landing.stop()
    (coverage,) = west.ledger.landing.coverage().values()
    assert coverage.spans == ((0, 20),)
    for row in west.ledger.files.all():
        assert row.closed and Path(row.path).stat().st_size >= row.length
    east.close()
    west.close()


@pytest.mark.parametrize("count", [1, 8])
def test_messages_that_a_peer_finds_too_large_are_sent_in_smaller_ones(tmp_path: Path, count: int) -> None:
    east, west = Site(tmp_path, "east"), Site(tmp_path, "west")
    spec = table()
    east.ledger.tables.create(spec)
    east.send_to(west, spec)
    wals = [east.wal() for _ in range(count)]
    for number, wal in enumerate(wals):
        for n in range(20):
            wal.append(spec, rows((number * 20 + n) * 1000, 1000))
    landing = landing_of(west)
    landing.start()
    link = MemoryLink(Reception(west.ledger, landing, SeenCluster(), ReceiverSection(message_bytes_max=80 << 10)))
    limits = WorkerSection(window_bytes=8 << 20, message_bytes_max=512 << 10)
    context = PeerContext(east.ledger, ProgressLog(east.ledger), limits, Throttle())
    to = Destination("west", west.cluster, east.ledger.rules.all(), 1, 1)
    shipment, _ = open_shipment(link, context, to, [wal.file for wal in wals])
    sources = [Source(wal.row, wal.length, closed=False) for wal in wals]
    assert all(source.length > 160 << 10 for source in sources)
    with closing(shipment):
        for wal in wals:
            shipment.follow(wal.file, 256, Ranges())
        deadline = time.monotonic() + 60
        while not all(shipment.window.files[wal.file].finished(wal.length) for wal in wals):
            assert time.monotonic() < deadline
            for source in sources:
                shipment.step(source)
            shipment.drain(0.001)
    landing.stop()
    assert [coverage.spans for coverage in west.ledger.landing.coverage().values()] == [((0, 20),)] * count
    east.close()
    west.close()


def test_closed_times_too_far_ahead_of_the_peers_clock_hold_up_no_other_file(tmp_path: Path) -> None:
    """They are of no table. Each ended the stream, with the rows of other clusters that it forwards."""
    east, west = Site(tmp_path, "east"), Site(tmp_path, "west")
    spec = table()
    east.ledger.tables.create(spec)
    east.send_to(west, spec)
    wal, wal_dir, ahead = east.wal(), str(east.config.wal_dir), time.time_ns() // 1000 + 2 * 86_400_000_000
    control = ControlLog(east.ledger, east.files, wal_dir, "h0", east.boot)
    control.append(ClosedNotice(ahead, ()).encode(), ahead, 1)
    control.close()
    landing = landing_of(west)
    landing.start()
    link = MemoryLink(Reception(west.ledger, landing, SeenCluster()))
    context = PeerContext(east.ledger, ProgressLog(east.ledger), LIMITS, Throttle())
    (row,) = [row for row in east.ledger.files.all() if row.kind is FileKind.CONTROL]
    to = Destination("west", west.cluster, east.ledger.rules.all(), 1, 1)
    shipment, _ = open_shipment(link, context, to, [row.file, wal.file])
    told: list[str] = []
    with closing(shipment):
        for file in (row.file, wal.file):
            shipment.follow(file, 256, Ranges())
        deadline = time.monotonic() + 60
        for n in range(5):
            wal.append(spec, rows(n * 10, 10))
        while not told or not shipment.window.files[wal.file].finished(wal.length):
            assert time.monotonic() < deadline
            try:
                shipment.step(Source(row, row.closed_length, closed=True)) if not told else None
            except FormatError as error:
                told.append(str(error))
                shipment.skip_file(row.file, error)
            shipment.step(Source(wal.row, wal.length, closed=False))
            shipment.drain(0.01)
    assert "Correct the clocks" in told[0]
    landing.stop()
    east.close()
    west.close()


class PromptSession:
    """A session whose peer acks one message whenever it is asked."""

    def __init__(self) -> None:
        self.sent: list[Data] = []
        self.acked = 0

    def send(self, message: Data) -> None:
        self.sent.append(message)

    def receive(self, _: float) -> Reply | None:
        if self.acked == len(self.sent):
            return None
        self.acked += 1
        data = self.sent[self.acked - 1]
        return Ack(data.file, ((data.begin, data.end),))


def test_a_frame_larger_than_the_window_goes_while_another_file_has_ever_more_to_send(tmp_path: Path) -> None:
    east, west = Site(tmp_path, "east"), Site(tmp_path, "west")
    spec = table()
    east.ledger.tables.create(spec)
    east.send_to(west, spec)
    busy, large = east.wal(), east.wal()
    for n in range(100):
        busy.append(spec, rows(n * 50, 50))
    large.append(spec, rows(100_000, 2000))
    session, rules = PromptSession(), east.ledger.rules.all()
    context = PeerContext(east.ledger, ProgressLog(east.ledger), LIMITS, Throttle())
    schemas = PeerSchemas(east.ledger, {}, [(spec.uuid, version.hash) for version in spec.versions.values()])
    shipment = Shipment(session, "west", context, FrameFilter.of(west.cluster, rules), schemas, 1, {})  # type: ignore[arg-type]
    for wal in (busy, large):
        shipment.follow(wal.file, 256, Ranges())
    assert large.length > LIMITS.window_bytes
    for _ in range(10):
        for wal in (busy, large):
            shipment.step(Source(wal.row, wal.length, closed=False))
        shipment.drain(0.0)
    assert shipment.window.files[large.file].finished(large.length)
    assert busy.file in [data.file for data in session.sent[2:]], "and the other file goes on"
    assert not shipment.window.files[busy.file].finished(busy.length)
