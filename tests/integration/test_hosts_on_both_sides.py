"""Two clusters of two hosts each: receivers and masters come and go, and a host is gone for good."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from peer.frames.host_watch import HostWatch
from peer.frames.quarantine import Quarantine
from peer.repair.salvage import SalvageSite, plan_salvage, salvage
from peer.replay.context import ReplayContext
from peer.replay.rounds import Replayer
from peer.status.collect import collect
from peer.status.members import Members
from peer.tables.read import read
from replication.coordination.host import host_record
from replication.coordination.paths import Election, MemberKind
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.shipping.planner import Limits
from replication.errors import LockedFileError, RequestError
from replication.files.local import LocalFiles
from replication.master.loop import HostDisk, Master, MasterTimes
from tests.contract.ledger_stores import postgresql_database
from tests.fakes.tables import MemoryTables
from tests.sites import Site, rows, table
from tests.waiting import wait_until


class Mastered:
    """A master's thread on one host, that can be pulled the plug of."""

    def __init__(self, site: Site, peer: Site) -> None:
        self.site = site
        self.session = site.ensemble.connect(site.config.zookeeper_root)
        self.master = Master(
            site.ledger,
            self.session,
            HostDisk(LocalFiles(), site.config.cluster.host),
            lambda _: peer.coordination.public(),
            Limits(),
            MasterTimes(interval_s=0.1, poll_s=0.2, retry_min_s=0.1, retry_max_s=0.5),
        )
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.master.run, args=(self.stop,))
        self.thread.start()

    def die(self) -> None:
        """Its session ends without a word."""
        self.session.close()
        self.end()

    def end(self) -> None:
        self.stop.set()
        self.thread.join()
        self.master.close()


class TwoByTwo:
    """East on e1 and e2, west on w1 and w2: WALs, workers and masters on all of east, receivers on all of west."""

    def __init__(self, folder: Path, stack: ExitStack, urls: tuple[str, str] | None) -> None:
        given = ({}, {}) if urls is None else ({"ledger": {"url": urls[0]}}, {"ledger": {"url": urls[1]}})
        quick = {"worker": {"retry_max_s": 0.5}}
        self.e1 = Site(folder, "east", host="e1", **given[0], **quick)
        self.w1 = Site(folder, "west", host="w1", **given[1])
        for site in (self.w1, self.e1):
            stack.callback(site.close)
        self.e2 = stack.enter_context(self.e1.host("e2"))
        self.w2 = stack.enter_context(self.w1.host("w2"))
        for site in (self.w2, self.e2, self.w1, self.e1):
            site.coordination.put_host(host_record(site.config))
        self.spec = table()
        self.e1.ledger.tables.create(self.spec)
        self.e1.send_to(self.w1, self.spec)
        self.tables = MemoryTables()
        self.watch = HostWatch(self.w1.config, self.w1.cluster, self.w1.coordination).start()
        stack.callback(self.watch.close)
        ledger = self.w1.ledger
        quarantine = Quarantine(self.w1.config.data_dir / "quarantine", ledger.replay)
        self.replayer = Replayer(ReplayContext(ledger, self.tables, quarantine, 1), self.watch, parallel=1)

    def shown(self) -> list[int]:
        self.replayer.round()
        if not self.tables.exists(self.spec.name):
            return []
        return sorted(read(self.tables, self.spec).read_all().column("id").to_pylist())

    def landed_on(self) -> dict[str, set[str]]:
        """The hosts where each of east's hosts' files landed."""
        found: dict[str, set[str]] = {}
        for row in self.w1.ledger.files.all():
            if row.source is not None and row.length > FILE_HEADER_BYTES:
                found.setdefault(row.source.slot, set()).add(row.host)
        return found


@pytest.fixture(params=["sqlite", "postgresql"])
def clusters(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TwoByTwo]:
    with ExitStack() as stack:
        urls = None
        if request.param == "postgresql":
            server = request.getfixturevalue("postgresql")
            empty = [stack.enter_context(postgresql_database(server, empty=True)).url for _ in range(2)]
            urls = (empty[0], empty[1])
        yield TwoByTwo(tmp_path, stack, urls)


