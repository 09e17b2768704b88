"""Coordination under what the shipped fake can do to it: lost connections, late watches, unknown outcomes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from kazoo.client import KazooState, KeeperState
from kazoo.exceptions import ConnectionLoss

from replication.coordination.keeper import Subscription
from replication.coordination.paths import MemberKind
from replication.coordination.session import Coordination
from replication.coordination.zookeeper import ZookeeperTree
from replication.core.ids import ClusterId
from replication.errors import CoordinationError, NotLeaderError
from tests.fakes.coordination import MemoryEnsemble
from tests.sessions import holds, session_of
from tests.waiting import wait_until

EAST = ClusterId("east", uuid4())


@pytest.fixture
def ensemble() -> MemoryEnsemble:
    return MemoryEnsemble()


@pytest.fixture
def connect(ensemble: MemoryEnsemble) -> Iterator[Callable[..., Coordination]]:
    opened: list[Coordination] = []

    def one(reread_s: float = 60.0) -> Coordination:
        opened.append(ensemble.connect("/east", reread_s=reread_s))
        return opened[-1]

    one().establish(EAST, "0.1.0")
    yield one
    ensemble.fault = ensemble.fault_after = None
    for coordination in opened:
        coordination.close()


def test_a_client_that_is_cut_off_neither_leads_nor_answers_and_its_members_live_until_they_expire(
    ensemble: MemoryEnsemble, connect: Callable[..., Coordination]
) -> None:
    here, other = connect(), connect()
    candidacy = here.campaign("a")
    here.enrol(MemberKind.WORKERS, "h0", {})
    assert candidacy.leads()
    session = session_of(here)
    ensemble.cut(session)
    assert session_of(here) == 0 and not candidacy.leads()
    with pytest.raises(CoordinationError):
        here.role()
    assert [member.name for member in other.members(MemberKind.WORKERS)] == ["h0"]
    ensemble.expire(session)
    assert other.members(MemberKind.WORKERS) == ()
    ensemble.heal()
    wait_until(lambda: len(other.members(MemberKind.WORKERS)) == 1)
    assert holds(here, MemberKind.WORKERS) and session_of(here) != session


def test_a_client_that_comes_back_in_its_session_keeps_its_place(
    ensemble: MemoryEnsemble, connect: Callable[..., Coordination]
) -> None:
    here, other = connect(), connect()
    first, second = here.campaign("a"), other.campaign("b")
    assert first.leads() and not second.leads()
    ensemble.cut(session_of(here))
    assert not second.leads()
    ensemble.heal()
    assert first.leads() and not second.leads()


def test_a_watch_that_comes_late_delivers_what_is_there_by_then(
    ensemble: MemoryEnsemble, connect: Callable[..., Coordination]
) -> None:
    here, other = connect(), connect()
    seen: list[bytes] = []
    here.watch_assignment("h0", lambda read: seen.append(read.content))
    other.set_assignment("h0", b"one", -1)
    wait_until(lambda: seen == [b"one"])
    ensemble.delay_watches()
    other.set_assignment("h0", b"two", 0)
    other.set_assignment("h0", b"three", 1)
    ensemble.release_watches()
    wait_until(lambda: seen[-1] == b"three")
    assert seen == [b"one", b"three"]


def test_a_member_that_runs_does_not_return_while_it_is_replaced(
    connect: Callable[..., Coordination], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, other = connect(), connect()
    old = here.enrol(MemberKind.WORKERS, "h0", {"pid": 1})

    def refreshing(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            done = call(*given)
            old.refresh()
            return done

        return run

    tree = other._keeper.tree
    monkeypatch.setattr(tree, "delete", refreshing(tree.delete))
    monkeypatch.setattr(tree, "replace", refreshing(tree.replace))
    other.enrol(MemberKind.WORKERS, "h0", {"pid": 2})
    assert old.superseded and holds(other, MemberKind.WORKERS)


def test_a_watch_that_never_comes_costs_one_period_of_rereading(
    ensemble: MemoryEnsemble, connect: Callable[..., Coordination]
) -> None:
    here, other = connect(reread_s=0.05), connect()
    seen: list[bytes] = []
    here.watch_assignment("h0", lambda read: seen.append(read.content))
    ensemble.delay_watches()
    other.set_assignment("h0", b"one", -1)
    wait_until(lambda: seen == [b"one"])


def test_an_assignment_whose_outcome_is_unknown_is_found_written_when_it_is_read_again(
    ensemble: MemoryEnsemble, connect: Callable[..., Coordination]
) -> None:
    here = connect()

    def lose_the_answer(call: str, path: str) -> None:
        if call == "create" and path.endswith("assignments/h0"):
            raise CoordinationError("connection lost")

    ensemble.fault_after = lose_the_answer
    with pytest.raises(CoordinationError):
        here.set_assignment("h0", b"one", -1)
    ensemble.fault_after = None
    with pytest.raises(NotLeaderError):
        here.set_assignment("h0", b"one", -1)
    read = here.assignments().get("h0")
    assert read is not None and read.content == b"one"


def test_a_candidate_whose_entry_had_an_unknown_outcome_stands_once(
    ensemble: MemoryEnsemble, connect: Callable[..., Coordination]
) -> None:
    here, other = connect(), connect()
    candidacy = here.campaign("a")

    def lose_the_answer(call: str, path: str) -> None:
        if call == "create":
            raise CoordinationError("connection lost")

    ensemble.fault_after = lose_the_answer
    with pytest.raises(CoordinationError):
        candidacy.leads()
    ensemble.fault_after = None
    assert candidacy.leads()
    candidacy.withdraw()
    assert other.leader() is None


def test_a_failing_ensemble_delays_members_and_watches_but_loses_neither(
    ensemble: MemoryEnsemble, connect: Callable[..., Coordination]
) -> None:
    here, other = connect(reread_s=0.02), connect()
    seen: list[int] = []
    here.watch_announcements(seen.append)
    here.enrol(MemberKind.WORKERS, "h0", {})
    calls: list[str] = []

    def fail(call: str, path: str) -> None:
        calls.append(call)
        if len(calls) < 50:
            raise CoordinationError("no answer")

    ensemble.fault = fail
    ensemble.expire(session_of(here))
    wait_until(lambda: len(calls) > 60)
    count = other.announce()
    wait_until(lambda: bool(seen) and seen[-1] == count)
    assert holds(here, MemberKind.WORKERS)


def test_a_watcher_of_a_node_that_holds_rubbish_holds_up_nobody_else(
    ensemble: MemoryEnsemble, connect: Callable[..., Coordination]
) -> None:
    here, other = connect(), connect()
    roles: list[object] = []
    counts: list[int] = []
    tree = ensemble.tree()
    tree.start(lambda: None, 1.0)
    tree.set("/east/role", b"rubbish")
    here.watch_role(roles.append)
    here.watch_announcements(counts.append)
    wait_until(lambda: len(counts) == 1)
    assert other.announce() and roles == []
    tree.close()


def test_a_fault_in_what_is_delivered_to_costs_no_membership_and_is_tried_again(
    ensemble: MemoryEnsemble, connect: Callable[..., Coordination]
) -> None:
    here = connect(reread_s=0.02)
    counts: list[int] = []

    def deliver(count: int) -> None:
        counts.append(count)
        if len(counts) == 1:
            raise ValueError("a bug in the caller")

    here.watch_announcements(deliver)
    here.enrol(MemberKind.WORKERS, "h0", {})
    wait_until(lambda: counts == [0, 0])
    ensemble.expire(session_of(here))
    wait_until(lambda: holds(here, MemberKind.WORKERS), despite=CoordinationError)


def test_what_is_read_after_a_subscription_was_closed_is_not_delivered(connect: Callable[..., Coordination]) -> None:
    session = connect()
    delivered: list[int] = []
    looked = threading.Event()
    made: list[Subscription[int]] = []

    def read(wake: Callable[[], None]) -> int:
        if made:
            made[0].close()
            looked.set()
        return 1

    made_now = Subscription(session._keeper, lambda wake: None, delivered.append)
    made.append(made_now)
    made_now._read = read
    session._keeper.wake()
    assert looked.wait(10)
    session.close()
    assert delivered == []


def test_a_call_that_lost_its_connection_says_that_it_may_have_been_done() -> None:
    tree, told = ZookeeperTree("127.0.0.1:1"), r"writing /role .*ConnectionLoss.* may have been done.* walship status"
    with pytest.raises(CoordinationError, match=told), tree._named("writing /role"):
        raise ConnectionLoss()


def test_calls_while_zookeeper_is_away_stay_bounded_however_many_they_are() -> None:
    tree = ZookeeperTree("127.0.0.1:1", call_timeout_s=0.001)
    refused: list[CoordinationError] = []

    def call_often() -> None:
        for _ in range(400):
            with pytest.raises(CoordinationError) as told:
                tree.get("/east")
            refused.append(told.value)

    tree._client.start_async()
    wait_until(lambda: tree._client.client_state == KeeperState.CONNECTING)
    calling = threading.Thread(target=call_often, daemon=True)
    calling.start()
    calling.join(10.0)
    assert len(refused) == 400
    tree.close()


def test_a_call_that_waits_for_a_connection_fails_when_the_session_ends() -> None:
    tree = ZookeeperTree("127.0.0.1:1", call_timeout_s=30.0)
    changed: list[Callable[[str], None]] = []
    client: Any = tree._client
    client.add_listener = changed.append
    client.start = lambda timeout_s: client.start_async()
    tree.start(lambda: None, 1.0)
    wait_until(lambda: tree._client.client_state == KeeperState.CONNECTING)
    with ThreadPoolExecutor() as pool:
        call = pool.submit(tree.get, "/east")
        waiting: Any = tree._connected
        wait_until(lambda: waiting._cond._waiters, what="the call to wait")
        for state in (KazooState.LOST, KazooState.CONNECTED):
            changed[0](state)
        with pytest.raises(CoordinationError, match="SessionExpiredError"):
            call.result(30.0)
    tree.close()
