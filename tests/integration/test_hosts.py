"""Several hosts of one cluster: replay reads what lies on the others over the link, and waits for one that is away."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from peer.client.operations import Operations
from peer.frames.decode import FrameRef, plan_decode
from peer.frames.host_watch import HostWatch
from peer.frames.hosts import HostReader
from peer.frames.quarantine import Quarantine
from peer.repair.describe import lines
from peer.repair.salvage import salvage
from peer.replay.context import ReplayContext
from peer.replay.election import await_election
from peer.replay.rounds import Replayer
from peer.replay_report import ReplayReport
from peer.status.collect import collect
from peer.status.members import members_of
from peer.status.unreadable import unreadable
from peer.tables.read import read
from replication.coordination.host import host_record
from replication.coordination.paths import Election, MemberKind
from replication.core.frame import FILE_HEADER_BYTES, scan
from replication.core.ids import ClusterId
from replication.core.routes.freshness import ClosedNotice
from replication.errors import ConfigError, HostAwayError, MissingFileError, PeerRefusedError, RequestError
from replication.files.local import LocalFiles
from replication.ledger.base import FileRow
from replication.link import tls
from replication.link.grpc_client import connect
from replication.settings import TlsSection
from replication.tables.base import Tables
from replication.worker.files.control_log import ControlLog
from replication.worker.files.host_files import HostFiles
from replication.worker.files.register import Registrar
from tests.certificates import tls_section
from tests.fakes.tables import MemoryTables
from tests.integration.test_link_tls import Authority
from tests.sites import Site, rows, site_of, table
from tests.waiting import wait_until


class Hosted:
    """West on hosts w1 and w2; w1 replays. ``wal`` makes registered frames on one of them, as its worker would."""

    def __init__(self, folder: Path, stack: ExitStack, secured: bool) -> None:
        authority = Authority()
        self.authority = authority
        self.stack = stack

        def section(host: str, cluster: str = "west") -> dict[str, str]:
            if not secured:
                return {}
            return tls_section(folder, authority.issue(cluster), f"{host}.")

        self.stranger = section("stranger", "east")
        self.one = Site(folder, "west", host="w1", tls=section("w1"))
        stack.callback(self.one.close)
        self.two = stack.enter_context(self.one.host("w2", tls=section("w2")))
        for site in (self.one, self.two):
            site.coordination.put_host(host_record(site.config))
        self.spec, self.other = table(), table("ops.other")
        for spec in (self.spec, self.other):
            self.one.ledger.tables.create(spec)
        self.tables: Tables = MemoryTables()
        self.watch = HostWatch(self.one.config, self.one.cluster, self.one.coordination)
        self.restart()

    def restart(self) -> None:
        ledger = self.one.ledger
        quarantine = Quarantine(self.one.config.data_dir / "quarantine", ledger.replay)
        self.replayer = Replayer(
            ReplayContext(ledger, self.tables, quarantine, ledger.replay.raise_epoch()), self.watch, parallel=1
        )

    def register(self, site: Site) -> None:
        host = site.config.cluster.host
        Registrar(site.ledger, HostFiles(site.ledger, LocalFiles(), host, str(site.config.wal_dir))).run_once()

    def knows(self) -> bool:
        """Look at the hosts, and see whether w2 gives its files."""
        self.watch.poll()
        return "w2" in self.watch.hosts().addresses

    def applied(self, count: int, of: str = "ops.flights") -> bool:
        """Look at the hosts, do a round, and see whether a table has so many rows."""
        self.watch.poll()
        self.replayer.round()
        spec = self.spec if of == self.spec.name else self.other
        if not self.tables.exists(spec.name):
            return count == 0
        found = read(self.tables, spec).read_all()
        assert len(set(found.column("id").to_pylist())) == found.num_rows
        return found.num_rows == count


@pytest.fixture(params=["plain", "tls"])
def west(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hosted]:
    with ExitStack() as stack:
        yield Hosted(tmp_path, stack, request.param == "tls")


def test_one_host_replays_what_lies_on_all(west: Hosted) -> None:
    here, there = west.one.wal("w1"), west.two.wal("w2")
    for at in range(40):
        here.append(west.spec, rows(at * 10, 10))
        there.append(west.spec, rows(1000 + at * 10, 10))
        there.append(west.other, rows(at, 1))
    with west.two.receiver():
        for site in (west.one, west.two):
            west.register(site)
        wait_until(lambda: west.applied(800))
        wait_until(lambda: west.applied(40, "ops.other"))
        there.append(west.spec, rows(5000, 5, width=200_000))
        west.register(west.two)
        wait_until(lambda: west.applied(805))
    assert not west.one.ledger.replay.quarantined()


def test_a_host_that_is_away_holds_its_own_rows_says_so_and_goes_on_when_it_returns(west: Hosted) -> None:
    here, there = west.one.wal("w1"), west.two.wal("w2")
    with west.two.receiver():
        there.append(west.spec, rows(0, 10))
        west.register(west.two)
        wait_until(lambda: west.applied(10))
    there.append(west.spec, rows(100, 10))
    there.append(west.other, rows(0, 10))
    west.register(west.two)
    wait_until(lambda: "w2" in west.replayer.round().held.get(f"file {there.file.local}", ""))
    for at in range(3):
        here.append(west.spec, rows(200 + at, 1))
        west.register(west.one)
        wait_until(lambda at=at: west.applied(11 + at))
    status = collect(west.one.config, west.one.ledger, members_of(west.one.coordination))
    w1, w2 = status.members.hosts
    assert (w1.slot, w1.unapplied_bytes, w1.away) == ("w1", 0, "")
    assert w2.slot == "w2" and w2.roles == () and w2.unapplied_bytes == there.length - _end_of_first(there.path)
    assert "receiver is not running" in w2.away
    ReplayReport(host="w1", at=time.time(), held=west.replayer.round().held).save(west.one.ledger.replay)
    there_too = collect(west.two.config, west.two.ledger, members_of(west.two.coordination))
    assert there_too.members.hosts[1].away and there_too.unreadable == (), "w2 has its files, which need no salvage"
    west.restart()  # a new replayer finds it so, too
    wait_until(lambda: west.applied(13))
    with west.two.receiver():
        wait_until(lambda: west.applied(23))
        wait_until(lambda: west.applied(10, "ops.other"))
    hosts = collect(west.one.config, west.one.ledger, members_of(west.one.coordination)).members.hosts
    assert [host.away for host in hosts] == ["", ""] and not any(host.unapplied_bytes for host in hosts)


def _end_of_first(path: str) -> int:
    return next(scan(Path(path).read_bytes()[FILE_HEADER_BYTES:], 0, FILE_HEADER_BYTES)).end


def test_a_host_that_goes_between_headers_and_rows_loses_nothing(west: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shared pass has gone on past its frames by then: they must be taken again."""
    here, there = west.one.wal("w1"), west.two.wal("w2")
    here.append(west.spec, rows(0, 10))
    there.append(west.spec, rows(100, 10))
    there.append(west.other, rows(0, 10))
    for site in (west.one, west.two):
        west.register(site)
    with west.two.receiver():
        wait_until(west.knows)
        real = HostReader.read

        def gone(self: HostReader, place: str, spans: object) -> Iterator[bytes]:
            if place.startswith("walship://"):
                raise HostAwayError("w2", "pulled the plug")
            return real(self, place, spans)  # type: ignore[arg-type]

        monkeypatch.setattr(HostReader, "read", gone)
        assert "w2" in west.replayer.round().held.get("ops.flights", "")
        frames = HostReader.frames
        monkeypatch.setattr(HostReader, "frames", _away_too(frames))
        for _ in range(4):
            west.replayer.round()
        assert read(west.tables, west.spec).read_all().num_rows == 10
        monkeypatch.setattr(HostReader, "read", real)
        monkeypatch.setattr(HostReader, "frames", frames)
        wait_until(lambda: west.applied(20))
        wait_until(lambda: west.applied(10, "ops.other"))


