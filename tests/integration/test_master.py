"""Masters over a real ZooKeeper: elected, killed, frozen, followed; what they assign, publish and retire."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast
from uuid import UUID

import pytest
from kazoo.client import KazooClient

from replication import __version__
from replication.coordination import session as sessions
from replication.coordination.base import HostRecord, Public
from replication.coordination.paths import MemberKind, Quorum
from replication.coordination.session import Coordination
from replication.coordination.zookeeper import ZookeeperTree, connect, read_public
from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId
from replication.core.shipping.chunk import Assignment, Tail
from replication.core.shipping.planner import Limits
from replication.errors import CoordinationError, RequestError
from replication.files.local import LocalFiles
from replication.ledger.base import FileKind, FileRow, Ledger, Peer
from replication.master.loop import HostDisk, Master, MasterTimes
from tests.integration.master_ledger import EAST, SOUTH, WEST, Books
from tests.waiting import wait_until

TIMES = MasterTimes(interval_s=0.05, retire_interval_s=0.0, poll_s=0.2)
LIMITS = Limits(range_bytes=1000, streams=2, worker_grace_s=0.3)


@pytest.fixture
def books() -> Books:
    return Books()


class Site:
    """One cluster in a real ZooKeeper, with masters that a test runs round by round and kills."""

    def __init__(self, quorum: Quorum, books: Books, folder: Path) -> None:
        self.quorum, self.books, self.folder = quorum, books, folder
        self.masters: list[Master] = []
        self._trees: list[ZookeeperTree] = []
        self.opened: list[Coordination] = []
        self.desk = connect(quorum)
        self.desk.establish(EAST, "0.0.9")
        self.desk.put_host(HostRecord("h0", str(folder), ""))

    def coordination(self) -> Coordination:
        tree = ZookeeperTree(self.quorum.servers, session_timeout_s=4.0)
        self._trees.append(tree)
        self.opened.append(Coordination(tree, self.quorum.root, reread_s=0.5))
        return self.opened[-1]

    def master(self, host: str = "h0") -> Master:
        ledger = cast(Ledger, self.books)
        made = Master(ledger, self.coordination(), HostDisk(LocalFiles(), host), read_public, LIMITS, TIMES)
        self.masters.append(made)
        return made

    def expire(self, master: Master) -> None:
        """End a master's session behind its back, as ZooKeeper does with one that was frozen for too long."""
        tree = self._trees[self.masters.index(master)]
        double = KazooClient(hosts=self.quorum.servers, client_id=tree._client.client_id)
        double.start()
        double.stop()
        double.close()

    def peer(self, cluster: ClusterId, *receivers: str) -> Peer:
        """Another cluster that really is there, defined here."""
        root = f"{self.quorum.root}-{cluster.name}"
        with connect(Quorum(self.quorum.servers, root)) as there:
            there.establish(cluster, __version__)
            there.publish(Public(cluster, __version__, receivers))
        self.books.defined = [*self.books.defined, Peer(cluster.name, self.quorum.servers + root, cluster)]
        return self.books.defined[-1]

    def assignment(self, slot: str = "h0") -> tuple[Assignment, int] | None:
        read = self.desk.assignments().get(slot)
        return None if read is None else (Assignment.decode(read.content), read.version)

    def rounds_until(self, condition: Callable[[], bool], *masters: Master) -> None:
        """Have masters do rounds until the condition holds."""

        def holds() -> bool:
            if condition():
                return True
            for master in masters:
                with suppress(CoordinationError):  # a session is being replaced, or another master was first
                    master.round()
            return False

        wait_until(holds)

    def close(self) -> None:
        for master in self.masters:
            master.close()
        for coordination in (*self.opened, self.desk):
            coordination.close()


@pytest.fixture
def site(quorum: Quorum, books: Books, tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "wal").mkdir()
    made = Site(quorum, books, tmp_path)
    yield made
    made.close()


def test_one_master_leads_and_hands_out_tails_with_the_peers_receivers(site: Site) -> None:  # 004-16
    site.peer(WEST, "127.0.0.1:9000")
    first, second = site.master(), site.master()
    site.rounds_until(lambda: site.assignment() is not None, first, second)
    assert (first.term, second.term) == (1, 0)
    assert site.assignment() == (Assignment(1, (Tail("west", WEST, ("127.0.0.1:9000",)),)), 0)


