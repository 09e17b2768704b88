"""What coordination promises, over the shipped fake and over a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol
from uuid import uuid4

import pytest
from kazoo.client import KazooClient

from replication.coordination import zookeeper as real
from replication.coordination.base import HostRecord, Node, Public, RoleRead, keeps_tables
from replication.coordination.paths import MemberKind, Quorum
from replication.coordination.session import Coordination
from replication.core.ids import ClusterId
from replication.core.roles import Role, RoleState
from replication.errors import ConfigError, CoordinationError, NotLeaderError, RequestError, StaleEpochError
from tests.fakes.coordination import MemoryEnsemble
from tests.sessions import holds, session_of
from tests.waiting import wait_until

EAST = ClusterId("east", uuid4())
Connect = Callable[[], Coordination]


class World(Protocol):
    """One implementation under test."""

    def connect(self) -> Coordination: ...

    def expire(self, session: int) -> None: ...


class MemoryWorld:
    def __init__(self) -> None:
        self.ensemble = MemoryEnsemble()

    def connect(self) -> Coordination:
        return self.ensemble.connect("/walship/east", reread_s=0.5)

    def expire(self, session: int) -> None:
        self.ensemble.expire(session)


class RealWorld:
    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self._clients: list[real.ZookeeperTree] = []

    def connect(self) -> Coordination:
        tree = real.ZookeeperTree(self._quorum.servers, session_timeout_s=4.0)
        self._clients.append(tree)
        return Coordination(tree, self._quorum.root, reread_s=0.5)

    def expire(self, session: int) -> None:
        """Take the session over with its id and password and close it, which is how ZooKeeper says to test expiry."""
        (tree,) = [tree for tree in self._clients if tree.session() == session]
        double = KazooClient(hosts=self._quorum.servers, client_id=tree._client.client_id)
        double.start()
        double.stop()
        double.close()


@pytest.fixture(params=["memory", "zookeeper"])
def world(request: pytest.FixtureRequest) -> World:
    if request.param == "memory":
        return MemoryWorld()
    return RealWorld(request.getfixturevalue("quorum"))


@pytest.fixture
def connect(world: World) -> Iterator[Connect]:
    opened: list[Coordination] = []

    def one() -> Coordination:
        opened.append(world.connect())
        return opened[-1]

    one().establish(EAST, "0.1.0")
    yield one
    for coordination in opened:
        coordination.close()


def test_a_root_goes_on_with_a_cluster_that_has_a_new_incarnation(connect: Connect) -> None:
    here, new = connect(), ClusterId("east", uuid4())
    here.establish(EAST, "0.1.0")
    here.establish(new, "0.1.0", (EAST,))
    assert here.public().cluster == new
    with pytest.raises(ConfigError):
        here.establish(EAST, "0.1.0")


def test_a_new_incarnation_is_assigned_its_work_anew(connect: Connect) -> None:
    here, new = connect(), ClusterId("east", uuid4())
    here.establish(EAST, "0.1.0")
    here.set_assignment("h0", b"under an old term", -1)
    here.establish(EAST, "0.1.0")
    assert list(here.assignments()) == ["h0"]
    here.establish(new, "0.1.0", (EAST,))
    assert here.assignments() == {}
    here.set_assignment("h0", b"under a new one", -1)
    here.establish(new, "0.1.0", (EAST,))
    assert list(here.assignments()) == ["h0"]


def test_a_cluster_is_established_once_and_belongs_to_one_id(connect: Connect) -> None:
    here = connect()
    here.establish(EAST, "0.1.0")
    assert here.public() == Public(EAST, "0.1.0")
    assert here.role().state == RoleState(Role.ACTIVE, 1)
    with pytest.raises(ConfigError, match="belongs to"):
        here.establish(ClusterId("east", uuid4()), "0.1.0")


def test_a_role_that_was_lost_is_never_active_on_its_way_back(world: World) -> None:
    kept, seen = RoleState(Role.STANDBY, 4), list[RoleState]()
    with world.connect() as other, world.connect() as here:
        other.watch_role(lambda read: seen.append(read.state))
        here.establish(EAST, "0.1.0", role=kept)
        wait_until(lambda: bool(seen), despite=CoordinationError)
    assert seen == [kept]


def test_the_newest_role_that_any_process_knew_comes_back(world: World) -> None:
    """Both knew another one when the data were lost; the one with the older was faster."""
    with world.connect() as one, world.connect() as other:
        one.establish(EAST, "0.1.0", role=RoleState(Role.STANDBY, 4))
        other.establish(EAST, "0.1.0")
        wait_until(
            lambda: (other._root is not None and other._root._role) == RoleState(Role.STANDBY, 4),
            despite=CoordinationError,
        )
        read = one.role()
        one._tree.set(one.paths.role, RoleState(Role.ACTIVE, 3).encode(), read.version)
        wait_until(lambda: other.role().state == RoleState(Role.STANDBY, 4), despite=CoordinationError)


def test_a_role_that_was_lost_is_in_force_again(connect: Connect) -> None:
    here, kept = connect(), RoleState(Role.STANDBY, 4)
    here.establish(EAST, "0.1.0", role=kept)
    assert here.role().state == kept
    here.establish(EAST, "0.1.0", role=RoleState(Role.ACTIVE, 3))
    here.establish(EAST, "0.1.0")
    assert here.role().state == kept


def test_without_a_cluster_at_the_root_every_read_says_so(world: World) -> None:
    with world.connect() as here:
        for read in (here.public, here.role, here.announce, here.campaign("m").leads):
            with pytest.raises(CoordinationError, match="no cluster at"):
                read()


def test_the_public_part_is_published_and_read_by_others(connect: Connect) -> None:
    here, other = connect(), connect()
    public = Public(EAST, "0.1.0", ("127.0.0.1:9001", "127.0.0.1:9002"))
    here.publish(public)
    here.publish(public)
    assert other.public() == public


def test_one_candidate_leads_and_the_next_follows_when_it_goes(connect: Connect) -> None:
    sessions = [connect() for _ in range(4)]
    candidates = [session.campaign(f"m{number}") for number, session in enumerate(sessions)]
    for position in range(4):
        wait_until(candidates[position].leads)
        assert not any(candidate.leads() for candidate in candidates[position + 1 :])
        if position < 3:
            assert sessions[3].leader() == f"m{position}"
            sessions[position].close()


def test_a_candidate_that_withdraws_lets_the_next_lead(connect: Connect) -> None:
    here = connect()
    first, second = here.campaign("a"), here.campaign("b")
    assert first.leads() and not second.leads()
    first.withdraw()
    assert second.leads() and not first.leads()


def test_a_leader_whose_session_expires_does_not_lead_and_joins_the_end_of_the_line(
    world: World, connect: Connect
) -> None:
    here, other = connect(), connect()
    first, second = here.campaign("a"), other.campaign("b")
    assert first.leads() and not second.leads()
    world.expire(session_of(here))
    wait_until(second.leads, despite=CoordinationError)
    wait_until(lambda: session_of(here) != 0, despite=CoordinationError)
    wait_until(lambda: not first.leads(), despite=CoordinationError)
    other.close()
    wait_until(first.leads, despite=CoordinationError)


def test_members_are_seen_with_what_they_say_and_vanish_with_their_session(connect: Connect) -> None:
    here, other = connect(), connect()
    membership = here.enrol(MemberKind.RECEIVERS, "h0", {"address": "127.0.0.1:9001"})
    assert [(member.name, member.fields) for member in other.members(MemberKind.RECEIVERS)] == [
        ("h0", {"address": "127.0.0.1:9001"})
    ]
    assert holds(here, MemberKind.RECEIVERS)
    membership.update({"address": "127.0.0.1:9009"})
    wait_until(lambda: other.members(MemberKind.RECEIVERS)[0].fields == {"address": "127.0.0.1:9009"})
    assert other.members(MemberKind.WORKERS) == ()
    here.close()
    wait_until(lambda: other.members(MemberKind.RECEIVERS) == ())


def test_a_member_returns_by_itself_after_its_session_expired(world: World, connect: Connect) -> None:
    here, other = connect(), connect()
    here.enrol(MemberKind.WORKERS, "h0", {"pid": 1})
    before = other.members(MemberKind.WORKERS)[0].session
    world.expire(before)
    wait_until(
        lambda: [member.session != before for member in other.members(MemberKind.WORKERS)] == [True],
        despite=CoordinationError,
    )
    wait_until(lambda: holds(here, MemberKind.WORKERS), despite=CoordinationError)
    assert other.members(MemberKind.WORKERS)[0].fields == {"pid": 1}


def test_a_member_replaces_what_a_dead_process_left_and_yields_to_a_later_one(
    connect: Connect,
) -> None:
    here, other = connect(), connect()
    old = here.enrol(MemberKind.WORKERS, "h0", {"pid": 1})
    other.enrol(MemberKind.WORKERS, "h0", {"pid": 2})
    assert holds(other, MemberKind.WORKERS) and not holds(here, MemberKind.WORKERS)
    wait_until(lambda: old.superseded, despite=CoordinationError)
    old.update({"pid": 3})
    old.leave()
    assert [member.fields for member in here.members(MemberKind.WORKERS)] == [{"pid": 2}]


def test_a_member_returns_when_the_process_that_had_its_place_is_gone(world: World, connect: Connect) -> None:
    """Such as a copy of the data directory that was started by mistake. Writers need the worker that goes on."""
    here, copy, other = connect(), connect(), connect()
    live = here.enrol(MemberKind.WORKERS, "h0", {"pid": 1})
    copy.enrol(MemberKind.WORKERS, "h0", {"pid": 2})
    wait_until(lambda: live.superseded, despite=CoordinationError)
    copy.close()
    wait_until(lambda: holds(here, MemberKind.WORKERS), despite=CoordinationError)
    assert [member.fields for member in other.members(MemberKind.WORKERS)] == [{"pid": 1}] and not live.superseded
    live.leave()
    wait_until(lambda: not other.members(MemberKind.WORKERS), despite=CoordinationError)  # until a watch has fired


def test_a_member_that_left_stays_away(world: World, connect: Connect) -> None:
    here = connect()
    membership = here.enrol(MemberKind.WRITERS, "w1", {})
    membership.leave()
    membership.leave()
    membership.update({"more": 1})
    assert here.members(MemberKind.WRITERS) == ()


def test_hosts_outlive_their_sessions(connect: Connect) -> None:
    here, other = connect(), connect()
    here.put_host(HostRecord("h1", "/data", "sqlite:////data/ledger.db"))
    here.put_host(HostRecord("h0", "/data", "sqlite:////data/ledger.db"))
    here.put_host(HostRecord("h0", "/other", "sqlite:////data/ledger.db"))
    here.close()
    assert [(host.slot, host.data_dir) for host in other.hosts()] == [("h0", "/other"), ("h1", "/data")]
    other.remove_host("h1")
    assert [host.slot for host in other.hosts()] == ["h0"]


def test_a_data_directory_that_lost_its_id_is_told_how_to_get_it_back(connect: Connect) -> None:
    here = connect()
    here.put_host(HostRecord("h0", "/data", "", identity="0123456789abcdef"))
    with pytest.raises(ConfigError, match=r"not to this one.*was lost, write 0123456789abcdef to it"):
        here.put_host(HostRecord("h0", "/data", "", identity="f" * 16))
    with pytest.raises(ConfigError, match=r"not to /other. Give each"):
        here.put_host(HostRecord("h0", "/other", "", identity="f" * 16))


@pytest.mark.parametrize("is_first", [True, False])
def test_of_two_data_directories_that_take_a_slot_at_once_one_is_refused(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    here, other = connect(), connect()
    if not is_first:
        here.put_host(HostRecord("h0", "/before", ""))  # it has no id, as one of an older version
    get = here._tree.get

    def overtaken(path: str, *given: Any) -> Node | None:
        monkeypatch.undo()
        node = get(path, *given)
        other.put_host(HostRecord("h0", "/other", "", identity="0" * 16))
        return node

    monkeypatch.setattr(here._tree, "get", overtaken)
    with pytest.raises(ConfigError, match="belongs to the data directory /other"):
        here.put_host(HostRecord("h0", "/data", "", identity="f" * 16))
    assert [host.data_dir for host in other.hosts()] == ["/other"]


def test_every_host_that_is_up_is_known_again_after_the_data_were_lost(connect: Connect) -> None:
    """Whoever is first makes the role again; the others find it there."""
    here, other = connect(), connect()
    for session, slot in ((here, "h0"), (other, "h1")):
        session.establish(EAST, "0.1.0")
        session.put_host(HostRecord(slot, "/data", "", keeps_tables=slot == "h1"))
    for slot in ("h0", "h1"):
        here._tree.delete(here.paths.host(slot))
    here._tree.delete(here.paths.role)
    wait_until(lambda: [host.slot for host in here.hosts()] == ["h0", "h1"], despite=CoordinationError)
    assert keeps_tables(here.hosts())
    here.remove_host("h0")
    here._tree.delete(here.paths.host("h1"))
    wait_until(lambda: [host.slot for host in here.hosts()] == ["h1"], despite=CoordinationError)


def test_an_assignment_is_written_only_over_the_version_that_was_read(connect: Connect) -> None:
    here, other = connect(), connect()
    version = here.set_assignment("h0", b"one", -1)
    with pytest.raises(NotLeaderError):
        other.set_assignment("h0", b"two", -1)
    newer = other.set_assignment("h0", b"two", version)
    with pytest.raises(NotLeaderError):
        here.set_assignment("h0", b"three", version)
    read = here.assignments().get("h0")
    assert read is not None and (read.content, read.version) == (b"two", newer)
    assert list(here.assignments()) == ["h0"]


def test_a_node_too_large_is_refused_before_it_is_sent(connect: Connect) -> None:
    here = connect()
    here.set_assignment("h0", b"x" * 256 * 1024, -1)
    with pytest.raises(RequestError, match="h0 would hold 262145 bytes"):
        here.set_assignment("h0", b"x" * (256 * 1024 + 1), 0)
    assert session_of(here) != 0


def test_a_role_changes_only_from_the_version_that_was_read(connect: Connect) -> None:
    here, other = connect(), connect()
    read = here.role()
    standby = read.state.becomes(Role.STANDBY)
    other.set_role(standby, read.version)
    assert here.role().state == RoleState(Role.STANDBY, 2)
    with pytest.raises(StaleEpochError):
        here.set_role(standby, read.version)


def test_watched_values_come_at_first_and_after_each_change(connect: Connect) -> None:
    here, other = connect(), connect()
    roles: list[RoleRead] = []
    assigned: list[bytes] = []
    counts: list[int] = []
    here.watch_role(roles.append)
    here.watch_assignment("h0", lambda read: assigned.append(read.content))
    subscription = here.watch_announcements(counts.append)
    wait_until(lambda: len(roles) == 1 and len(counts) == 1, despite=CoordinationError)
    assert assigned == []
    read = other.role()
    other.set_role(read.state.becomes(Role.STANDBY), read.version)
    other.set_assignment("h0", b"one", -1)
    announced = other.announce()
    wait_until(
        lambda: roles[-1].state.role is Role.STANDBY and assigned == [b"one"] and counts[-1] == announced,
        despite=CoordinationError,
    )
    subscription.close()
    other.announce()
    other.set_assignment("h0", b"two", 0)
    wait_until(lambda: assigned == [b"one", b"two"], despite=CoordinationError)
    assert counts[-1] == announced


def test_a_watched_change_that_falls_into_a_lost_session_is_delivered_after_it(world: World, connect: Connect) -> None:
    here, other = connect(), connect()
    assigned: list[bytes] = []
    here.watch_assignment("h0", lambda read: assigned.append(read.content))
    version = other.set_assignment("h0", b"one", -1)
    wait_until(lambda: assigned == [b"one"], despite=CoordinationError)
    world.expire(session_of(here))
    other.set_assignment("h0", b"two", version)
    wait_until(lambda: assigned == [b"one", b"two"], despite=CoordinationError)


def test_after_close_nothing_is_connected_and_closing_again_is_harmless(connect: Connect) -> None:
    here = connect()
    here.close()
    here.close()
    assert session_of(here) == 0
    with pytest.raises(CoordinationError):
        here.role()
    assert not here.campaign("m").leads()