def _away_too(frames: Callable[..., object]) -> Callable[..., object]:
    def gone(self: HostReader, place: str, begin: int, end: int) -> object:
        if place.startswith("walship://"):
            raise HostAwayError("w2", "pulled the plug")
        return frames(self, place, begin, end)

    return gone


def test_a_frame_damaged_on_another_host_is_quarantined_alone(west: Hosted) -> None:
    there = west.two.wal("w2")
    ends = [there.append(west.spec, rows(at * 10, 10)) for at in range(3)]
    west.register(west.two)
    with open(there.path, "r+b") as file:
        file.seek(ends[1] - 3)
        byte = file.read(1)
        file.seek(ends[1] - 3)
        file.write(bytes([byte[0] ^ 1]))
    with west.two.receiver():
        wait_until(lambda: west.applied(20))
        (frame,) = west.one.ledger.replay.quarantined()
        assert (frame.begin, frame.end) == (ends[0], ends[1])
        assert Path(frame.copy).read_bytes() == Path(there.path).read_bytes()[ends[0] : ends[1]]
        assert Path(frame.copy).is_relative_to(west.one.config.data_dir)


def test_what_goes_to_executors_reads_the_other_hosts_by_itself(west: Hosted) -> None:
    there = west.two.wal("w2")
    for at in range(5):
        there.append(west.spec, rows(at * 10, 10))
    west.register(west.two)
    with west.two.receiver():
        wait_until(west.knows)
        hosts = west.watch.hosts()
        (part,) = west.one.ledger.replay.pending()
        with HostReader(hosts) as reader:
            place = hosts.place(part.row)
            frames = [
                FrameRef.of(place, part.row.file, frame) for frame in reader.frames(place, FILE_HEADER_BYTES, part.end)
            ]
        assert place == f"walship://w2/{part.row.file}" and len(frames) == 5
        versions = west.one.ledger.tables.schemas(west.spec.uuid)
        decode = plan_decode(west.spec, versions, frames, 1, 2, 0, hosts)
        sent = pickle.dumps((decode.run, decode.tasks))
        assert b"PRIVATE KEY" not in sent
        run, tasks = pickle.loads(sent)
        made = [row for batch in run(tasks.to_batches()) for row in batch.column("id").to_pylist()]
        assert made == list(range(50))
    with pytest.raises(HostAwayError, match="the files of host w2 cannot be read"):
        list(run(tasks.to_batches()))


