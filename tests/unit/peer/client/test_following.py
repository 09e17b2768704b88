"""A following handle: refused appends go to the successor, in order and once; it never goes to a cluster behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from peer.client import search
from peer.client.connect import connect
from peer.client.contacts import NO_PROOF, ContactedPeer, Contacts, Proof
from peer.client.following import FollowingCluster
from peer.client.opened import OpenedParts
from peer.client.search import OpenedCluster
from replication.coordination.paths import MemberKind, Quorum
from replication.coordination.session import Coordination
from replication.core.definition.define import typed_table
from replication.core.definition.schema import TableSpec
from replication.core.position import Position
from replication.core.roles import Role, RoleState
from replication.core.rows.batch import decode_payload
from replication.core.succession import Succession
from replication.errors import CoordinationError, NoWorkerError, PeerUnavailableError, ReadOnlyClusterError
from replication.files.frames import frames
from replication.ledger.base import Ledger, Peer
from replication.ledger.sql.ledger import open_ledger
from replication.link.base import Description
from replication.roles.active import ActiveCluster
from replication.writer.importing.importer import Imported
from replication.writer.wal.durable_length import DurableLength
from replication.writer.writer import Writer
from tests.sites import SCHEMA, Site
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy

LOG = typed_table("ops.log", SCHEMA, [], uuids=iter(uuid4, None))


class Parts(OpenedParts):
    """Opened parts whose ZooKeeper is in memory."""

    def __init__(self, site: Site) -> None:
        super().__init__(site.config, open_ledger(site.config.ledger_url))
        self.session = site.ensemble.connect(site.config.zookeeper_root)

    @property
    def coordination(self) -> Coordination:
        return self.session

    def close(self) -> None:
        super().close()
        self.session.close()


@dataclass
class Clusters:
    """Clusters with one table each, on this machine; ``away`` answer nobody."""

    sites: dict[str, Site]
    away: set[str]
    followed: FollowingCluster | None = None

    def set_role(self, name: str, role: Role, epoch: int) -> None:
        """Set a role, and wait until the writers know it."""
        coordination = self.sites[name].coordination
        coordination.set_role(RoleState(role, epoch), coordination.role().version)
        self.sites[name].ledger.terms.keep_role(RoleState(role, epoch))
        wait_until(lambda: all(w.fields["epoch"] == epoch for w in coordination.members(MemberKind.WRITERS)))

    def know(self, at: str, origin: str, successor: str, epoch: int) -> None:
        """A succession that one cluster knows, with the successor's address."""
        site, there = self.sites[at], self.sites[successor].cluster
        site.ledger.successions.record(Succession(self.sites[origin].cluster, there, epoch, 7, is_planned=True))
        site.ledger.successions.keep_address(there, f"zk:1/{successor}")

    def switch(self, origin: str, successor: str, epoch: int) -> None:
        self.set_role(origin, Role.STANDBY, epoch)
        self.know(origin, origin, successor, epoch)
        self.set_role(successor, Role.ACTIVE, epoch)

    def open_at(self, address: str) -> OpenedCluster:
        name = address.rpartition("/")[2]
        if name not in self.sites:
            raise NoWorkerError(f"this machine is not a host of cluster {name}")
        return OpenedCluster(self.sites[name].config, Parts(self.sites[name]))

    def follow(self, name: str = "east") -> FollowingCluster:
        self.followed = FollowingCluster(self.open_at(f"zk:1/{name}"), self.open_at)
        return self.followed

    def written(self, name: str) -> list[int]:
        """Ids in the order in which they were published."""
        site, found = self.sites[name], list[int]()
        for row in site.ledger.files.all():
            counters = None if row.closed else DurableLength.open(row.path, row.boot)
            end = row.closed_length if counters is None else counters.length
            if counters is not None:
                counters.close()
            handle = site.files.open(row.path)
            for view, payload in frames(handle, 256, end):
                found += decode_payload(payload, LOG.versions[view.header.group]).column("id").to_pylist()
            handle.close()
        return found