def test_when_the_master_dies_the_next_raises_the_term_and_leaves_what_runs_alone(site: Site) -> None:
    site.peer(WEST, "w:1")
    first, second = site.master(), site.master()
    site.rounds_until(lambda: site.assignment() is not None, first, second)
    before = site.assignment()
    site.expire(first)
    site.rounds_until(lambda: second.term == 2, second)
    for _ in range(3):
        second.round()
    assert site.assignment() == before, "same bytes, same version: no worker noticed"
    site.peer(SOUTH, "s:1")
    site.rounds_until(lambda: site.assignment() != before, second)
    now = site.assignment()
    assert now is not None and now[0].term == 2 and now[1] == 1
    assert [tail.peer for tail in now[0].tails] == ["south", "west"]


def test_a_master_that_slept_through_its_succession_changes_nothing_and_stands_down(site: Site) -> None:
    site.peer(WEST, "w:1")
    first, second = site.master(), site.master()
    site.rounds_until(lambda: site.assignment() is not None, first, second)
    before = site.assignment()

    def sleep_while_another_is_elected() -> None:
        """In the middle of the old master's snapshot, of which it will know nothing."""
        site.expire(first)
        site.rounds_until(lambda: second.term == 2, second)
        site.desk.put_host(HostRecord("h1", "/elsewhere", ""))

    site.desk.put_host(HostRecord("h9", "/elsewhere", ""))
    wait_until(lambda: len(site.opened[0].hosts()) == 2, what="the first master to see both hosts")
    site.books.on_rules = sleep_while_another_is_elected
    with pytest.raises(CoordinationError):
        while True:
            first.round()
    site.rounds_until(lambda: first.term == 0, first)
    site.rounds_until(lambda: site.assignment("h1") is not None, second)
    assert site.books.term == second.term == 2
    for slot in ("h1", "h9"):
        written = site.assignment(slot)
        assert written is not None and written[0].term == 2
    assert site.assignment() == before


def test_a_master_that_dies_between_raising_the_term_and_assigning_stops_nothing(site: Site) -> None:
    site.peer(WEST, "w:1")
    first = site.master()
    site.rounds_until(lambda: site.assignment() is not None, first)
    before = site.assignment()
    site.peer(SOUTH, "s:1")
    second, third = site.master(), site.master()

    def die() -> None:
        site.books.after_raise = lambda: None
        raise CoordinationError("killed here")

    site.books.after_raise = die
    site.expire(first)
    with pytest.raises(CoordinationError, match="killed here"):
        while True:
            second.round()
    assert site.books.term == 2 and site.assignment() == before
    site.expire(second)
    site.rounds_until(lambda: site.assignment() != before, third)
    now = site.assignment()
    assert now is not None and now[0].term == third.term == 3


def test_a_dead_workers_chunks_are_taken_from_it_under_a_higher_term(site: Site) -> None:
    site.peer(WEST, "w:1")
    for slot in ("h0", "h1"):
        site.desk.put_host(HostRecord(slot, str(site.folder), ""))
    workers = {slot: site.coordination() for slot in ("h0", "h1")}
    for slot, session in workers.items():
        session.enrol(MemberKind.WORKERS, slot, {})
    file = FileId(EAST, "h0", 1)
    site.books.rows = [replace(row(site, 1), closed=False), row(site, 2, closed=False)]
    site.books.lacking = {(file, "west"): Ranges.of((256, 4000))}
    site.books.rows[0] = replace(site.books.rows[0], closed=True, closed_length=4000)
    site.books.held = "west lacks bytes"
    site._trees = site._trees[2:]
    master = site.master()

    def chunks(slot: str) -> list[tuple[int, int]]:
        found = site.assignment(slot)
        return [] if found is None else [(chunk.begin, chunk.end) for chunk in found[0].chunks]

    cut = [(256, 1000), (1000, 2000), (2000, 3000), (3000, 4000)]
    site.rounds_until(lambda: chunks("h0") == cut, master)
    home = site.assignment("h0")
    assert home is not None and home[0].tails[0].chunked_files == (file,)
    workers["h0"].close()
    site.rounds_until(lambda: chunks("h0") == [], master)
    taken = site.assignment("h0")
    assert taken is not None and taken[0].term == master.term == 2
    with site.coordination() as back:
        back.enrol(MemberKind.WORKERS, "h0", {})
        site.rounds_until(lambda: chunks("h0") == cut, master)
    assert chunks("h1") == []


