"""Nodes that rarely change, and which there are, are read again when a watch fires, and not before."""

from __future__ import annotations

from uuid import uuid4

import pytest

from replication.coordination.base import Public
from replication.coordination.known_nodes import KnownNodes
from replication.coordination.paths import MemberKind
from replication.coordination.session import Coordination
from replication.core.ids import ClusterId
from replication.errors import CoordinationError
from tests.fakes.coordination import MemoryEnsemble
from tests.waiting import wait_until

EAST = ClusterId("east", uuid4())


@pytest.fixture
def ensemble() -> MemoryEnsemble:
    return MemoryEnsemble()


@pytest.fixture
def reads(ensemble: MemoryEnsemble) -> list[str]:
    """The members that were read, and the kinds that were listed."""
    found: list[str] = []

    def fault(call: str, path: str) -> None:
        if call == "get" and "/h0" in path:
            found.append(path.rsplit("/", 2)[1])
        if call == "children":
            found.append(path.rsplit("/", 1)[1])

    ensemble.fault = fault
    return found


def connected(ensemble: MemoryEnsemble) -> Coordination:
    coordination = ensemble.connect("/walship/east", reread_s=60.0)
    coordination.establish(EAST, "1.0")
    return coordination


def test_a_member_is_read_again_only_after_it_changed_or_came_back(ensemble: MemoryEnsemble, reads: list[str]) -> None:
    with connected(ensemble) as here, connected(ensemble) as other:
        member = other.enrol(MemberKind.WORKERS, "h0", {"announcement": 1})
        wait_until(lambda: here.members(MemberKind.WORKERS))
        reads.clear()
        assert [here.members(MemberKind.WORKERS)[0].fields["announcement"] for _ in range(5)] == [1] * 5
        assert not reads
        member.update({"announcement": 2})
        assert here.members(MemberKind.WORKERS)[0].fields["announcement"] == 2
        member.leave()
        assert not here.members(MemberKind.WORKERS)
        other.enrol(MemberKind.WORKERS, "h0", {"announcement": 3})
        wait_until(lambda: [each.fields["announcement"] for each in here.members(MemberKind.WORKERS)] == [3])


def test_writers_are_always_read_since_role_changes_wait_for_them(ensemble: MemoryEnsemble, reads: list[str]) -> None:
    with connected(ensemble) as here:
        here.enrol(MemberKind.WRITERS, "h0", {"epoch": 1})
        wait_until(lambda: here.members(MemberKind.WRITERS))
        reads.clear()
        for _ in range(3):
            here.members(MemberKind.WRITERS)
        assert len(reads) == 6


def test_what_is_known_does_not_outlive_the_connection_or_the_session(ensemble: MemoryEnsemble) -> None:
    with connected(ensemble) as here, connected(ensemble) as other:
        assert here.public().receivers == ()
        session = here._keeper.session()
        ensemble.cut(session)
        with pytest.raises(CoordinationError):
            here.public()
        other.publish(Public(EAST, "1.0", ("a:1",)))
        ensemble.expire(session)
        ensemble.heal()
        assert here.public().receivers == ("a:1",)
        here.publish(Public(EAST, "1.0", ("b:2",)))
        assert other.public().receivers == ("b:2",)


def test_what_this_process_wrote_is_read_at_once_however_late_the_watch(
    ensemble: MemoryEnsemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(ensemble) as here:
        real, children = here._tree.get, here._tree.children
        monkeypatch.setattr(here._tree, "get", lambda path, watch=None: real(path))
        monkeypatch.setattr(here._tree, "children", lambda path, watch=None: children(path))
        version = -1
        for address in ("a:1", "b:2"):
            here.publish(Public(EAST, "1.0", (address,)))
            assert here.public().receivers == (address,)
            version = here.set_assignment("h0", address.encode(), version)
            assert here.assignments()["h0"].content == address.encode()
        here.establish(ClusterId("east", uuid4()), "1.0", (EAST,))
        assert here.assignments() == {}


def test_who_leads_is_read_again_once_the_leader_is_gone(ensemble: MemoryEnsemble, reads: list[str]) -> None:
    with connected(ensemble) as here, connected(ensemble) as other:
        changes: list[None] = []
        here.call_when_changed(lambda: changes.append(None))
        first, second = other.campaign("h1"), here.campaign("h0")
        assert first.leads() and not second.leads()
        second.leads()
        reads.clear()
        changes.clear()
        assert [second.leads() for _ in range(3)] == [False] * 3
        assert not reads and not changes
        ensemble.expire(other._keeper.session())
        assert changes
        assert second.leads()


def test_a_lost_watch_delays_what_it_tells_of_for_half_a_minute_at_most(ensemble: MemoryEnsemble) -> None:
    now = [0.0]
    with connected(ensemble) as here, connected(ensemble) as other:
        known = KnownNodes(here._tree, lambda: now[0])
        workers = here.paths.members(MemberKind.WORKERS)
        other.enrol(MemberKind.WORKERS, "h0", {})
        assert known.children(workers) == ("h0",)
        ensemble.delay_watches()
        other.enrol(MemberKind.WORKERS, "h1", {})
        assert known.children(workers) == ("h0",)
        now[0] = 30.0
        assert known.children(workers) == ("h0", "h1")
        ensemble.release_watches()