def test_only_hosts_of_the_cluster_are_given_registered_bytes_and_no_others(west: Hosted) -> None:
    there = west.two.wal("w2")
    there.append(west.spec, rows(0, 10))
    west.register(west.two)
    registered = there.length
    there.append(west.spec, rows(10, 10))
    own = west.one.cluster
    with west.two.receiver() as receiver:
        section = west.one.config.tls

        def asked(of: ClusterId, file: object, spans: list[tuple[int, int]], by: TlsSection = section) -> list[bytes]:
            link = connect(f"127.0.0.1:{receiver.port}", "west", of, tls=tls.load(by))
            try:
                return list(link.read(of, file, spans))  # type: ignore[arg-type]
            finally:
                link.close()

        (content,) = asked(own, there.file, [(256, registered)])
        assert content == Path(there.path).read_bytes()[256:registered]
        with pytest.raises(PeerRefusedError, match="registered up to"):
            asked(own, there.file, [(256, there.length)])
        with pytest.raises(PeerRefusedError, match="registered up to"):
            asked(own, there.file, [(0, 300)])
        with pytest.raises(PeerRefusedError, match="Only hosts of one cluster"):
            asked(ClusterId("west", west.spec.uuid), there.file, [(256, registered)])
        mine = west.one.wal("w1")
        mine.append(west.spec, rows(0, 1))
        west.register(west.one)
        with pytest.raises(PeerRefusedError, match="host w2 has no file"):
            asked(own, mine.file, [(256, 300)])
        if west.stranger:
            with pytest.raises(PeerRefusedError, match="is for east, not for west"):
                asked(own, there.file, [(256, registered)], TlsSection.model_validate(west.stranger, context={}))
        Path(there.path).unlink()
        with pytest.raises(PeerRefusedError, match="cannot be read"):
            asked(own, there.file, [(256, registered)])
        wait_until(west.knows)
        with HostReader(west.watch.hosts()) as reader, pytest.raises(MissingFileError, match="cannot be read"):
            row = west.one.ledger.files.get(there.file)
            assert isinstance(row, FileRow)
            list(reader.frames(reader.hosts.place(row), 256, registered))