@pytest.fixture
def clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Clusters]:
    writer = {"append_timeout_s": getattr(request, "param", 30.0), "lease_s": 2.0}
    made = Clusters({name: Site(tmp_path, name, writer=writer) for name in ("east", "west", "north")}, set())

    class FakeContacts(Contacts):
        def reach(self, name: str, zookeepers: str, proof: Proof = NO_PROOF) -> ContactedPeer:
            if name in made.away:
                raise PeerUnavailableError(f"nothing of {name} answers")
            site, state = made.sites[name], made.sites[name].coordination.role().state
            public, quorum = site.coordination.public(), Quorum.parse(zookeepers)
            return ContactedPeer(quorum, public, Description(site.cluster, "1", state.role.value, state.epoch))

    monkeypatch.setattr(search, "Contacts", FakeContacts)
    monkeypatch.setattr(search, "_listens", lambda _: True)
    with ExitStack() as stack:
        for name, site in made.sites.items():
            stack.callback(site.close)
            site.ledger.tables.create(LOG)
            site.coordination.enrol(MemberKind.WORKERS, "h0", {})
            if name != "east":
                made.set_role(name, Role.STANDBY, 1)
        yield made
        if made.followed is not None:
            made.followed.close()


def row(number: int) -> dict[str, object]:
    return {"id": number, "text": "t"}


def table(first: int, count: int) -> pa.Table:
    return pa.Table.from_pylist([row(n) for n in range(first, first + count)], SCHEMA)


def test_refused_appends_go_to_the_successor_in_order_and_once(clusters: Clusters) -> None:  # scenario 23
    handle = clusters.follow()
    before = handle.upsert("ops.log", [row(0)])
    clusters.switch("east", "west", 2)
    futures = [handle.upsert_async("ops.log", [row(n)]) for n in range(1, 40)]
    last = handle.upsert("ops.log", [row(40)])
    futures += [handle.upsert_async("ops.log", table(41 + n * 100, 100)) for n in range(3)]
    positions = [future.result(20) for future in futures]
    assert handle.name == "west" and handle.ledger.cluster == clusters.sites["west"].cluster
    there = clusters.written("west")
    assert sorted(clusters.written("east") + there) == list(range(341)), "each once"
    assert there == sorted(there), "in the order of the calls"
    assert before.cluster.name == "east" and last.cluster.name == positions[-1].cluster.name == "west"
    clusters.switch("west", "east", 3)
    assert handle.upsert("ops.log", [row(900)]).cluster.name == "east" == handle.name


