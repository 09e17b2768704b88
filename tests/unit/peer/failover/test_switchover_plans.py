"""What the plan of a switchover tells, and what prevents one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from peer.failover.switchover import plan_switchover, switchover
from replication.core.grants import Grant
from replication.core.ids import ClusterId
from replication.core.roles import Role
from replication.core.succession import Succession
from replication.errors import RequestError
from tests.role_changes import TABLE, Pair, role_pair
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with role_pair(tmp_path) as made:
        made.write()
        made.east.handle.drain("west")
        yield made


def test_a_switchover_is_refused_when_the_peer_could_not_send_its_writes_back(pair: Pair) -> None:
    pair.east.site.ledger.grants.put(Grant(pair.west.site.cluster, tables=()), 1)
    why = "east grants nothing to west, which sends its writes back: walship grants add west"
    assert plan_switchover(pair.east.command(), "west").refusals == (why,)
    with pytest.raises(RequestError) as refused:
        switchover(pair.east.command(), "west")
    assert refused.value.hint == why and pair.east.role().role is Role.ACTIVE


def test_a_switchover_is_not_done_already_if_a_third_cluster_took_over_from_the_peer_since(pair: Pair) -> None:
    switchover(pair.east.command(), "west")
    pair.west.is_away = True
    west, north = pair.west.site.cluster, ClusterId("north", uuid4())
    pair.east.site.ledger.successions.record(Succession(west, north, 1003, 1, is_planned=False))
    plan = plan_switchover(pair.east.command(), "west")
    assert plan.steps, "west is not ACTIVE any more"
    assert plan.refusals[0] == "east is STANDBY, and north is ACTIVE: run it there"
    assert "walship failover" not in str(plan.refusals), "two clusters would take writes"
    with pytest.raises(RequestError, match="west cannot take over from east now"):
        switchover(pair.east.command(), "west")


def test_a_switchover_names_tables_of_which_the_peer_was_not_sent_all_rows(pair: Pair) -> None:
    ledger, table = pair.east.site.ledger, pair.east.handle.table(TABLE).uuid
    ledger.rules.disable("west", table, ["default"], pair.east.site.term)
    pair.write()
    wait_until(lambda: sum(ranges.total for ranges in pair.east.coverage().values()) == pair.acked)
    pair.east.handle.peering.enable(TABLE, (), "west", from_now=True, count_rows=lambda _: 0)
    assert any(rule.gaps for rule in ledger.rules.to("west") if rule.table == table)
    planned, command, told = plan_switchover(pair.east.command(), "west"), pair.east.command(), list[str]()
    command.report = told.append
    switchover(command, "west")
    for text in (planned.warning, told[0]):
        assert "west was not sent all rows of ops.t (see walship status), and may lack them" in text
        assert "walship bootstrap west -t TABLE --wait 600" in text