def test_a_slot_that_another_data_directory_has_is_refused(west: Hosted, tmp_path: Path) -> None:
    west.one._folder = tmp_path / "elsewhere"
    with west.one.host("w2") as clone:
        with pytest.raises(ConfigError, match=r"slot w2 .* belongs to .*a slot of its own"):
            clone.coordination.put_host(host_record(clone.config))
        west.two.coordination.put_host(host_record(west.two.config))


def test_one_host_replays_and_the_next_one_follows(west: Hosted) -> None:
    stop, ready, turns = threading.Event(), threading.Event(), threading.Event()

    def stand_by() -> None:
        if await_election(west.two.coordination, "w2", stop, ready.set):
            turns.set()

    first = threading.Event()
    assert await_election(west.one.coordination, "w1", first, lambda: None)
    thread = threading.Thread(target=stand_by)
    thread.start()
    try:
        assert ready.wait(120) and not turns.is_set()
        assert west.two.coordination.candidates(Election.REPLAYERS) == ("w1", "w2")
        roles = {host.slot: host.roles for host in members_of(west.two.coordination).hosts}
        assert roles == {"w1": ("replay (leads)",), "w2": ("replay (standby)",)}
        west.one.coordination.close()
        assert turns.wait(120)
    finally:
        stop.set()
        thread.join(120)


def test_a_host_whose_disk_is_lost_is_forgotten_once_its_control_log_is_given_up(west: Hosted) -> None:
    """A host that crashes always leaves one open."""
    one, two = west.one, west.two
    logs = {
        site: ControlLog(site.ledger, site.files, str(site.config.wal_dir), site.config.cluster.host, site.boot)
        for site in (one, two)
    }
    for site, log in logs.items():
        site.files.make_directory(str(site.config.wal_dir))
        log.append(ClosedNotice(1, ()).encode(), 1, 0)
        west.register(site)
    (mine,), (lost,) = (site.ledger.files.all(site.config.cluster.host) for site in (one, two))
    member = two.coordination.enrol(MemberKind.WORKERS, "w2", {})
    assert one.coordination.campaign("w1", Election.REPLAYERS).leads(), "which need not stop"
    for file, why in ((lost.file, "which is up"), (mine.file, "the worker of this host writes")):
        with pytest.raises(RequestError, match=why):
            salvage(site_of(one, one.coordination), file)
    member.leave()
    operations = Operations(one.ledger, one.coordination)
    with pytest.raises(RequestError, match="host w2 has 1 file of this cluster"):
        operations.remove_host("w2")
    done = salvage(site_of(one, one.coordination), lost.file)
    assert list(lines(done.plan, {})) == ["nothing is lost with it: later control logs repeat it"]
    operations.remove_host("w2")
    assert [host.slot for host in one.coordination.hosts()] == ["w1"]
    logs[one].close()
    Path(mine.path).write_bytes(b"damaged")
    (remedy,) = (
        each.remedy for each in unreadable(one.ledger, one.ledger.files.all(), "w1", one.config.data_dir, None)
    )
    assert remedy == f"Nothing is lost with it: walship wal salvage {mine.file.local} --yes"
    salvage(site_of(one, one.coordination), mine.file)
    assert one.ledger.files.all() == [] and not Path(mine.path).exists()
