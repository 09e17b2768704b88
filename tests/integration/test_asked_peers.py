"""A cluster that was down asks its peers who took over from it, before it takes a write."""

from __future__ import annotations

import threading
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
from replication.link.base import PeerLink
from replication.roles.takeover import Takeover
from replication.worker.ask_peers import ask_who_took_over
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
