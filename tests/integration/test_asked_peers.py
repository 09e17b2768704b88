"""A cluster that was down asks its peers who took over from it, before it takes a write."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from replication.coordination.base import Public
from replication.coordination.paths import MemberKind
from replication.core.roles import Role, RoleState
from replication.core.succession import Succession
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