def test_the_public_part_shows_live_receivers_and_keeps_the_last_ones_while_they_restart(site: Site) -> None:
    master, receiver = site.master(), site.coordination()
    receiver.enrol(MemberKind.RECEIVERS, "h0", {"address": "127.0.0.1:9000"})
    shown = Public(EAST, __version__, ("127.0.0.1:9000",))
    site.rounds_until(lambda: site.desk.public() == shown, master)
    receiver.close()
    site.rounds_until(lambda: site.desk.members(MemberKind.RECEIVERS) == (), master)
    master.round()
    assert site.desk.public() == shown


def test_a_peer_that_answers_as_another_cluster_gets_nothing(site: Site) -> None:  # 004-10
    peer = site.peer(WEST, "w:1")
    site.books.defined = [replace(peer, cluster=ClusterId("west", UUID(int=9)))]
    site.peer(SOUTH, "s:1")
    master = site.master()
    site.rounds_until(lambda: (found := site.assignment()) is not None and bool(found[0].tails), master)
    for _ in range(3):
        master.round()
    found = site.assignment()
    assert found is not None and [tail.peer for tail in found[0].tails] == ["south"]
    assert "it answers as" in site.books.told.reasons["west"]
    site.books.defined = [replace(peer, paused=True), site.peer(SOUTH, "s:1")]
    master.round()
    assert site.books.told.reasons == {"west": "", "south": ""}


def test_a_master_runs_until_it_is_stopped_and_withdraws(site: Site) -> None:
    site.peer(WEST, "w:1")
    master, stop = site.master(), threading.Event()
    thread = threading.Thread(target=master.run, args=(stop,))
    thread.start()
    site.rounds_until(lambda: site.assignment() is not None)
    assert site.desk.leader() == "h0"
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
    master.close()
    assert site.desk.leader() is None


def row(site: Site, number: int, *, host: str = "h0", closed: bool = True) -> FileRow:
    file = FileId(EAST, host, number)
    path = str(site.folder / "wal" / f"{number:012d}.wal")
    return FileRow(
        file, FileKind.WAL, host, path, closed, 300, "boot", "w", 300, 0, 0, closed_length=300 if closed else -1
    )


def make(site: Site, *numbers: int) -> None:
    for number in numbers:
        for ending in ("wal", "len"):
            (site.folder / "wal" / f"{number:012d}.{ending}").write_bytes(b"x")


def on_disk(site: Site) -> set[str]:
    return {path.name for path in (site.folder / "wal").iterdir()}


def test_a_file_that_all_have_is_retired_in_the_ledger_and_then_deleted(site: Site) -> None:  # 004-27
    site.books.rows = [row(site, 1), row(site, 2, closed=False), row(site, 3, host="h1")]
    make(site, 1, 2)
    site.desk.put_host(HostRecord("h1", "/elsewhere", ""))
    master = site.master()
    site.rounds_until(lambda: len(site.books.rows) == 1, master)
    assert [left.file.number for left in site.books.rows] == [2]
    assert on_disk(site) == {"000000000002.wal", "000000000002.len"}


def test_an_assignment_too_large_for_its_node_holds_up_neither_other_hosts_nor_retiring(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.desk.put_host(HostRecord("h1", "/elsewhere", ""))
    master = site.master()
    site.peer(WEST, "w:1")
    site.rounds_until(lambda: site.assignment("h1") is not None, master)
    site.peer(SOUTH, *(f"receiver-{n}.south.example:7070" for n in range(60)))
    asked: list[str] = []
    write = Coordination.set_assignment

    def set_assignment(self: Coordination, slot: str, content: bytes, version: int) -> int:
        asked.append(slot)
        return write(self, slot, content, version)

    monkeypatch.setattr(Coordination, "set_assignment", set_assignment)
    monkeypatch.setattr(sessions, "NODE_BYTES_MAX", 1000)
    with pytest.raises(RequestError, match="h0 would hold .* bytes, more than 1000"):
        wait_until(lambda: master.round() is None and False)
    assert asked == ["h0", "h1"]
    site.books.rows = [row(site, 1)]
    make(site, 1)
    with pytest.raises(RequestError, match="h0 would hold"):
        master.round()
    assert site.books.rows == [] and on_disk(site) == set()


def test_a_file_that_the_ledger_holds_after_all_stays(site: Site) -> None:
    site.books.rows = [row(site, 1)]
    site.books.held = "west has not applied it"
    make(site, 1)
    master = site.master()
    site.rounds_until(lambda: master.term == 1, master)
    master.round()
    assert len(site.books.rows) == 1 and on_disk(site) == {"000000000001.wal", "000000000001.len"}