def test_an_append_that_reaches_the_old_writer_late_is_sent_again_before_later_ones(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, real = clusters.follow(), Writer.upsert_async
    late: list[tuple[Future[Position], Future[Position]]] = []

    def upsert_async(writer: Writer, spec: TableSpec, rows: Any, batch_id: str | None = None) -> Future[Position]:
        if list(rows) != [row(2)] or late or handle.name != "east":
            return real(writer, spec, rows, batch_id)
        with suppress(AssertionError):
            wait_until(lambda: handle.name == "west", timeout_s=1.0)
        refused, shown = real(writer, spec, rows, batch_id), Future[Position]()
        if handle.name == "east":
            return refused
        late.append((refused, shown))
        return shown

    monkeypatch.setattr(Writer, "upsert_async", upsert_async)
    handle.upsert("ops.log", [row(0)])
    clusters.switch("east", "west", 2)
    futures = [handle.upsert_async("ops.log", [row(n)]) for n in (1, 2, 3)]
    for refused, shown in late:
        futures[2].result(20)
        shown.set_exception(refused.exception(20))
    assert {future.result(20).cluster.name for future in futures} == {"west"}
    assert clusters.written("west") == [1, 2, 3]


def test_appends_that_come_while_others_are_sent_again_are_sent_after_them(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, real, more = clusters.follow(), Writer.upsert_async, list[Future[Position]]()

    def upsert_async(writer: Writer, spec: TableSpec, rows: Any, batch_id: str | None = None) -> Future[Position]:
        if handle.name == "west" and not more:
            more.append(handle.upsert_async("ops.log", [row(2)]))
        return real(writer, spec, rows, batch_id)

    monkeypatch.setattr(Writer, "upsert_async", upsert_async)
    handle.upsert("ops.log", [row(0)])
    clusters.switch("east", "west", 2)
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "flush", lambda _: 1 / 0)  # an error that nobody foresaw
        first = handle.upsert_async("ops.log", [row(1)])
        assert first.result(20).cluster.name == more[0].result(20).cluster.name == "west"
    assert handle.upsert("ops.log", [row(3)]).cluster.name == "west"
    assert clusters.written("west") == [1, 2, 3]


def test_appends_of_the_time_in_which_no_cluster_is_active_wait_for_one(clusters: Clusters) -> None:
    handle = clusters.follow()
    handle.upsert("ops.log", [row(0)])
    clusters.set_role("east", Role.STANDBY, 2)
    clusters.know("east", "east", "west", 2)
    promoted = threading.Timer(0.3, clusters.set_role, ("west", Role.ACTIVE, 2))
    promoted.start()
    assert handle.upsert("ops.log", [row(1)]).cluster.name == "west"
    promoted.join()


@pytest.mark.parametrize("clusters", [2.0], indirect=True)
def test_without_an_active_cluster_the_error_comes_in_time_and_tells_what_was_found(clusters: Clusters) -> None:
    handle = clusters.follow()
    clusters.set_role("east", Role.STANDBY, 2)
    clusters.sites["east"].ledger.rules.define(
        Peer("west", "zk:1/west", clusters.sites["west"].cluster), clusters.sites["east"].term
    )
    clusters.sites["east"].ledger.rules.define(
        Peer("north", "zk:1/north", clusters.sites["north"].cluster), clusters.sites["east"].term
    )
    clusters.away.add("north")
    waits = [handle.upsert_async("ops.log", [row(1)]), handle.upsert_async("ops.log", [row(2)])]
    for failing in (waits[0].result, waits[1].result, lambda: handle.upsert("ops.log", [row(0)])):
        with pytest.raises(ReadOnlyClusterError) as refused:
            failing()
        for found in ("east is STANDBY (epoch 2)", "west is STANDBY (epoch 1)", "north does not answer"):
            assert found in refused.value.what
    clusters.set_role("east", Role.ACTIVE, 3)
    assert handle.upsert("ops.log", [row(3)]).cluster.name == "east"
    assert clusters.written("east") == [3]


@pytest.mark.parametrize("clusters", [2.0], indirect=True)
def test_a_cluster_that_is_behind_is_never_followed(clusters: Clusters) -> None:
    """West was ACTIVE under epoch 1, before east and north were; it does not know that, and answers."""
    handle = clusters.follow()
    clusters.set_role("west", Role.ACTIVE, 1)
    clusters.set_role("east", Role.STANDBY, 3)
    clusters.know("east", "east", "north", 3)
    clusters.sites["east"].ledger.rules.define(
        Peer("west", "zk:1/west", clusters.sites["west"].cluster), clusters.sites["east"].term
    )
    clusters.away.add("north")
    with pytest.raises(ReadOnlyClusterError, match=r"west is ACTIVE \(epoch 1\)"):
        handle.upsert("ops.log", [row(0)])
    assert handle.name == "east" and clusters.written("west") == []


def test_a_successor_that_was_succeeded_leads_on(clusters: Clusters) -> None:
    handle = clusters.follow()
    clusters.switch("east", "west", 2)
    clusters.switch("west", "north", 3)
    assert handle.upsert("ops.log", [row(0)]).cluster.name == "north"


def test_a_ledger_that_does_not_answer_on_the_way_is_waited_for_and_left_closed(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, opened = clusters.follow(), list[OpenedCluster]()
    clusters.switch("east", "west", 2)
    clusters.switch("west", "north", 3)
    silent, real = ["east", "west"], search.known_active

    def known_active(ledger: Ledger) -> ActiveCluster | None:
        if ledger.cluster.name in silent:
            silent.remove(ledger.cluster.name)
            raise CoordinationError("the ledger does not answer", "")
        return real(ledger)

    def open_at(address: str) -> OpenedCluster:
        opened.append(clusters.open_at(address))
        return opened[-1]

    monkeypatch.setattr(search, "known_active", known_active)
    handle._open_at = open_at
    assert handle.upsert("ops.log", [row(0)]).cluster.name == "north"
    assert not silent and [each.parts._closed for each in opened] == [True, True, False]


def test_a_successor_elsewhere_is_named_at_once(clusters: Clusters) -> None:
    handle = clusters.follow()
    clusters.switch("east", "west", 2)
    handle._open_at = lambda address: clusters.open_at("zk:1/far")
    with pytest.raises(
        ReadOnlyClusterError, match=r"west is ACTIVE \(epoch 2\); this machine is not a host of cluster far"
    ):
        handle.upsert("ops.log", [row(0)])


def test_rows_of_a_stream_are_not_sent_again_but_the_handle_has_moved(clusters: Clusters) -> None:
    handle = clusters.follow()
    handle.upsert("ops.log", [row(0)])
    clusters.switch("east", "west", 2)
    with pytest.raises(ReadOnlyClusterError, match="west is ACTIVE, but these rows were read from a stream"):
        handle.upsert("ops.log", iter([row(1)]))
    with pytest.raises(ReadOnlyClusterError, match="is STANDBY"):
        clusters.follow("east").upsert_async("ops.log", iter([row(2)])).result(20)
    assert handle.upsert("ops.log", iter([row(3)])).cluster.name == "west"
    handle.close()


def test_definitions_are_changed_on_the_active_cluster(clusters: Clusters) -> None:
    handle = clusters.follow()
    clusters.switch("east", "west", 2)
    handle.create_table("ops.made", "id long", "id")
    assert [spec.name for spec in clusters.sites["west"].ledger.tables.all()] == ["ops.log", "ops.made"]


def test_rows_that_fail_while_they_are_sent_again_fail_their_append_and_no_later_one(clusters: Clusters) -> None:
    def broken() -> Iterator[dict[str, object]]:
        yield row(2)
        raise OSError("the source of the rows is gone")

    handle = clusters.follow()
    handle.upsert("ops.log", [row(0)])
    clusters.set_role("east", Role.STANDBY, 2)
    clusters.know("east", "east", "west", 2)
    first = handle.upsert_async("ops.log", [row(1)])
    wait_until(lambda: handle._resender is not None)
    failing = handle.upsert_async("ops.log", broken())
    later = handle.upsert_async("ops.log", [row(3)])
    clusters.set_role("west", Role.ACTIVE, 2)
    assert first.result(20).cluster.name == "west"
    with pytest.raises(OSError, match="the source of the rows is gone"):
        failing.result(20)
    assert later.result(20).cluster.name == handle.upsert("ops.log", [row(4)]).cluster.name == "west"
    assert clusters.written("west") == [1, 3, 4]


def test_all_files_of_an_iterator_are_imported_over_a_role_change(clusters: Clusters, tmp_path: Path) -> None:
    handle = clusters.follow()
    handle.upsert("ops.log", [row(0)])
    for number in (1, 2, 3):
        pq.write_table(table(number, 1), tmp_path / f"{number}.parquet")
    clusters.switch("east", "west", 2)
    handle.import_files("ops.log", iter(sorted(tmp_path.glob("*.parquet"))))
    assert clusters.written("west") == [1, 2, 3]


def test_a_handle_begins_at_the_next_cluster_when_the_ledger_of_the_first_is_gone(tmp_path: Path) -> None:
    away = f'[ledger]\nurl = "postgresql://walship@127.0.0.1:1/w"\n[catalog]\nwarehouse = "file://{tmp_path}/shared"\n'
    files = [tmp_path / "east.toml", tmp_path / "west.toml"]
    for file, rest in zip(files, (away, ""), strict=True):
        file.write_text(f'[cluster]\nname = "{file.stem}"\ndata_dir = "{tmp_path / file.stem}"\n{rest}')
    Site(tmp_path, "west").close()
    with connect(files, follow=True, for_writing=False) as handle:
        assert handle.name == "west"
    with pytest.raises(CoordinationError, match="ledger"):
        connect(files[0], follow=True, for_writing=False)


def files_of_rows(folder: Path) -> list[Path]:
    for number in (1, 2):
        pq.write_table(table(number * 10, 2), folder / f"{number}.parquet")
    return [folder / "1.parquet", folder / "2.parquet"]


def test_an_import_of_several_files_goes_on_at_the_successor_though_a_read_was_there_first(
    clusters: Clusters, tmp_path: Path
) -> None:
    handle = clusters.follow()

    def switch(done: Imported) -> None:
        if done.position is not None and handle.name == "east":
            clusters.switch("east", "west", 2)
            handle.follow_if_due()

    assert handle.import_files("ops.log", files_of_rows(tmp_path), report=switch).cluster.name == "west"
    assert clusters.written("west") == [10, 11, 20, 21]


def test_files_that_are_imported_again_are_not_imported_twice_by_a_role_change(
    clusters: Clusters, tmp_path: Path
) -> None:
    handle = clusters.follow()

    def switch(done: Imported) -> None:
        if done.position is not None:
            clusters.switch("east", "west", 2)

    with pytest.raises(ReadOnlyClusterError, match="partly written"):
        handle.import_files("ops.log", files_of_rows(tmp_path), again=True, report=switch)
    assert clusters.written("east") + clusters.written("west") == [10, 11]