def test_two_hosts_a_side_with_receivers_and_masters_coming_and_going(clusters: TwoByTwo) -> None:
    with ExitStack() as stack:
        wals = [site.wal(f"writer {site.config.cluster.host}") for site in (clusters.e1, clusters.e2)]
        masters = [Mastered(clusters.e1, clusters.w1), Mastered(clusters.e2, clusters.w1)]
        stack.callback(masters[1].end)
        wanted: list[int] = []

        def write(count: int = 5) -> None:
            for _ in range(count):
                for number, wal in enumerate(wals):
                    first = number * 100_000 + len(wanted)
                    wal.append(clusters.spec, rows(first, 10))
                    wanted.extend(range(first, first + 10))

        def arrives() -> bool:
            return clusters.shown() == sorted(wanted)

        first = clusters.w1.receiver()
        first.__enter__()
        for site in (clusters.e1, clusters.e2):
            stack.enter_context(site.worker())
        write()
        wait_until(arrives, what="rows by the only receiver")
        second = stack.enter_context(clusters.w2.receiver())
        wait_until(lambda: second.address in clusters.w1.coordination.public().receivers)
        assignments = clusters.e1.coordination.assignments
        wait_until(
            lambda: len({assigned.content for assigned in assignments().values()}) == 2,
            what="each its own receiver",
        )
        write()
        wait_until(arrives, what="rows by two receivers")
        masters[0].die()
        first.__exit__(None, None, None)
        write()
        wait_until(arrives, timeout_s=90, what="rows by the receiver that is left, under the other master")
        assert clusters.e1.coordination.leader() == "e2"
        stack.enter_context(clusters.w1.receiver())
        write()
        wait_until(arrives, what="rows with both receivers again")
        landed = clusters.landed_on()
        assert landed.keys() >= {"e1", "e2"} and set().union(*landed.values()) == {"w1", "w2"}
        assert not clusters.w1.ledger.replay.quarantined()


def test_what_landed_on_a_host_that_is_gone_for_good_is_sent_again_to_another(clusters: TwoByTwo) -> None:
    with ExitStack() as stack:
        master = Mastered(clusters.e1, clusters.w1)
        stack.callback(master.end)
        stack.enter_context(clusters.e1.worker())
        wal = clusters.e1.wal()
        with clusters.w2.receiver():
            wal.append(clusters.spec, rows(0, 30))
            wait_until(lambda: clusters.w1.received(wal.file, wal.length))
        (lost,) = [row for row in clusters.w1.ledger.files.all("w2") if row.source == wal.file]
        Path(lost.path).unlink()
        wait_until(lambda: "w2" in clusters.replayer.round().held.get(f"file {lost.file.local}", ""))
        config, ledger, session = clusters.w1.config, clusters.w1.ledger, clusters.w1.coordination
        stack.enter_context(clusters.w1.receiver())
        with clusters.w2.receiver(), pytest.raises(RequestError, match="lies on host w2, which is up"):
            wait_until(lambda: "w2" in {member.name for member in session.members(MemberKind.RECEIVERS)})
            salvage(SalvageSite(config, ledger, LocalFiles(), session), lost.file)
        candidate = session.campaign("w1", Election.REPLAYERS)
        assert candidate.leads()
        with pytest.raises(LockedFileError, match="running on host w1"):
            salvage(SalvageSite(config, ledger, LocalFiles(), session), lost.file)
        candidate.withdraw()
        wait_until(lambda: "w2" not in {member.name for member in session.members(MemberKind.RECEIVERS)})
        assert salvage(SalvageSite(config, ledger, LocalFiles(), session), lost.file).plan.again
        wal.append(clusters.spec, rows(30, 10))
        wait_until(lambda: clusters.shown() == list(range(40)), timeout_s=90, what="all rows, by the host that is left")
        assert [row.host for row in clusters.w1.ledger.files.all() if row.source == wal.file] == ["w1"]


def test_a_wal_of_a_host_that_is_gone_for_good_is_given_up_from_another(clusters: TwoByTwo) -> None:
    with ExitStack() as stack:
        gone, left, other = clusters.e1.wal("writer e1"), clusters.e2.wal("writer e2"), table("ops.other")
        clusters.e1.ledger.tables.create(other)
        clusters.e1.send_to(clusters.w1, other)
        stack.callback(Mastered(clusters.e2, clusters.w1).end)
        config, ledger, session = clusters.e2.config, clusters.e2.ledger, clusters.e2.coordination
        with clusters.e1.worker():
            gone.append(clusters.spec, rows(0, 10))
            gone.finish()
            wait_until(lambda: clusters.e1.ledger.landing.coverage(clusters.spec.uuid), what="the claims")
            wait_until(lambda: "e1" in {member.name for member in session.members(MemberKind.WORKERS)})
            with pytest.raises(RequestError, match="lies on host e1, which is up"):
                plan_salvage(SalvageSite(config, ledger, LocalFiles(), session), gone.file)
        Path(gone.path).unlink()
        wait_until(lambda: "e1" not in {member.name for member in session.members(MemberKind.WORKERS)})
        done = salvage(SalvageSite(config, ledger, LocalFiles(), session), gone.file)
        assert done.copies is None and not done.damaged
        assert done.plan.lacking == {"west": {clusters.spec.uuid: 1}}
        assert ledger.files.get(gone.file) is None
        stack.enter_context(clusters.w1.receiver())
        stack.enter_context(clusters.e2.worker())
        left.append(other, rows(0, 10))
        wait_until(
            lambda: clusters.w1.ledger.landing.coverage(other.uuid),
            what="what the host that is left writes",
        )
        told = collect(config, ledger, Members())
        assert [(lost.file, lost.frames) for lost in told.lost] == [(gone.file.local, 1)]
        assert {found.table: found.state == "needs_bootstrap" for found in told.peers} == {
            clusters.spec.name: True,
            other.name: False,
        }
