"""A cluster that was down asks its peers who took over from it, before it takes a write."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest

from replication.coordination.base import Public
from replication.coordination.paths import MemberKind
from replication.core.ids import ClusterId
from replication.core.roles import Role, RoleState
from replication.core.succession import Succession
from replication.errors import CoordinationError, PeerRefusedError
from replication.link.base import AskedLease, PeerLink
from replication.roles.active import standby_refusal
from replication.roles.takeover import Takeover
from replication.worker.ask_peers import ask_who_took_over
from tests.certificates import tls_section
from tests.hostile import of_other_users
from tests.integration.test_link_tls import AUTHORITY
from tests.sites import Site, table
from tests.waiting import wait_until


@pytest.mark.parametrize("sent_before", [False, True])  # False: it was paused, or has other addresses now
def test_a_peer_that_took_over_is_found_though_nothing_is_sent_to_it(tmp_path: Path, sent_before: bool) -> None:
    with closing(Site(tmp_path, "east")) as east, closing(Site(tmp_path, "west")) as west:
        spec = table()
        for site in (east, west):
            site.ledger.tables.create(spec)
        east.send_to(west, spec)
        west.ledger.successions.record(Succession(east.cluster, west.cluster, 9, 7, is_planned=False))
        with west.receiver() as receiver:
            if sent_before:
                east.assign(west.cluster, receiver.port)
            else:
                east.published["zk:2181/x"] = Public(west.cluster, "1", (f"127.0.0.1:{receiver.port}",))
            with east.worker():
                wait_until(lambda: east.coordination.members(MemberKind.WORKERS), what="the worker")
                assert east.coordination.role().state == RoleState(Role.STANDBY, 9), "before writers find the worker"


def test_peers_are_asked_though_an_assignment_of_one_host_cannot_be_read(tmp_path: Path) -> None:
    with closing(Site(tmp_path, "east")) as east, closing(Site(tmp_path, "west")) as west:
        spec = table()
        for site in (east, west):
            site.ledger.tables.create(spec)
        east.send_to(west, spec)
        west.ledger.successions.record(Succession(east.cluster, west.cluster, 9, 7, is_planned=False))
        with west.receiver() as receiver:
            east.assign(west.cluster, receiver.port)
            east.coordination.set_assignment("h9", b"rubbish", -1)
            with east.worker():
                wait_until(lambda: east.coordination.members(MemberKind.WORKERS), what="the worker")
                assert east.coordination.role().state == RoleState(Role.STANDBY, 9), "before writers find the worker"


def test_a_peer_whose_receiver_answers_with_anything_is_asked_at_its_next_one_and_ends_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", ended.append)
    asked: list[str] = []

    def connect(address: str, peer: str) -> PeerLink:
        asked.append(address)
        raise OverflowError("Python int too large to convert to C long")

    with closing(Site(tmp_path, "east")) as east, closing(Site(tmp_path, "west")) as west:
        spec = table()
        east.ledger.tables.create(spec)
        east.send_to(west, spec)
        public = Public(west.cluster, "1", ("one:1", "two:2"))
        ask_who_took_over(
            Takeover(east.ledger, east.coordination), connect, lambda address: public, lambda succession, source: None
        )
    assert asked == ["one:1", "two:2"] and not ended


def test_a_cluster_that_was_killed_between_hearing_of_its_succession_and_its_step_down_steps_down_at_its_start(
    tmp_path: Path,
) -> None:
    with closing(Site(tmp_path, "east")) as east, closing(Site(tmp_path, "west")) as west:
        east.send_to(west)
        east.ledger.successions.record(Succession(east.cluster, west.cluster, 9, 7, is_planned=False))
        with east.worker():  # west is away
            wait_until(lambda: east.coordination.members(MemberKind.WORKERS), what="the worker")
            assert east.coordination.role().state == RoleState(Role.STANDBY, 9), "before writers find the worker"


@pytest.mark.parametrize("was_restored", [True, False])  # False: another cluster had its name before
def test_a_restored_cluster_that_is_sent_nothing_hears_that_a_peer_took_over_from_its_former_id(
    tmp_path: Path, was_restored: bool
) -> None:
    with closing(Site(tmp_path, "east")) as east, closing(Site(tmp_path, "west")) as west:
        spec, before = table(), ClusterId("east", uuid4())
        for site in (east, west):
            site.ledger.tables.create(spec)
        cast(Any, east.ledger).former = (before,) if was_restored else ()
        east.send_to(west, spec)
        west.ledger.successions.record(Succession(before, west.cluster, 9, 7, is_planned=False))
        with west.receiver() as receiver:
            east.assign(west.cluster, receiver.port)
            with east.worker():
                wait_until(lambda: east.coordination.members(MemberKind.WORKERS), what="the worker")
                expected = RoleState(Role.STANDBY, 9) if was_restored else RoleState(Role.ACTIVE, 1)
                assert east.coordination.role().state == expected, "else two clusters take writes"


def test_a_cluster_from_a_backup_of_before_a_failover_and_a_failback_does_not_take_its_peer_for_the_active_one(
    tmp_path: Path,
) -> None:
    with closing(Site(tmp_path, "east")) as east, closing(Site(tmp_path, "west")) as west:
        spec, before = table(), ClusterId("east", uuid4())
        for site in (east, west):
            site.ledger.tables.create(spec)
        cast(Any, east.ledger).former = (before,)
        east.send_to(west, spec)
        west.ledger.successions.record(Succession(before, west.cluster, 9, 7, is_planned=False))
        west.ledger.successions.record(Succession(west.cluster, before, 10, 8, is_planned=True))
        with west.receiver() as receiver:
            east.assign(west.cluster, receiver.port)
            with east.worker():
                wait_until(lambda: east.coordination.members(MemberKind.WORKERS), what="the worker")
        assert east.coordination.role().state == RoleState(Role.STANDBY, 9)
        refused = standby_refusal(east.ledger, "it takes no writers")
        assert "walship readonly off" in refused.hint and "west" not in str(refused), "west takes no writes either"


@pytest.fixture
def restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Site, Site]]:
    """East, which has a certificate and a new id, sends to west, which knows its former id, and that it took over."""
    of_other_users(monkeypatch)
    before = ClusterId("east", uuid4())
    tls = {name: tls_section(tmp_path, AUTHORITY.issue(name), name) for name in ("east", "west")}
    with (
        closing(Site(tmp_path, "east", tls=tls["east"])) as east,
        closing(Site(tmp_path, "west", tls=tls["west"])) as west,
    ):
        spec = table()
        for site in (east, west):
            site.ledger.tables.create(spec)
        cast(Any, east.ledger).former = (before,)
        east.send_to(west, spec)
        west.send_to_cluster(before)
        west.ledger.successions.record(Succession(before, west.cluster, 9, 7, is_planned=False))
        yield east, west


def test_a_restored_cluster_that_has_heard_of_it_opens_streams_without_its_zookeeper(
    restored: tuple[Site, Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    east, west = restored

    def no_answer(*_: object) -> None:
        raise CoordinationError("ZooKeeper did not answer", "")

    with west.receiver() as receiver:
        east.assign(west.cluster, receiver.port)
        with east.worker() as worker:
            wait_until(lambda: worker._role == RoleState(Role.STANDBY, 9), what="its step down")
            monkeypatch.setattr(type(east.coordination), "role", no_answer)
            for succession in west.ledger.successions.known().all:
                worker._learn(succession, west.cluster)  # as each stream that opens has it do


def test_a_restored_cluster_hears_of_it_from_a_peer_that_was_away_when_it_started(
    restored: tuple[Site, Site],
) -> None:
    east, west = restored
    with west.receiver() as receiver, east.worker():
        wait_until(lambda: east.coordination.members(MemberKind.WORKERS), what="the worker")
        assert east.coordination.role().state == RoleState(Role.ACTIVE, 1)
        east.assign(west.cluster, receiver.port)
        wait_until(lambda: east.coordination.role().state == RoleState(Role.STANDBY, 9), what="its stream to west")


def test_a_restored_cluster_hears_of_it_from_a_peer_that_knows_its_former_id_by_certificate(
    restored: tuple[Site, Site],
) -> None:
    east, west = restored
    with west.receiver() as receiver:
        east.assign(west.cluster, receiver.port)
        with east.worker() as worker:
            wait_until(lambda: east.coordination.members(MemberKind.WORKERS), what="the worker")
            assert east.coordination.role().state == RoleState(Role.STANDBY, 9), "else two clusters take writes"
            with closing(worker._connect(f"127.0.0.1:{receiver.port}", "west")) as link:
                with pytest.raises(PeerRefusedError, match="west knows east as"):
                    link.successions(east.cluster, west.cluster, AskedLease(1, 5.0))
                west.ledger.rules.delete("east", west.term)
                with pytest.raises(PeerRefusedError, match="west grants nothing"):
                    link.successions(east.cluster, west.cluster)
    assert west.ledger.successions.lease(east.cluster) == (0, 0.0)
